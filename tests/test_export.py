"""What we write as a PyTorch checkpoint is the file that the reference writes, and comes back bit for bit."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from flax.traverse_util import unflatten_dict
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="exporting a PyTorch checkpoint needs torch")

import yaml  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

import wmjax  # noqa: E402
from benchmarks import torch_agent  # noqa: E402
from wmjax.agents.dreamer import AGENTS, Dreamer  # noqa: E402
from wmjax.agents.dreamer.export import Optimizer, export  # noqa: E402
from wmjax.agents.dreamer.hydra import read_config  # noqa: E402
from wmjax.agents.dreamer.reference_config import identity, inference, joined  # noqa: E402
from wmjax.agents.dreamer.torch_layout import weights  # noqa: E402
from wmjax.agents.weights import Card, read_card, template, write  # noqa: E402
from wmjax.core.errors import InputError  # noqa: E402

KEYS = {"dreamer": 184, "r2dreamer": 166, "infonce": 166, "dreamerpro": 184}
TINY = torch_agent.Sizes(deter=64, hidden=32, stoch=8, discrete=4, depth=4, units=32, action=2)
PATHS = ["_optimizer", "_scheduler.optimizer"]
SMALL = Dreamer(
    agent="dreamerpro", action_size=1, stoch=3, discrete=2, deter=6, hidden=4, units=5, blocks=3, depths=(3, 2),
    kernel_size=3, minres=2, dyn_layers=1, img_layers=2, obs_layers=1, actor_layers=3, critic_layers=3,
    reward_layers=1, cont_layers=1, bins=7, decoder_units=4, decoder_blocks=2,
)  # fmt: skip


def opened(path):
    return torch.load(path, weights_only=True)


def same(got, want):
    """Assert that two checkpoints' entries are the same: types, order of keys, and every number, bit for bit."""
    assert type(got) is type(want)
    if isinstance(want, dict):
        assert list(got) == list(want)
    if isinstance(want, dict | list | tuple):
        assert len(got) == len(want)
        for index in want if isinstance(want, dict) else range(len(want)):
            same(got[index], want[index])
    elif isinstance(want, torch.Tensor):
        assert (got.dtype, got.shape, got.stride()) == (torch.float32, want.shape, want.stride())
        assert got.untyped_storage().nbytes() == want.untyped_storage().nbytes()
        assert torch.equal(got.view(torch.int32), want.view(torch.int32))
    else:
        assert got == want


def sharing(tree, path=()):
    """Return, for every tensor, the first one whose memory it has."""
    first, out = {}, {}

    def walk(node, path):
        if isinstance(node, dict | list):
            for name, value in node.items() if isinstance(node, dict) else enumerate(node):
                walk(value, (*path, name))
        elif isinstance(node, torch.Tensor):
            out[path] = first.setdefault(node.untyped_storage().data_ptr(), path)

    walk(tree, path)
    return out


def optimizer_of(victim, checkpoint, names):
    """Return a golden's optimizer as trees of ours, by the list of names that comes with it."""
    saved = checkpoint["optims_state_dict"]["_optimizer"]
    theirs = {"projector.w.weight": "prj.w.weight", "prototypes": "_prototypes"}
    number = {theirs.get(name, f"_{name}" if name.startswith("ema_") else name): i for i, name in enumerate(names)}
    trees = {
        moment: {
            weight.path: weight.to_jax(saved["state"][number[weight.key]][moment].numpy())
            for weight in weights(victim)
            if number.get(weight.key) in saved["state"]
        }
        for moment in ("exp_avg", "exp_avg_sq")
    }
    (group,), any_state = saved["param_groups"], saved["state"][0]
    return Optimizer(
        count=any_state["step"],
        mu=unflatten_dict(trees["exp_avg"], sep="/"),
        nu=unflatten_dict(trees["exp_avg_sq"], sep="/"),
        lr_1=any_state["exp_avg_lr_1"],
        lr_2=any_state["exp_avg_lr_2"],
        lr=group["lr"],
        initial_lr=group["initial_lr"],
    )


@pytest.mark.parametrize("agent", AGENTS)
def test_golden_checkpoints_come_back_whole(agent, shared, tmp_path):
    """Converted and exported again, a golden is the same in all that it holds, the optimizer included."""
    folder = shared / "golden" / f"tiny_{agent}"
    original = opened(folder / "latest.pt")
    ours = wmjax.convert(folder / "latest.pt", tmp_path / "a.safetensors", stoch=8, agent=agent)
    with np.load(folder / "golden.npz") as arrays:
        names = arrays["ckpt/optimizer_param_names"].tolist()
    state = optimizer_of(read_card(ours).victim, original, names)
    assert export(ours, tmp_path / "latest.pt", state) == tmp_path / "latest.pt"
    exported = opened(tmp_path / "latest.pt")
    same(exported, original)
    assert sharing(exported) == sharing(original)
    assert len(exported["agent_state_dict"]) == KEYS[agent]
    first, second = (exported["optims_state_dict"][path]["state"] for path in PATHS)
    assert all(first[number] is second[number] for number in first)

    # The reference's modules take it, and our converter finds in it what it found in the original.
    module = torch_agent.Agent(replace(TINY, agent=agent)).load(exported["agent_state_dict"])
    assert torch.equal(module.encoder.state_dict()["encoders.0.layers.0.bias"],
                       original["agent_state_dict"]["encoder.encoders.0.layers.0.bias"])  # fmt: skip
    again = wmjax.convert(tmp_path / "latest.pt", tmp_path / "b.safetensors", stoch=8, agent=agent)
    same_weights(load_file(again), load_file(ours))


@pytest.mark.parametrize("agent", AGENTS)
def test_without_an_optimizer_there_is_one_before_its_first_update(agent, shared, tmp_path):
    folder = shared / "golden" / f"tiny_{agent}"
    ours = wmjax.convert(folder / "latest.pt", tmp_path / "a.safetensors", stoch=8, agent=agent)
    exported = opened(export(ours, tmp_path / "latest.pt"))
    original = opened(folder / "latest.pt")
    same(exported["agent_state_dict"], original["agent_state_dict"])
    for path in PATHS:
        fresh = exported["optims_state_dict"][path]
        (group,), (after,) = fresh["param_groups"], original["optims_state_dict"][path]["param_groups"]
        assert fresh["state"] == {}
        # Two updates later the warm-up is at its third step.
        assert group["lr"] * 3 == pytest.approx(after["lr"], rel=1e-12)
        same(group | {"lr": after["lr"]}, after)


def test_pytorch_takes_the_optimizer(tmp_path):
    """Any optimizer of PyTorch checks that the numbers of parameters agree, and copies the state to them."""
    flat = random_weights(SMALL)
    trained = unflatten_dict({name: x for name, x in flat.items() if updated(name)}, sep="/")
    optimizer = Optimizer(count=7, mu=trained, nu=trained, lr_1=1e-4, lr_2=0.5, lr=3e-4)
    exported = opened(export(weight_file(tmp_path, SMALL, flat), tmp_path / "latest.pt", optimizer))
    state = exported["agent_state_dict"]
    keys = [key for key in state if not key.startswith(("_frozen_", "_slow_value", "return_ema"))]
    order = ["rssm", "actor", "value", "reward", "cont", "encoder", "_prototypes", "obs_proj", "feat_proj"]
    order += ["_ema_encoder", "_ema_obs_proj"]
    keys.sort(key=lambda key: order.index(key.split(".")[0]))
    theirs = torch.optim.SGD([torch.nn.Parameter(state[key].clone()) for key in keys])
    theirs.load_state_dict(exported["optims_state_dict"]["_optimizer"])
    parameters = theirs.param_groups[0]["params"]
    for key, parameter in zip(keys, parameters, strict=True):
        assert (parameter in theirs.state) != key.startswith("_ema_")
        if parameter in theirs.state:
            assert torch.equal(theirs.state[parameter]["exp_avg"], state[key])
            assert theirs.state[parameter]["step"] == 7


def test_the_shipped_agent_is_the_checkpoint_it_came_from(shared, tmp_path):
    name = "dmc_cartpole_balance_r2dreamer_1m"
    original = opened(shared / "checkpoints" / name / "latest.pt")
    same(opened(export(name, tmp_path / "a.pt"))["agent_state_dict"], original["agent_state_dict"])


# Agents of any size, with any numbers in them.


def updated(name):
    return name.split("/")[0] not in ("slow_value", "return_ema", "ema_encoder", "ema_obs_proj")


def training_shapes(victim, prototypes=11, size=3):
    feature, embed = victim.stoch * victim.discrete + victim.deter, victim.minres**2 * victim.depths[-1]
    shapes = {"return_ema/quantiles": (2,)}
    if victim.agent == "dreamerpro":
        encoder = {name: shape for name, shape in template(victim).items() if name.startswith("encoder/")}
        shapes |= {f"ema_{name}": shape for name, shape in encoder.items()} | {"prototypes/kernel": (size, prototypes)}
        for name, inputs in (("obs_proj", embed), ("feat_proj", feature), ("ema_obs_proj", embed)):
            shapes |= {f"{name}/kernel": (inputs, size), f"{name}/bias": (size,)}
    elif victim.agent != "dreamer":
        shapes["projector/kernel"] = (feature, embed)
    return shapes


def random_weights(victim, seed=0):
    """Return weights of any finite bits: zeros of both signs and denormals too."""
    rng, flat = np.random.default_rng(seed), {}
    for name, shape in (template(victim) | training_shapes(victim)).items():
        bits = rng.integers(1 << 32, size=shape, dtype=np.uint32).view(np.float32)
        odd = rng.choice(np.float32([0.0, -0.0, 1e-45, -1e-39]), size=shape)
        flat[name] = np.where(np.isfinite(bits) & (rng.random(shape) < 0.9), bits, odd)
    return flat


def weight_file(folder, victim, flat):
    path = folder / "agent.safetensors"
    write(path, Card(victim=victim, task=None, action_repeat=2, source="", source_sha256=""), flat)
    return path


def same_weights(got, want):
    assert got.keys() == want.keys()
    for name, array in want.items():
        np.testing.assert_array_equal(got[name].view(np.uint32), array.view(np.uint32))


@st.composite
def victims(draw):
    size = lambda most, least=1: draw(st.integers(least, most))  # noqa: E731
    blocks, decoder_blocks = size(4), size(3)
    dreamer = (agent := draw(st.sampled_from(AGENTS))) == "dreamer"
    depths = (*(size(4) for _ in range(size(2, 0))), decoder_blocks * size(2))
    return replace(
        SMALL, agent=agent, action_size=size(3), stoch=size(4), discrete=size(4), hidden=size(5),
        deter=blocks * decoder_blocks * size(3), units=size(5), blocks=blocks, depths=depths,
        kernel_size=draw(st.sampled_from([1, 3, 5])),
        minres=size(3, 2), dyn_layers=size(2, 0), img_layers=size(3, 0), obs_layers=size(3), actor_layers=size(3),
        critic_layers=size(3), reward_layers=size(2, 0), cont_layers=size(2, 0), bins=2 * size(4) + 1,
        horizon=draw(st.sampled_from([1, 100, 333])), decoder_units=2 * size(4) if dreamer else 0,
        decoder_blocks=decoder_blocks if dreamer else 0,
    )  # fmt: skip


@settings(max_examples=12)
@given(victim=victims(), seed=st.integers(0, 99))
def test_round_trips_are_exact(victim, seed, tmp_path_factory):
    folder, flat = tmp_path_factory.mktemp("round"), random_weights(victim, seed)
    checkpoint = export(weight_file(folder, victim, flat), folder / "latest.pt")
    back = wmjax.convert(checkpoint, folder / "back.safetensors")
    assert read_card(back).victim == victim
    same_weights(load_file(back), flat)


def test_the_same_bytes_again_and_in_another_process(tmp_path):
    source = weight_file(tmp_path, SMALL, random_weights(SMALL))
    outs = [tmp_path / f"{i}.pt" for i in range(3)]
    for out in outs[:2]:
        export(source, out)
    code = "import sys; from wmjax.agents.dreamer.export import export; export(*sys.argv[1:])"
    subprocess.run([sys.executable, "-c", code, source, outs[2]], check=True, env=os.environ | {"PYTHONHASHSEED": "7"})
    assert outs[0].read_bytes() == outs[1].read_bytes() == outs[2].read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hydra", "0.pt", "1.pt", "2.pt", "agent.safetensors"]


# The configuration beside it.


def carded(folder, victim, **more):
    path = folder / "agent.safetensors"
    card = {"task": None, "action_repeat": 2, "source": "", "source_sha256": ""}
    write(path, Card(victim=victim, **card | more), random_weights(victim))
    return path


def leaves(tree, prefix=""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@pytest.mark.parametrize(
    ("task", "spelled"),
    [(None, None), ("dmc_walker_run", "dmc_walker_run"), ("metaworld_door_open", "metaworld_door-open"),
     ("metaworld_reach", "metaworld_reach")],
)  # fmt: skip
def test_an_exported_folder_says_all_itself(task, spelled, tmp_path):
    victim = replace(SMALL, decoder_units=0, decoder_blocks=0)
    source = carded(tmp_path, victim, task=task, action_repeat=4)
    checkpoint = export(source, tmp_path / "new" / "folder" / "latest.pt")
    back = wmjax.convert(checkpoint, tmp_path / "back.safetensors")
    card = read_card(back)
    assert (card.task, card.action_repeat, card.victim) == (spelled, 4, victim)
    same_weights(load_file(back), load_file(source))
    env = read_config(checkpoint).tree["env"]
    assert env.get("task") == spelled
    assert ("task" in env, env.get("camera")) == (task is not None, "corner2" if "metaworld" in str(task) else None)
    assert export(source, checkpoint) == checkpoint  # again


@pytest.mark.parametrize("agent", AGENTS)
def test_the_configuration_is_whole(agent, shared, tmp_path):
    """It has every entry of the trained checkpoint's, of its type, and is read alike by YAML 1.1 and by OmegaConf."""
    decoder = {"decoder_units": 10, "decoder_blocks": 2} if agent == "dreamer" else {}
    victim = replace(SMALL, agent=agent, decoder_units=0, decoder_blocks=0)
    checkpoint = export(carded(tmp_path, replace(victim, **decoder), task="dmc_walker_run"), tmp_path / "latest.pt")
    text = (tmp_path / ".hydra" / "config.yaml").read_text(encoding="utf-8")
    tree = read_config(checkpoint).tree
    assert yaml.safe_load(text) == tree
    assert not any(mark in text for mark in ("${", "&", "!"))
    ours = dict(leaves(tree))
    trained = read_config(shared / "checkpoints" / "dmc_cartpole_balance_r2dreamer_1m" / "latest.pt")
    theirs = {name: trained.find(name).value for name, _ in leaves(trained.tree)}
    assert ours.keys() - theirs.keys() == {
        "model.memory_peak_tracking", "trainer.memory_history_snapshot", "trainer.memory_history_steps",
    }  # fmt: skip
    assert not theirs.keys() - ours.keys()
    for name, value in theirs.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        assert isinstance(ours[name], int | float) if number else type(ours[name]) is type(value), name
    assert tree["model"]["encoder"]["cnn"]["depth"] * 3 == SMALL.depths[0]
    if agent == "dreamerpro":
        assert [tree["model"]["dreamer_pro"][name] for name in ("num_prototypes", "proto_dim")] == [11, 3]


def test_the_trained_folder_comes_back(shared, tmp_path):
    """What its configuration says of the agent, the exported one says, too."""
    name = "dmc_cartpole_balance_r2dreamer_1m"
    export(name, tmp_path / "latest.pt")
    ours, theirs = read_config(tmp_path / "latest.pt"), read_config(shared / "checkpoints" / name / "latest.pt")
    victim = wmjax.load(name)[0]
    for entry, _ in leaves(joined(inference(victim), identity(victim, "", 0))):
        if entry not in ("env.camera", "env.gray"):
            assert ours.find(entry).value == theirs.find(entry).value, entry


def test_a_foreign_configuration_is_not_lost(tmp_path):
    source = carded(tmp_path, SMALL)
    (tmp_path / "run" / ".hydra").mkdir(parents=True)
    config = tmp_path / "run" / ".hydra" / "config.yaml"
    config.write_text("env: {}\nmodel: {}\n")
    refuse(source, tmp_path / "run" / "a.pt", config, "another folder")
    assert config.read_text() == "env: {}\nmodel: {}\n"
    config.unlink()
    os.mkfifo(config)
    refuse(source, tmp_path / "run" / "a.pt", config, "not a regular file")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".hydra"]


def test_nothing_is_written_through_a_link(tmp_path):
    source = carded(tmp_path, SMALL)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    link = tmp_path / "run" / ".hydra"
    link.symlink_to(tmp_path / "elsewhere")
    refuse(source, tmp_path / "run" / "a.pt", link, "is a link")
    (tmp_path / "scratch").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "scratch")  # the user's own folder may be one
    wmjax.export(source, tmp_path / "runs" / "a.pt")
    assert (tmp_path / "scratch" / ".hydra" / "config.yaml").is_file()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_agents_that_the_reference_cannot_build(tmp_path):
    odd = replace(SMALL, agent="dreamer", decoder_units=5)
    refuse(carded(tmp_path, odd), tmp_path / "a.pt", "decoder_units is 5", "even")


def test_the_command_line_needs_no_device(tmp_path):
    """Neither exporting nor converting computes with JAX; what cannot be played is told at once."""
    carded(tmp_path, SMALL, task="metaworld_reach", action_repeat=4)
    code = "from wmjax.cli import main; main()"
    for command, notes in (
        (["export", "agent.safetensors", "-o", "new/latest.pt"], []),
        (["convert", "new/latest.pt", "-o", "back.safetensors"], ["task 'metaworld_reach' cannot be played"]),
        (["convert", "new/latest.pt", "-o", "b.safetensors", "--task", "dmc_cartpole_balance"],
         ["its image_size is 8, that of dmc_cartpole_balance is 64", "its action_repeat is 4, that of "]),
    ):  # fmt: skip
        told = subprocess.run(
            [sys.executable, "-c", code, *command], cwd=tmp_path, env=os.environ | {"JAX_PLATFORMS": "cuda"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert told.stdout == f"{command[3]}\n"
        lines = told.stderr.splitlines()
        assert len(lines) == len(notes)
        for line, note in zip(lines, notes, strict=True):
            assert line.startswith("note: `wmjax run` cannot play it yet: ")
            assert note in line


# What cannot be exported.


def refuse(source, out, *words, **arguments):
    with pytest.raises(InputError) as error:
        export(source, out, **arguments)
    assert "\n" not in str(error.value)
    for word in words:
        assert str(word) in str(error.value)
    assert not os.path.isfile(out)


@pytest.mark.parametrize("agent", AGENTS)
def test_weights_alone_are_no_checkpoint(agent, tmp_path):
    victim = replace(SMALL, agent=agent)
    parts = sorted({name.split("/")[0] for name in training_shapes(victim)})
    flat = random_weights(victim)
    inference = {name: x for name, x in flat.items() if name in template(victim)}
    refuse(weight_file(tmp_path, victim, inference), tmp_path / "a.pt", f"agent.safetensors: lacks {', '.join(parts)};")
    for part in parts:
        some = {name: x for name, x in flat.items() if name.split("/")[0] != part}
        refuse(weight_file(tmp_path, victim, some), tmp_path / "a.pt", f"lacks {part};")


@pytest.mark.parametrize("agent", AGENTS)
def test_training_parts_of_the_wrong_shape_are_named(agent, tmp_path):
    victim = replace(SMALL, agent=agent)
    flat = random_weights(victim)
    for name in training_shapes(victim):
        for wrong in (flat[name][None], flat[name][..., :-1]):
            if name == "prototypes/kernel" and wrong.ndim == 2:
                continue  # how many there are is free
            source = weight_file(tmp_path, victim, flat | {name: np.ascontiguousarray(wrong)})
            # This bias says how wide all projections are: where it is wrong, it is the others that do not fit.
            refuse(source, tmp_path / "a.pt", "agent.safetensors", "expected", name if name != "obs_proj/bias" else "")


def test_parts_of_another_agent_are_not_dropped(tmp_path):
    victim = replace(SMALL, agent="infonce")
    flat = random_weights(victim) | {"prototypes/kernel": np.zeros((3, 4), np.float32)}
    refuse(weight_file(tmp_path, victim, flat), tmp_path / "a.pt", "infonce", "no place for prototypes/kernel")


def test_an_optimizer_of_another_agent(tmp_path):
    flat = random_weights(SMALL)
    source = weight_file(tmp_path, SMALL, flat)
    trained = {name: x for name, x in flat.items() if updated(name)}
    good = unflatten_dict(trained, sep="/")
    wrong = unflatten_dict(trained | {"actor/out/bias": np.zeros(9)}, sep="/")
    whole = unflatten_dict(flat, sep="/")
    for mu, nu, name in ((good, wrong, "nu"), (wrong, good, "mu"), (whole, good, "mu"), (good, {}, "nu")):
        optimizer = Optimizer(count=1, mu=mu, nu=nu)
        refuse(source, tmp_path / "a.pt", f"optimizer.{name}", "trained weights", optimizer=optimizer)


def test_where_from_and_where_to(tmp_path, monkeypatch):
    source = weight_file(tmp_path, SMALL, random_weights(SMALL))
    refuse(source, tmp_path / "a.safetensors", "must end in .pt")
    refuse(source, source / "a.pt", source, "cannot be written")
    (tmp_path / "folder.pt").mkdir()
    refuse(source, tmp_path / "folder.pt", "folder.pt", "is a folder")
    refuse("dmc_walker_fly", tmp_path / "a.pt", "dmc_walker_fly", "known: dmc_cartpole_balance_")
    refuse(tmp_path / "none.safetensors", tmp_path / "a.pt", "no such file")
    monkeypatch.setitem(sys.modules, "torch", None)
    refuse(source, tmp_path / "a.pt", "pip install 'wmjax[convert]'")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent.safetensors", "folder.pt"]
