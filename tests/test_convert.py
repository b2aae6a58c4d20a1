"""PyTorch checkpoints of any size become the same agents; anything else is refused in one line, and nothing happens."""

import copy
import os
import pickle
import shutil
import subprocess
import sys
import time
import zipfile
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="converting a PyTorch checkpoint needs torch")

import yaml  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

import wmjax  # noqa: E402
from benchmarks import torch_agent, torch_attacks  # noqa: E402
from wmjax.agents.base import Belief  # noqa: E402
from wmjax.agents.dreamer import AGENTS, Dreamer  # noqa: E402
from wmjax.agents.dreamer import convert as convert_module  # noqa: E402
from wmjax.agents.dreamer.checkpoint import read_state  # noqa: E402
from wmjax.agents.dreamer.config_check import Hints, check, complete  # noqa: E402
from wmjax.agents.dreamer.hydra import Config, read_config  # noqa: E402
from wmjax.agents.dreamer.reference_config import spelled, training  # noqa: E402
from wmjax.agents.dreamer.torch_layout import weights  # noqa: E402
from wmjax.agents.weights import card_text, read_card  # noqa: E402
from wmjax.attacks import Attack, Draw, Frame, attacker_loss, threat  # noqa: E402
from wmjax.core.errors import InputError  # noqa: E402

SMALL = torch_agent.Sizes("r2dreamer", deter=12, blocks=3, hidden=6, stoch=3, discrete=2, depth=1, units=5, action=2)
VICTIM = Dreamer(
    agent="r2dreamer", action_size=2, stoch=3, discrete=2, deter=12, hidden=6, units=5, blocks=3, depths=(2, 3, 4, 4),
    kernel_size=5, minres=4, dyn_layers=1, img_layers=2, obs_layers=1, actor_layers=3, critic_layers=3,
    reward_layers=1, cont_layers=1, bins=255,
)  # fmt: skip
ODD = [
    torch_agent.Sizes("dreamer", deter=60, blocks=6, hidden=20, stoch=5, discrete=3, depth=3, units=28, action=7),
    torch_agent.Sizes("r2dreamer", deter=36, blocks=4, hidden=24, stoch=7, discrete=5, depth=3, units=16, action=1),
    torch_agent.Sizes("infonce", deter=50, blocks=5, hidden=17, stoch=1, discrete=9, depth=2, units=33, action=3),
    torch_agent.Sizes("dreamerpro", deter=21, blocks=1, hidden=8, stoch=11, discrete=2, depth=1, units=12, action=2),
    torch_agent.Sizes("dreamer", deter=40, blocks=20, hidden=12, stoch=3, discrete=7, depth=5, units=9, action=1),
]


def state_dict(sizes=SMALL, seed=0):
    return torch_agent.checkpoint_state_dict(torch_agent.random_agent(sizes, seed))


def save(path, state, **others):
    torch.save({"agent_state_dict": state, "optims_state_dict": {"_optimizer": {"state": {}}}, **others}, path)
    return path


@pytest.fixture
def checkpoint(tmp_path):
    return save(tmp_path / "latest.pt", state_dict())


def everything(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def refuse(source, *words, out=None, stoch=3, agent="r2dreamer", **hints):
    """Assert that converting fails in one line that has all `words` in it, and leaves no trace."""
    before = everything(source.parent)
    start = time.monotonic()
    with pytest.raises(InputError) as error:
        wmjax.convert(source, out or source.parent / "out.safetensors", stoch=stoch, agent=agent, **hints)
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 700
    for word in words:
        assert str(word) in message, message
    assert everything(source.parent) == before
    assert time.monotonic() - start < 20


# The same agent, at sizes that nobody told the converter.


def tensor(x):
    return torch.from_numpy(np.array(x))


@pytest.mark.parametrize("sizes", ODD, ids=lambda sizes: f"{sizes.agent}-{sizes.deter}")
def test_any_sizes(sizes, tmp_path, agrees):
    original = torch_agent.random_agent(sizes, seed=1)
    save(tmp_path / "latest.pt", torch_agent.checkpoint_state_dict(original))
    out = wmjax.convert(tmp_path / "latest.pt", tmp_path / "a.safetensors", stoch=sizes.stoch, agent=sizes.agent)
    victim, params = wmjax.load(out)
    assert (victim.action_size, victim.latent_shape) == (sizes.action, (sizes.stoch, sizes.discrete))
    assert (victim.deter, victim.hidden, victim.units, victim.blocks) == (
        sizes.deter, sizes.hidden, sizes.units, sizes.blocks,
    )  # fmt: skip
    assert (victim.depths, victim.image_size, victim.agent) == (sizes.channels, 64, sizes.agent)

    rng, batch = np.random.default_rng(2), 4
    normal = lambda *shape: rng.standard_normal((batch, *shape)).astype(np.float32)  # noqa: E731
    latent = victim.latent_shape
    stoch = np.eye(sizes.discrete, dtype=np.float32)[rng.integers(sizes.discrete, size=(batch, sizes.stoch))]
    deter, action, gumbel, other = normal(sizes.deter), 2 * normal(sizes.action), *rng.gumbel(size=(2, batch, *latent))
    deter, gumbel, other = np.tanh(deter), gumbel.astype(np.float32), other.astype(np.float32)
    image = rng.uniform(size=(batch, 64, 64, 3)).astype(np.float32)

    @jax.jit
    def ours(params):
        prediction = victim.predict(params, Belief(stoch, deter), action)
        embedding = victim.embed(params, image)
        belief, internals = victim.update(params, prediction, embedding, gumbel)
        heads = victim.slow_value(params, belief).mean(), victim.reward(params, belief).mean()
        cont = victim.cont(params, belief).logit
        decoded = victim.decode(params, belief) if victim.agent == "dreamer" else None
        attack, hunt = Attack(), threat(list(torch_attacks.OBJECTIVES) * batch, [0.1] * 5 * batch)
        wide = lambda tree: jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x), 5, axis=0), tree)  # noqa: E731
        drawn = Draw(jnp.zeros((5 * batch, 64, 64, 3)), wide(other), None)
        frame = wide(Frame(image, embedding, prediction, gumbel))
        loss = attacker_loss(attack, victim, params, frame, drawn, hunt)
        losses, pullback = jax.vjp(loss, frame.image)
        return prediction, embedding, internals, *heads, cont, decoded, losses, pullback(jnp.ones_like(losses))[0]

    prediction, embedding, internals, slow_value, reward, cont, decoded, losses, gradients = ours(params)
    theirs_deter, prior = original.predict(tensor(stoch), tensor(deter), tensor(action))
    theirs_embedding = original.encoder(tensor(image))
    post = original.rssm.posterior(theirs_deter, theirs_embedding)
    drawn = torch_agent.draw(post, tensor(gumbel))
    feature = torch_agent.feature(drawn, theirs_deter)
    mean, std = original.policy(feature)
    agrees("embedding", embedding, theirs_embedding)
    agrees("deter", prediction.deter, theirs_deter)
    agrees("prior", prediction.prior_logits, prior)
    agrees("posterior", internals.post_logits, post)
    np.testing.assert_array_equal(internals.stoch, drawn)
    agrees("mean", internals.policy.mean, mean)
    agrees("std", internals.policy.std, std)
    agrees("value", internals.value, torch_agent.two_hot_mean(original.value(feature)))
    agrees("slow value", slow_value, torch_agent.two_hot_mean(original._slow_value(feature)))
    agrees("reward", reward, torch_agent.two_hot_mean(original.reward(feature)))
    agrees("cont", cont, original.cont(feature)[:, 0])
    if sizes.agent == "dreamer":
        agrees("decoded", decoded, original.decoder._cnn(drawn, theirs_deter))
    step = torch_attacks.Step(theirs_deter, prior, tensor(other), drawn)
    for row, name in enumerate(torch_attacks.OBJECTIVES):
        loss, gradient = torch_attacks.loss_and_grad(torch_attacks.OBJECTIVES[name], original, tensor(image), step)
        agrees(f"{name} loss", np.asarray(losses)[row::5], loss, 1e-4)
        agrees(f"{name} gradient", np.asarray(gradients)[row::5], gradient, 1e-4)


# What the file holds.


@pytest.mark.parametrize("agent", AGENTS)
def test_nothing_is_lost(agent, tmp_path):
    """Every live tensor is in the file bit for bit; only the `_frozen_*` aliases are not."""
    sizes = replace(SMALL, agent=agent, depth=3)
    state = state_dict(sizes)
    out = wmjax.convert(save(tmp_path / "latest.pt", state), tmp_path / "a.safetensors", stoch=3, agent=agent)
    victim, _ = wmjax.load(out)
    kept, parts = load_file(out), {}
    for weight in weights(victim):
        parts.setdefault(weight.key, []).append(kept.pop(weight.path).transpose(np.argsort(weight.axes)))
    assert not kept
    assert parts.keys() == {key for key in state if not key.startswith("_frozen_")}
    for key, pieces in parts.items():
        np.testing.assert_array_equal(np.concatenate(pieces, axis=min(1, pieces[0].ndim - 1)), state[key].numpy())


def test_the_same_bytes_again_and_in_another_process(checkpoint, tmp_path):
    outs = [tmp_path / f"{i}.safetensors" for i in range(3)]
    for out in outs[:2]:
        wmjax.convert(checkpoint, out, stoch=3, agent="infonce", task="dmc_walker_walk")
    code = "import sys, wmjax; wmjax.convert(*sys.argv[1:], stoch=3, agent='infonce', task='dmc_walker_walk')"
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", code, checkpoint, outs[2]], check=True, env=environment)
    assert outs[0].read_bytes() == outs[1].read_bytes() == outs[2].read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [*(out.name for out in outs), "latest.pt"]


def test_card_says_where_it_came_from(checkpoint, tmp_path):
    out = tmp_path / "a.safetensors"
    wmjax.convert(checkpoint, out, stoch=3, agent="infonce", task="dmc_walker_walk", action_repeat=4)
    card = read_card(out)
    assert (card.task, card.action_repeat, card.source) == ("dmc_walker_walk", 4, "latest.pt")
    sha = subprocess.run(["sha256sum", checkpoint], check=True, capture_output=True, text=True).stdout.split()[0]
    assert card.source_sha256 == sha
    assert card.converter == wmjax.__version__
    assert card.victim.agent == "infonce"


def test_trained_checkpoint_needs_no_flags(shared, tmp_path):
    source = shared / "checkpoints" / "dmc_cartpole_balance_r2dreamer_1m" / "latest.pt"
    out = wmjax.convert(source, tmp_path / "a.safetensors")
    card = read_card(out)
    assert (card.task, card.action_repeat) == ("dmc_cartpole_balance", 2)
    victim = card.victim
    assert (victim.agent, victim.stoch, victim.discrete, victim.deter) == ("r2dreamer", 32, 8, 512)
    assert (victim.hidden, victim.units, victim.blocks, victim.depths) == (64, 64, 8, (16, 24, 32, 32))
    assert victim.action_size == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(dtype, tmp_path):
    state = OrderedDict((key, value.to(dtype)) for key, value in state_dict().items())
    out = wmjax.convert(save(tmp_path / "latest.pt", state), tmp_path / "a.safetensors", stoch=3, agent="infonce")
    kept = load_file(out)["actor/linear0/kernel"]
    np.testing.assert_array_equal(kept, state["actor.mlp.layers.actor_linear0.weight"].float().numpy().T)


def test_an_existing_file_is_replaced(checkpoint, tmp_path):
    out = tmp_path / "a.safetensors"
    out.write_text("old")
    wmjax.convert(checkpoint, out, stoch=3, agent="infonce")
    assert wmjax.load(out)[0].agent == "infonce"


# Files that are no checkpoints.


@pytest.mark.parametrize("content", [b"", b"hello\n" * 1000, b"PK\x03\x04", bytes(range(256)) * 400])
def test_foreign_bytes(content, tmp_path):
    (tmp_path / "latest.pt").write_bytes(content)
    refuse(tmp_path / "latest.pt", "latest.pt", "not a checkpoint")


def test_random_bytes(tmp_path):
    for seed in range(5):
        (tmp_path / "latest.pt").write_bytes(np.random.default_rng(seed).bytes(5000))
        refuse(tmp_path / "latest.pt", "not a checkpoint")


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, 0.999])
def test_truncated(share, checkpoint):
    content = checkpoint.read_bytes()
    checkpoint.write_bytes(content[: int(share * len(content))])
    refuse(checkpoint, "not a checkpoint")


def test_damaged(checkpoint):
    """A flipped byte anywhere either shows, or only changes a number: nothing but InputError comes out."""
    content = bytearray(checkpoint.read_bytes())
    refused = 0
    for position in np.random.default_rng(0).integers(len(content), size=40):
        damaged = content.copy()
        damaged[position] ^= 0xFF
        checkpoint.write_bytes(damaged)
        try:
            wmjax.convert(checkpoint, checkpoint.with_name("out.safetensors"), stoch=3, agent="infonce")
        except InputError:
            refused += 1
    assert refused > 5


def test_missing_file_and_folder(tmp_path):
    refuse(tmp_path / "none.pt", "none.pt", "no such file")
    (tmp_path / "folder.pt").mkdir()
    refuse(tmp_path / "folder.pt", "folder.pt", "is a folder")
    refuse(tmp_path / ("x" * 300), "name too long")


def test_foreign_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "latest.pt", "w") as archive:
        archive.writestr("notes/readme.txt", "hello")
    refuse(tmp_path / "latest.pt", "not a checkpoint", "data.pkl")


def test_old_torch_format(tmp_path):
    torch.save({"agent_state_dict": state_dict()}, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    refuse(tmp_path / "a.pt", "not a checkpoint", "not a zip file")


class Call:
    """A pickle that calls a function when it is opened."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def repack(source, target, pickled, compression=zipfile.ZIP_STORED):
    """Copy a torch file with another pickle in it."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, pickled if name.endswith("data.pkl") else old.read(name))
    return target


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"agent_state_dict": {"a": x}}])
def test_code_is_not_run(wrap, protocol, checkpoint, tmp_path):
    marker = tmp_path / "marker"
    payload = pickle.dumps(wrap(Call(os.system, f"touch {marker}")), protocol)
    (tmp_path / "bare.pt").write_bytes(payload)
    refuse(tmp_path / "bare.pt", "not a checkpoint")
    refuse(repack(checkpoint, tmp_path / "zipped.pt", payload), "no code")
    torch.save(wrap(Call(os.system, f"touch {marker}")), tmp_path / "saved.pt")
    refuse(tmp_path / "saved.pt", "no code", "system")
    assert not marker.exists()
    pickle.loads(payload)
    assert marker.exists()


@pytest.mark.parametrize(
    "bomb",
    [Call(bytearray, 1 << 33), Call(torch.empty, 1 << 40), Call(torch._utils._rebuild_meta_tensor_no_storage,
        torch.float32, (1 << 40,), (1,), False)],
)  # fmt: skip
def test_memory_is_not_claimed(bomb, checkpoint, tmp_path):
    refuse(repack(checkpoint, tmp_path / "bomb.pt", pickle.dumps({"agent_state_dict": {"a": bomb}}, 2)), "it names")


def test_packed_archives_are_refused(checkpoint, tmp_path):
    with zipfile.ZipFile(checkpoint) as archive:
        pickled = archive.read("latest/data.pkl")
    refuse(repack(checkpoint, tmp_path / "packed.pt", pickled, zipfile.ZIP_DEFLATED), "packed entries")


def test_storages_of_another_size_are_refused(checkpoint, tmp_path):
    """A pickle that claims more numbers than its storage holds."""
    with zipfile.ZipFile(checkpoint) as archive:
        pickled = archive.read("latest/data.pkl")
    assert pickled.count(b"cpuq") == 1
    at = pickled.index(b"K", pickled.index(b"cpuq"))
    claimed = pickled[:at] + b"J" + (1 << 30).to_bytes(4, "little") + pickled[at + 2 :]
    refuse(repack(checkpoint, tmp_path / "claims.pt", claimed), "not a checkpoint")


# Torch files that hold something else.


@pytest.mark.parametrize(
    "content",
    [[1, 2], {}, {"agent_state_dict": {}}, {"agent_state_dict": [1]}, {"optims_state_dict": {}},
     torch.ones(3), 3, None, "text", {"model": {"a": 3}}, {"agent_state_dict": {}, "net": {"a": torch.ones(3)}}],
    ids=repr,
)  # fmt: skip
def test_other_content(content, tmp_path):
    torch.save(content, tmp_path / "latest.pt")
    refuse(tmp_path / "latest.pt", "no agent_state_dict")


@pytest.mark.parametrize("entry", [("a", 3), (3, torch.ones(2)), ("a", None), ("a", {"b": torch.ones(2)})])
def test_entries_that_are_no_tensors(entry, tmp_path):
    refuse(save(tmp_path / "latest.pt", state_dict() | dict([entry])), "not a named tensor")


def test_another_network(tmp_path):
    refuse(save(tmp_path / "latest.pt", torch.nn.Linear(3, 4).state_dict()), "not an agent")
    refuse(save(tmp_path / "latest.pt", {"prj.w.weight": torch.ones(3, 4)}), "not an agent", "no tensor rssm")


def test_missing_keys_are_listed(tmp_path):
    gone = ["rssm._img_net.img_net_1.bias", "_slow_value.last.weight", "return_ema.ema_vals"]
    state = state_dict()
    for key in gone:
        del state[key]
    refuse(save(tmp_path / "latest.pt", state), "missing keys", *gone)


def test_unknown_keys_are_listed(tmp_path):
    more = {"rssm.extra.weight": torch.ones(3), "tail": torch.ones(2)}
    refuse(save(tmp_path / "latest.pt", state_dict() | more), "unknown keys", *more)
    many = {f"more_{i:03}": torch.ones(1) for i in range(500)}
    refuse(save(tmp_path / "latest.pt", state_dict() | many), "unknown keys", "more_000", "488 more")


def test_every_single_missing_key_is_noticed(tmp_path):
    complete = state_dict(replace(SMALL, agent="dreamer", depth=3))
    for key in complete:
        state = OrderedDict((name, value) for name, value in complete.items() if name != key)
        save(tmp_path / "latest.pt", state)
        if key.startswith("_frozen_"):
            continue
        with pytest.raises(InputError):
            wmjax.convert(tmp_path / "latest.pt", tmp_path / "out.safetensors", stoch=3, agent="dreamer")
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("change", [lambda x: x[None], lambda x: x[..., :-1], lambda x: x[:1]])
def test_every_wrong_shape_is_noticed(change, tmp_path):
    """Of every tensor that inference reads."""
    complete = state_dict(replace(SMALL, agent="dreamer", depth=3))
    for key in complete:
        changed = change(complete[key])
        if key.startswith("_frozen_") or key.startswith("return_ema") or changed.shape == complete[key].shape:
            continue
        save(tmp_path / "latest.pt", complete | {key: changed.clone()})
        with pytest.raises(InputError) as error:
            wmjax.convert(tmp_path / "latest.pt", tmp_path / "out.safetensors", stoch=3, agent="dreamer")
        assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["latest.pt"]


def test_wrong_shape_is_named(tmp_path):
    key = "rssm._img_net.img_net_1.weight"
    refuse(save(tmp_path / "latest.pt", state_dict() | {key: torch.ones(6)}), key, "1 axes, expected 2")
    refuse(save(tmp_path / "latest.pt", state_dict() | {key: torch.ones(6, 7)}), "[7, 6]", "expected float32[6, 6]")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e39])
def test_numbers_must_be_finite(value, tmp_path):
    state = state_dict()
    key = "actor.last.bias"
    state[key] = torch.full_like(state[key], value, dtype=torch.float64)
    refuse(save(tmp_path / "latest.pt", state), "actor/out/bias", "NaN or infinite")


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.to(torch.int32),
        lambda x: x.to(torch.bool),
        lambda x: x.to(torch.complex64),
        lambda x: torch.ones(()).expand(1 << 20, 1 << 20),
        lambda x: torch.ones(1, 1).expand(*x.shape),
    ],
    ids=["int", "bool", "complex", "giant", "expanded"],
)
def test_tensors_must_be_plain(make, tmp_path):
    state = state_dict()
    key = "actor.last.weight"
    state[key] = make(state[key])
    refuse(save(tmp_path / "latest.pt", state), key, "not a plain floating-point tensor")


def test_sparse_tensors_are_refused(tmp_path):
    state = state_dict()
    state["actor.last.weight"] = state["actor.last.weight"].to_sparse()
    refuse(save(tmp_path / "latest.pt", state), "not a checkpoint", "sparse")


def test_discrete_actions_are_not_supported(tmp_path):
    state = state_dict() | {"actor.last.weight": torch.ones(3, 5), "actor.last.bias": torch.ones(3)}
    refuse(save(tmp_path / "latest.pt", state), "only continuous actions")


def test_layers_without_end(tmp_path):
    state = state_dict()
    for i in range(3, 3000):
        for part in ("linear{}.weight", "linear{}.bias", "norm{}.weight"):
            state[f"actor.mlp.layers.actor_{part.format(i)}"] = torch.ones(1)
    refuse(save(tmp_path / "latest.pt", state), "do not fit together")


# Layouts of real folders.


def same_but_for_the_name(out, checkpoint, tmp_path):
    """Assert that a file has the weights and sizes that the plain checkpoint gives; return its card."""
    plain = wmjax.convert(checkpoint, tmp_path / "plain.safetensors", stoch=3, agent="infonce")
    assert read_card(plain).victim == read_card(out).victim
    for name, array in load_file(plain).items():
        np.testing.assert_array_equal(load_file(out)[name], array)
    return read_card(out)


@pytest.mark.parametrize(
    "rename",
    [
        lambda key: f"module.{key}",
        lambda key: f"_orig_mod.{key}",
        lambda key: f"module._orig_mod.{key}",
        lambda key: key.replace("rssm.", "rssm._orig_mod.").replace("encoder.", "encoder.module."),
        lambda key: key.replace("encoder.encoders.0.", "encoder._orig_mod.encoders.0._orig_mod."),
    ],
)
def test_wrapped_modules(rename, checkpoint, tmp_path):
    state = {rename(key): value for key, value in state_dict().items()}
    out = wmjax.convert(save(tmp_path / "w.pt", state), tmp_path / "w.safetensors", stoch=3, agent="infonce")
    same_but_for_the_name(out, checkpoint, tmp_path)


def test_wrappers_that_hide_two_tensors(tmp_path):
    for twin in ("actor.last.module.bias", "_orig_mod.actor.last.bias"):
        state = state_dict() | {twin: torch.ones(4)}
        refuse(save(tmp_path / "latest.pt", state), twin, "the same tensor, actor.last.bias")


@pytest.mark.parametrize("holder", ["model", "state_dict", "agent", None])
def test_where_the_state_is(holder, checkpoint, tmp_path):
    state = state_dict()
    content = state if holder is None else {holder: state, "step": 3, "optimizer": {"state": {}}}
    torch.save(content, tmp_path / "s.pt")
    out = wmjax.convert(tmp_path / "s.pt", tmp_path / "s.safetensors", stoch=3, agent="infonce")
    same_but_for_the_name(out, checkpoint, tmp_path)


def test_more_than_one_state(tmp_path):
    torch.save({"model": state_dict(), "agent": state_dict()}, tmp_path / "latest.pt")
    refuse(tmp_path / "latest.pt", "no agent_state_dict", "tensors in agent, model")
    torch.save({"model": state_dict(), **state_dict()}, tmp_path / "latest.pt")
    refuse(tmp_path / "latest.pt", "tensors in model, the file itself")
    save(tmp_path / "latest.pt", state_dict(), model=state_dict(seed=1))
    wmjax.convert(tmp_path / "latest.pt", tmp_path / "a.safetensors", stoch=3, agent="infonce")


EXTRA = {"aux.head.weight": torch.ones(3), "aux.steps": torch.ones(2, dtype=torch.int64), "rssm.more": torch.ones(2)}


def test_modules_of_a_fork(checkpoint, tmp_path):
    forked = save(tmp_path / "f.pt", state_dict() | EXTRA)
    drops = "--drop aux --drop rssm.more"
    refuse(save(tmp_path / "g.pt", state_dict() | {**EXTRA, "aux.steps": torch.ones(2)}), "unknown keys", *EXTRA, drops)
    for given in (["aux", "rssm.more"], ["module.aux", "rssm.more"], ["aux.head", "aux.steps", "rssm.more"]):
        out = wmjax.convert(forked, tmp_path / "f.safetensors", stoch=3, agent="infonce", drop=given)
        card = same_but_for_the_name(out, checkpoint, tmp_path)
        assert sum(card.dropped.values()) == 3
    assert card.dropped == {"aux.head": 1, "aux.steps": 1, "rssm.more": 1}
    assert "dropped" not in card_text(read_card(tmp_path / "plain.safetensors"))
    refuse(forked, "unknown keys", "rssm.more", "--drop rssm.more", drop=["aux"])


@pytest.mark.parametrize("prefix", ["au", "aux.", "", ".", "aux.head.weight.x", "*", "module"])
def test_prefixes_that_match_nothing(prefix, tmp_path):
    forked = save(tmp_path / "f.pt", state_dict() | EXTRA)
    refuse(forked, f"drop is {prefix!r}", "no tensor of", "f.pt", drop=[prefix, "rssm.more"])


def test_what_an_agent_needs_is_not_dropped(tmp_path):
    """Not even a last layer, without which a smaller agent would be left."""
    dreamer = state_dict(replace(SMALL, agent="dreamer", depth=3))
    save(tmp_path / "latest.pt", dreamer)
    for key in dreamer:
        if not key.startswith("_frozen_"):
            for prefix in (key, key.rsplit(".", 1)[0], key.split(".")[0]):
                drop = [prefix]
                words = [] if prefix == "decoder" else ["drop is", prefix, "needs"]
                refuse(tmp_path / "latest.pt", *words, drop=drop, agent="dreamer")
    layer = ["actor.mlp.layers.actor_linear2", "actor.mlp.layers.actor_norm2"]
    refuse(tmp_path / "latest.pt", "drop is", "the agent needs", drop=layer, agent="dreamer")


def test_a_decoder_beside_a_projector(checkpoint, tmp_path):
    """A fork may learn to draw, too: without its decoder it is the agent that it was."""
    drawing = {"decoder.a.weight": torch.ones(3)}
    forked = save(tmp_path / "f.pt", state_dict() | drawing)
    out = wmjax.convert(forked, tmp_path / "f.safetensors", stoch=3, agent="infonce", drop=["decoder"])
    assert same_but_for_the_name(out, checkpoint, tmp_path).dropped == {"decoder": 1}


def test_the_configuration_may_be_one_folder_up(tmp_path, monkeypatch):
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    checkpoint = save(folder / "step_5.pt", state_dict())
    refuse(checkpoint, "say which with --agent", folder / ".hydra", tmp_path / "run" / ".hydra", agent=None)
    refuse(checkpoint, "--stoch", folder / ".hydra", tmp_path / "run" / ".hydra", stoch=None)
    beside(folder, config())
    for given in (checkpoint, "step_5.pt", "../checkpoints/step_5.pt"):
        monkeypatch.chdir(folder)
        card = read_card(wmjax.convert(given, tmp_path / "a.safetensors"))
        assert (card.task, card.victim.stoch, card.victim.agent) == ("dmc_hopper_stand", 3, "infonce")
    beside(checkpoint, config(env__task="dmc_walker_run"))  # the nearer one
    assert read_card(wmjax.convert(checkpoint, tmp_path / "a.safetensors")).task == "dmc_walker_run"
    beside(checkpoint, config(model__rssm__stoch=None))
    refuse(checkpoint, "stoch is not given", folder / ".hydra" / "config.yaml does not tell", stoch=None, agent=None)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere")])
def test_configurations_that_cannot_be_read(make, checkpoint):
    (checkpoint.parent / ".hydra").mkdir()
    make(checkpoint.parent / ".hydra" / "config.yaml")
    with pytest.raises(InputError, match=r"config\.yaml"):
        wmjax.convert(checkpoint, checkpoint.parent / "out.safetensors", stoch=3, agent="infonce")


def test_names_of_files_in_any_language(tmp_path):
    """Where the system's encoding is not UTF-8, too."""
    folder = tmp_path / "läufe"
    folder.mkdir()
    checkpoint = save(folder / "größe.pt", state_dict())
    beside(checkpoint, config(note="größe"))
    code = "import sys, wmjax; print(len(wmjax.load(wmjax.convert(*sys.argv[1:]))))"
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", code, checkpoint, folder / "öl.safetensors"]
    subprocess.run(command, check=True, env=environment)


# What the tensors do not tell.


def test_stoch(checkpoint):
    refuse(checkpoint, "stoch is not given", "6 latent units", "--stoch", stoch=None)
    refuse(checkpoint, "stoch is 4", "must divide", "6 latent units", stoch=4)
    for wrong in (0, -3, True, 3.0, "3"):
        refuse(checkpoint, f"stoch is {wrong!r}", "whole number from 1", stoch=wrong)


def test_action_repeat(checkpoint):
    for wrong in (0, -1, True, 2.5, 101):
        refuse(checkpoint, f"action_repeat is {wrong!r}", "whole number from 1 to 100", action_repeat=wrong)


def test_task(checkpoint, tmp_path):
    for wrong in ("", "walker_walk", "Dmc_a", 3):
        refuse(checkpoint, f"task is {wrong!r}", "dmc_, metaworld_, atari_", task=wrong)
    for wrong in ("dmc_", "dmc_Walker", "dmc_a/b", "dmc_a\n", "dmc_a-b", f"dmc_{'a' * 81}", "atari_\x1b"):
        refuse(checkpoint, f"task is {wrong!r}"[:80], "come characters of", task=wrong)


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ("dmc_ball_in_cup_catch", "dmc_ball_in_cup_catch"),
        ("metaworld_door-open", "metaworld_door-open"),
        ("metaworld_door_open", "metaworld_door-open"),
        ("metaworld_peg-insert_side", "metaworld_peg-insert-side"),
        ("atari_pong", "atari_pong"),
        ("crafter_reward", "crafter_reward"),
        ("memorymaze_9x9", "memorymaze_9x9"),
        ("isaaclab_Isaac-Cartpole-v0", "isaaclab_Isaac-Cartpole-v0"),
    ],
)
def test_spellings_of_the_reference(told, kept, checkpoint, tmp_path):
    out = tmp_path / "a.safetensors"
    assert read_card(wmjax.convert(checkpoint, out, stoch=3, agent="infonce", task=told)).task == kept
    assert read_card(wmjax.convert(beside(checkpoint, config(env__task=told)), out)).task == kept


def test_agent(checkpoint, tmp_path):
    refuse(checkpoint, "r2dreamer and infonce", "--agent", agent=None)
    refuse(checkpoint, "agent is 'dreamer'", "r2dreamer or infonce", agent="dreamer")
    refuse(checkpoint, "unknown agent 'Dreamer4'", *AGENTS, agent="Dreamer4")
    other = save(tmp_path / "d.pt", state_dict(replace(SMALL, agent="dreamerpro")))
    refuse(other, "agent is 'infonce'", "dreamerpro", agent="infonce")
    assert read_card(wmjax.convert(other, tmp_path / "d.safetensors", stoch=3)).victim.agent == "dreamerpro"


def test_where_to(checkpoint, tmp_path):
    refuse(checkpoint, "a.pt", "must end in .safetensors", out=tmp_path / "a.pt")
    refuse(checkpoint, "must end in .safetensors", out=tmp_path / "a")
    refuse(checkpoint, "no folder", out=tmp_path / "none" / "a.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    refuse(checkpoint, "is a folder", out=tmp_path / "folder.safetensors")
    same = checkpoint.rename(tmp_path / "a.safetensors")
    refuse(same, "is the checkpoint itself", out=same)
    (tmp_path / "link.safetensors").symlink_to(same)
    refuse(same, "is the checkpoint itself", out=tmp_path / "link.safetensors")
    refuse(same, "name too long", out=tmp_path / f"{'x' * 300}.safetensors")


# The config beside it.


def config(**changes):
    """A resolved config in the manner of the training code; `changes` use __ for dots, None deletes."""
    tree = {
        "env": {"task": "dmc_hopper_stand", "action_repeat": 2, "size": [64, 64]},
        "model": {
            "rep_loss": "infonce",
            "act": "SiLU",
            "norm": True,
            "deter": 12,
            "hidden": 6,
            "discrete": 2,
            "units": 5,
            "depth": 1,
            "rssm": {"stoch": 3, "deter": "${model.deter}", "blocks": 3, "unimix_ratio": 0.01, "act": "${model.act}"},
            "encoder": {"cnn": {"kernel_size": 5, "minres": 4, "depth": "${model.depth}", "mults": [2, 3, 4, 4]}},
            "actor": {"layers": 3, "dist": {"cont": {"name": "bounded_normal", "min_std": 0.1, "max_std": 1.0}}},
            "critic": {"layers": 3, "dist": {"name": "symexp_twohot", "bin_num": 255}},
        },
        "seed": "${now:%H}",
    }
    for name, value in changes.items():
        *sections, last = name.split("__")
        branch = tree
        for section in sections:
            branch = branch[section]
        if value is None:
            del branch[last]
        else:
            branch[last] = value
    return yaml.safe_dump(tree)


def beside(checkpoint, text):
    folder = checkpoint.parent / ".hydra"
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return checkpoint


def test_config_is_read(checkpoint, tmp_path):
    card = read_card(wmjax.convert(beside(checkpoint, config()), tmp_path / "a.safetensors"))
    assert (card.task, card.action_repeat) == ("dmc_hopper_stand", 2)
    assert (card.victim.agent, card.victim.stoch) == ("infonce", 3)
    out = wmjax.convert(checkpoint, tmp_path / "a.safetensors", task="dmc_walker_run", action_repeat=1)
    assert (read_card(out).task, read_card(out).action_repeat) == ("dmc_walker_run", 1)


def test_references_are_followed(checkpoint, tmp_path):
    for reference in ("${top.groups}", "${.blocks}", "${..rssm.blocks}", "${...top.groups}", "${top.chain}"):
        text = config(model__rssm__stoch=reference, top={"groups": 3, "chain": "${.groups}"})
        assert read_card(wmjax.convert(beside(checkpoint, text), tmp_path / "a.safetensors")).victim.stoch == 3
    text = config(model__rssm="${whole}", whole={"stoch": 3, "blocks": "${.stoch}", "act": "${model.act}"})
    assert read_card(wmjax.convert(beside(checkpoint, text), tmp_path / "a.safetensors")).victim.stoch == 3


LOST = ["${model.nowhere}", "${..stoch}", "${....stoch}", "${oc.env:STOCH}", "${now:%H}", "${oc.decode:3}", "???",
        "${", "${seed}${seed}", "a_${env.task}", "\\${seed}", "${loop.a}", "${model.act.x}", "${ model.act }",
        "${}"]  # fmt: skip


@pytest.mark.parametrize("lost", LOST)
def test_entries_that_cannot_be_resolved(lost, checkpoint, tmp_path):
    """They are errors that say how to go on, and going on so works; where nothing reads them they are nothing."""
    more = {"loop": {"a": "${loop.b}", "b": "${loop.a}"}, "logdir": lost, "model__lr": lost, "env__seed": lost}
    out = tmp_path / "a.safetensors"
    wmjax.convert(beside(checkpoint, config(**more)), out)
    flags = {"stoch": 3, "agent": "infonce", "task": "dmc_hopper_stand", "action_repeat": 4}
    for name, entry in (("stoch", "model__rssm__stoch"), ("agent", "model__rep_loss"), ("task", "env__task"),
                        ("action_repeat", "env__action_repeat")):  # fmt: skip
        beside(checkpoint, config(**more, **{entry: lost}))
        words = entry.replace("__", "."), "cannot be resolved", f"--{name.replace('_', '-')}"
        refuse(checkpoint, *words, stoch=None, agent=None)
        card = read_card(wmjax.convert(checkpoint, out, **{name: flags[name]}))
        assert flags[name] in (card.task, card.action_repeat, card.victim.stoch, card.victim.agent)
    for entry in ("model.act", "model.norm", "model.rssm.blocks", "model.horizon", "env.size", "model.critic"):
        beside(checkpoint, config(**more, **{entry.replace(".", "__"): lost}))
        refuse(checkpoint, entry.split(".")[1], "cannot be resolved", "--ignore", stoch=None, agent=None)
    assert read_card(wmjax.convert(checkpoint, out, ignore=["model.critic"])).ignored == ("model.critic",)


def test_chains_of_references_end(checkpoint):
    names = ".".join(["a"] * 40)
    tree = {"a": f"${{{names}}}"}
    refuse(beside(checkpoint, config(model__act=f"${{b.{names}}}", b=tree)), "model.rssm.act", stoch=None, agent=None)


def test_config_may_leave_things_out(checkpoint, tmp_path):
    gone = ("env__task", "env__action_repeat", "model__rssm__stoch", "model__rep_loss", "model__act", "model__depth")
    gone = (*gone, "model__rssm__act", "model__encoder__cnn__depth")
    text = config(**dict.fromkeys(gone))
    out = wmjax.convert(beside(checkpoint, text), tmp_path / "a.safetensors", stoch=3, agent="r2dreamer")
    card = read_card(out)
    assert (card.task, card.action_repeat, card.victim.agent) == (None, 2, "r2dreamer")


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("deter", 24),
        ("hidden", 7),
        ("discrete", 3),
        ("units", 6),
        ("rssm__deter", 13),
        ("rssm__blocks", 4),
        ("encoder__cnn__kernel_size", 3),
        ("encoder__cnn__minres", 8),
        ("actor__layers", 2),
        ("critic__layers", 4),
        ("critic__dist__bin_num", 256),
        ("depth", 2),
        ("encoder__cnn__depth", "one"),
        ("encoder__cnn__mults", [1, 2, 3, 4]),
        ("encoder__cnn__mults", [2, 3, 4, [4]]),
        ("deter", "12"),
        ("deter", {"value": 12}),
    ],
)
def test_config_of_another_checkpoint(entry, value, checkpoint):
    name = f"model.{entry.replace('__', '.')}"
    words = ["config.yaml", "in the checkpoint"]
    if entry not in ("depth", "encoder__cnn__mults"):
        words.append(name)
    refuse(beside(checkpoint, config(**{f"model__{entry}": value})), *words, stoch=None, agent=None)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("act", "ReLU"),
        ("norm", False),
        ("rssm__unimix_ratio", 0.1),
        ("actor__dist__cont__min_std", 0.2),
        ("actor__dist__cont__max_std", 2.0),
        ("actor__dist__cont__name", "tanh_normal"),
        ("critic__dist__name", "mse"),
    ],
)
def test_config_of_another_inference_graph(entry, value, checkpoint):
    name = f"model.{entry.replace('__', '.')}"
    refuse(beside(checkpoint, config(**{f"model__{entry}": value})), name, repr(value), stoch=None, agent=None)


def test_arguments_that_contradict_the_config(checkpoint):
    beside(checkpoint, config())
    refuse(checkpoint, "stoch is 2, but 3 in", "config.yaml", stoch=2, agent=None)
    refuse(checkpoint, "agent is 'r2dreamer', but 'infonce' in", "config.yaml", stoch=None, agent="r2dreamer")
    beside(checkpoint, config(model__rep_loss="dreamer"))
    refuse(checkpoint, "agent is 'dreamer'", "tensors", stoch=None, agent=None)
    beside(checkpoint, config(model__rssm__stoch=4))
    refuse(checkpoint, "stoch is 4", "must divide", stoch=None, agent=None)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("model__rssm__stoch", "many"),
        ("model__rssm__stoch", True),
        ("model__rssm__stoch", 3.0),
        ("model__rssm__stoch", [3]),
        ("model__rep_loss", 3),
        ("env__task", ["dmc_walker_walk"]),
        ("env__action_repeat", "2"),
    ],
)
def test_config_entries_of_the_wrong_type(entry, value, checkpoint):
    name = entry.replace("__", ".")
    refuse(beside(checkpoint, config(**{entry: value})), "config.yaml", name, "expected", stoch=None, agent=None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "just text",
        "[1, 2",
        "a: b: c",
        "- env\n- model",
        "env: 1\nmodel: 2",
        "env: {}",
        "\x00\x01",
        b"\xff\xfe\xfa",
        "[" * 100_000,
        "env: !!python/object/apply:os.system ['touch marker']\nmodel: {}",
        "env: !!python/name:os.system\nmodel: {}",
        config() + "#" * (1 << 20),
        "env: {}\nmodel: {act: SiLU, act: ReLU}",
        "a: &a {x: 1}\nenv: {<<: *a}\nmodel: {}",
        "env: {}\nmodel: {}\nx: 0x" + "f" * 200_000,
        "env: {}\nmodel: {}\nx: 1" + ":1" * 100_000,
        "env: {}\nmodel: {}\nx: !!int ''",
        "env: {}\nmodel: {}\nx: !!map [1]",
    ],
    ids=range(19),
)
def test_foreign_configs(text, checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuse(beside(checkpoint, text), "config.yaml", "not the config of an R2-Dreamer run", stoch=None, agent=None)
    assert not (tmp_path / "marker").exists()


def test_configs_that_never_end_when_written_out(checkpoint):
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60))]
    for entry, word in (("stoch", "expected a whole number"), ("blocks", "a list")):
        bomb = f"model: {{rssm: {{{entry}: *a59}}, rep_loss: infonce}}\nenv: {{}}\n"
        given = 3 if entry == "blocks" else None
        refuse(beside(checkpoint, "\n".join([*lines, bomb])), f"model.rssm.{entry}", word, stoch=given, agent=None)


def test_changed_config_of_the_trained_checkpoint(shared, tmp_path):
    source = shared / "checkpoints" / "dmc_cartpole_balance_r2dreamer_1m"
    text = (source / ".hydra" / "config.yaml").read_text()
    shutil.copyfile(source / "latest.pt", tmp_path / "latest.pt")
    for old, new, words in (
        ("  deter: 512", "  deter: 1024", ["model.deter is 1024", "512"]),
        ("  discrete: 8\n", "  discrete: 16\n", ["model.discrete is 16", "8"]),
        ("  depth: 8", "  depth: 16", ["16", "8"]),
        ("    stoch: 32", "    stoch: 16", ["model.discrete is 8", "16"]),
    ):
        assert text.count(old) == 1
        refuse(beside(tmp_path / "latest.pt", text.replace(old, new)), *words, stoch=None, agent=None)


# Every entry of the configuration either does not matter, or is noticed.


@pytest.fixture(scope="module")
def trained(shared):
    """The trained checkpoint's tensors, and its configuration."""
    source = shared / "checkpoints" / "dmc_cartpole_balance_r2dreamer_1m" / "latest.pt"
    return read_state(source)[0], read_config(source).tree


def resolved(tree, config):
    """Return a section with all references replaced by what they refer to."""
    whole = {}
    for name in list(leaves(tree)):
        *sections, last = name.split(".")
        branch = whole
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[last] = config.find(name).value
    return whole


def leaves(tree, prefix=""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def changed(tree, name, value):
    """Return a copy in which one entry is another."""
    tree = copy.deepcopy(tree)
    *sections, last = name.split(".")
    branch = tree
    for section in sections:
        branch = branch.setdefault(section, {})
    branch[last] = value
    return tree


def outcome(state, tree):
    """Return all that converting makes of a configuration."""
    config = Config(Path("config.yaml"), tree)
    hints = complete(Hints(), config)
    victim = convert_module.infer(state, hints, "latest.pt", {}, "")
    convert_module.check_hints(hints)
    check(config, victim)
    return victim, spelled(hints.task), hints.action_repeat


OTHERS = ["${oc.env:X}", "${nowhere}", None, "Other", "", 12345, 0, -1.5, float("nan"), True, False, [1, 2], {"a": 1}]
SHARED = ("act", "norm", "deter", "hidden", "discrete", "depth", "units")


@pytest.mark.parametrize("form", ["as written", "resolved"])
@pytest.mark.parametrize("agent", ["r2dreamer", "dreamer"])
def test_no_entry_is_ignored(form, agent, trained, tmp_path):
    """Any entry that is changed changes the agent or is refused; except those that `training` lists, with a reason."""
    state, tree = trained
    if agent == "dreamer":
        decoding = torch_agent.Sizes("dreamer", 512, 8, 64, 32, 8, depth=8, units=64, action=1)
        state = read_state(save(tmp_path / "latest.pt", state_dict(decoding)))[0]
        tree = changed(tree, "model.rep_loss", "dreamer")
    tree = {part: tree[part] for part in ("env", "model", "seed", "device")}
    if form == "resolved":
        tree = resolved(tree, Config(Path("config.yaml"), tree))
    before = outcome(state, tree)
    idle = [name for entries in training(before[0]).values() for name in leaves(entries)]
    if form == "resolved":
        idle += [f"model.{name}" for name in SHARED]  # every part has its own
    names = [name for name in leaves(tree) if name not in ("seed", "device")]
    assert len(names) > 120
    for name in names:
        inside = any(name == entry or entry.startswith(f"{name}.") for entry in idle)
        for value in OTHERS:
            same = value == Config(Path("config.yaml"), tree).find(name).value
            if same or (name.endswith(".cnn_keys") and value == ""):  # which begins `image`
                continue
            try:
                after = outcome(state, changed(tree, name, value))
            except InputError:
                after = None
            assert (after == before) == inside, (name, value, after)


def test_entries_that_do_not_matter():
    """None of those that inference reads is among them, whatever the agent: by their names, in every part."""
    critical = {
        *SHARED, *("layers", "symlog_inputs", "kernel_size", "minres", "mults", "blocks", "unimix_ratio", "stoch"),
        *("size", "camera", "gray", "cnn_keys", "mlp_keys", "bin_num", "min_std", "max_std", "horizon", "task"),
        *("action_repeat", "rep_loss", "shape", "name"),
    }  # fmt: skip
    unread = ("encoder.mlp.", "decoder.mlp", "actor.dist.disc.", "actor.dist.multi_disc.", "actor.shape", "loss_scales")
    for agent in AGENTS:
        for entries in training(replace(VICTIM, agent=agent)).values():
            for name in leaves(entries):
                if agent == "dreamer" or ".decoder." not in name:
                    free = name.removeprefix("model.").startswith(unread)
                    assert free or name.split(".")[-1] not in critical, name


@pytest.mark.parametrize(
    "name",
    ["env.crop", "model.stem", "model.rssm.residual", "model.encoder.augment", "model.encoder.cnn.blocks",
     "model.actor.dropout", "model.actor.dist.squash", "model.actor.dist.cont.low", "model.critic.dist.low",
     "model.reward.extra", "model.cont.extra"],
)  # fmt: skip
def test_entries_of_a_fork(name, checkpoint, tmp_path):
    """They are refused by name; told to ignore them, the converter says so in the card."""
    beside(checkpoint, yaml.safe_dump(changed(yaml.safe_load(config()), name, 3)))
    refuse(checkpoint, "config.yaml", f"the R2-Dreamer code has no {name}", f"--ignore {name}", stoch=None, agent=None)
    card = read_card(wmjax.convert(checkpoint, tmp_path / "a.safetensors", ignore=[name]))
    assert card.ignored == (name,)
    section = name.rsplit(".", 1)[0]
    if section not in ("env", "model"):
        wmjax.convert(checkpoint, tmp_path / "a.safetensors", ignore=[section], stoch=3)


def test_ignored_entries_must_be_there(checkpoint):
    refuse(checkpoint, "ignore is 'model.x'", "there is no", "config.yaml", ignore=["model.x"])
    beside(checkpoint, config())
    refuse(checkpoint, "ignore is 'model.x'", "config.yaml has no such entry", ignore=["model.x"])
    refuse(checkpoint, "ignore is ''", "no such entry", ignore=[""])


@pytest.mark.parametrize(
    ("keys", "right"),
    [("image", True), ("^image$", True), (".*", True), ("image|depth", True), ("im", True), ("depth", False),
     ("mage", False), ("$^", False), ("[", False), ("(a*)*b", False), ("a**", False), (3, False)],
)  # fmt: skip
def test_which_observations_an_agent_reads(keys, right, checkpoint, tmp_path):
    beside(checkpoint, config(env__encoder={"mlp_keys": "$^", "cnn_keys": keys}))
    if right:
        wmjax.convert(checkpoint, tmp_path / "a.safetensors")
    else:
        refuse(checkpoint, "env.encoder.cnn_keys", "wmjax only runs agents with 'image'", stoch=None, agent=None)
    beside(checkpoint, config(model__encoder={"mlp_keys": keys}))
    if keys != "$^":
        refuse(checkpoint, "model.encoder.mlp_keys", "only runs agents with '$^'", stoch=None, agent=None)


@pytest.mark.parametrize(
    ("text", "number"),
    [("1e-2", 1e-2), ("3e-4", 3e-4), ("5e5", 5e5), ("1.01e6", 1.01e6), ("1_0e-3", 1e-2), ("-2E+3", -2e3),
     ("1.0e-2", 1e-2), ("1_000", 1000), ("0.01", 0.01), ("e5", "e5"), ("1e", "1e"), ("1e5x", "1e5x"), ("'1e5'", "1e5")],
)  # fmt: skip
def test_numbers_are_read_as_hydra_reads_them(text, number, checkpoint):
    beside(checkpoint, f"env: {{steps: {text}}}\nmodel: {{}}\n")
    found = read_config(checkpoint).find("env.steps").value
    assert (type(found), found) == (type(number), number)


def test_numbers_of_the_configuration(checkpoint, tmp_path):
    text = (
        config(model__horizon="HORIZON").replace("HORIZON", "1e2").replace("unimix_ratio: 0.01", "unimix_ratio: 1e-2")
    )
    victim = read_card(wmjax.convert(beside(checkpoint, text), tmp_path / "a.safetensors")).victim
    assert (victim.horizon, victim.discount) == (100, 0.99)
    assert wmjax.load(tmp_path / "a.safetensors")[0] == victim
    for wrong in (0, 1.5, "333", True, 1 << 31):
        refuse(beside(checkpoint, config(model__horizon=wrong)), "model.horizon", stoch=None, agent=None)
    for wrong in (2.0, "2", "${seed}", True, 1e0):
        text = config(env__action_repeat=wrong)
        refuse(beside(checkpoint, text), "env.action_repeat", "--action-repeat", stoch=None, agent=None)


def test_strange_names_of_entries_stay_on_one_line(checkpoint):
    tree = yaml.safe_load(config())
    tree["model"]["act\n\x1b[31m"] = tree["model"][3] = tree["model"]["x" * 5000] = 1
    refuse(beside(checkpoint, yaml.safe_dump(tree)), "the R2-Dreamer code has no", stoch=None, agent=None)
