"""Whole training runs, small: rounds of playing and learning, and runs that are stopped and go on."""

import json
import os
import resource
import signal
from contextlib import contextmanager
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import UNUSUAL_SETTINGS
from programs import QUICK
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

import wmjax
from wmjax import envs
from wmjax.core.errors import InputError
from wmjax.train import export_run, multi_seed, run, sizes
from wmjax.train.checkpoint import checkpoints, restore, save
from wmjax.train.curves import Curves
from wmjax.train.job import prepare
from wmjax.train.recipe import Recipe
from wmjax.train.trainer import Plan, untrained

# Threads of the storage below orbax may outlive what they failed at, and complain then.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

TASK = "dmc_cartpole_balance"
SMALL = ["batch_size = 2", "batch_length = 3", "imag_horizon = 2", "env_num = 2", "train_ratio = 3", "max_size = 40"]
PROGRAMS = {
    "begin": jax.jit(multi_seed.begin.__wrapped__, static_argnums=(0, 1), compiler_options=QUICK),
    "go_on": jax.jit(multi_seed.go_on.__wrapped__, static_argnums=(0, 1, 2), donate_argnums=4, compiler_options=QUICK),
}


@pytest.fixture
def quick(monkeypatch):
    """Make "tiny" agents tiny indeed, episodes of 4 steps, calls of 2 updates; compile quickly, evaluate nothing."""
    monkeypatch.setitem(sizes.SIZES, "tiny", dict(deter=16, hidden=8, discrete=4, depth=2, units=8))
    monkeypatch.setitem(envs.TASKS, TASK, replace(envs.TASKS[TASK], episode_steps=4))
    for name, program in PROGRAMS.items():
        monkeypatch.setattr(run, name, program)
    monkeypatch.setattr(run, "UPDATES", 2)
    monkeypatch.setattr(run, "EVALUATIONS", 0)


def test_as_many_updates_a_frame_as_asked_for():
    plan = Plan(sizes.victim("r2dreamer", "tiny", 1), Recipe(), envs.make(TASK, backend="device").world, 20)
    ratios = {512: (1, 8), 64: (1, 1), 32: (2, 1), 96: (2, 3)}  # 16 episodes side by side, batches of 1024 frames
    assert {ratio: replace(plan, recipe=Recipe(train_ratio=ratio)).round for ratio in ratios} == ratios


def test_playing_and_learning(quick, tmp_path, monkeypatch):
    job = prepare(TASK, "r2dreamer", "tiny", steps=52, changes=SMALL, out=tmp_path)
    trained = run.train(job)
    assert [row["updates"] for row in trained.log] == [2, 4, 6, 8]
    assert trained.log[-1]["steps"] == 52
    replay = trained.state.replay
    assert replay.count == 13
    moments = jax.tree.map(lambda x: np.asarray(x[0, :, :13]), replay.moments)
    first, last = (np.tile(np.arange(13) % 5 == at, (2, 1)) for at in (0, 4))  # 4 steps make 5 frames
    np.testing.assert_array_equal(moments.is_first, first)
    np.testing.assert_array_equal(moments.is_last, last)
    assert np.all(moments.action[last] == 0)
    assert np.all(moments.action[~last] != 0)
    assert np.all(moments.reward[first] == 0)
    assert np.all(moments.reward[~first] > 0)
    np.testing.assert_allclose(trained.state.play.scores[0], moments.reward[:, 5:10].sum(1), rtol=1e-6)
    assert len({frame.tobytes() for frame in moments.image.reshape(-1, 64 * 64 * 3)}) == 26
    before = untrained(trained.plan, jax.random.key(0)).params
    (params,) = multi_seed.agents(trained.state)
    moved = {part: not same(params[part], before[part]) for part in params}
    assert all(moved.values()), moved
    events = list((tmp_path / "tensorboard" / "seed_0").glob("events.*"))
    assert len(events) == 1

    played = []

    def returns(victim, params, task, backend, seeds, workers, *, name):
        played.append((name, backend))
        return np.arange(20.0) + 100 * bool(name)

    monkeypatch.setattr(export_run, "clean_returns", returns)
    monkeypatch.setattr(export_run, "random_returns", lambda task, seeds: np.arange(20.0))
    (path,) = export_run.finish(trained)
    name = "dmc_cartpole_balance_r2dreamer_tiny"
    assert path == tmp_path / f"{name}.safetensors"
    assert played == [(name, "device"), (name, "host"), ("", "device")]
    loaded, kept = wmjax.load(path)
    assert loaded == trained.plan.victim
    assert same(kept, params)
    card = path.with_suffix(".md").read_text()
    assert f"# {name}" in card
    assert job.command in card
    wmjax.export(path, tmp_path / "latest.pt")
    wmjax.convert(tmp_path / "latest.pt", tmp_path / "back.safetensors", stoch=32, agent="r2dreamer")
    assert same(wmjax.load(tmp_path / "back.safetensors")[1], params)


def same(a, b):
    leaves = [jax.tree.leaves(jax.tree.map(key_data, x)) for x in (a, b)]
    return all(np.array_equal(*pair, equal_nan=True) for pair in zip(*leaves, strict=True))


def key_data(x):
    return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)


def test_a_run_is_the_same_under_any_settings(quick, tmp_path, setting):
    job = prepare(TASK, "r2dreamer", "tiny", steps=52, changes=SMALL, out=tmp_path / "usual")
    usual = run.train(job)
    setting(**UNUSUAL_SETTINGS)
    other = run.train(replace(job, folder=tmp_path / "other"))
    assert same(other.state, usual.state)
    assert replace(job, folder=tmp_path / "other").identity == job.identity


def test_a_stopped_run_ends_as_one_that_was_not(quick, tmp_path, monkeypatch):
    job = prepare(TASK, "r2dreamer", "tiny", steps=52, changes=SMALL, out=tmp_path / "whole")
    whole = run.train(job)
    compiled = PROGRAMS["go_on"]._cache_size()

    def interrupt(progress):
        if progress.row["updates"] == 4:
            os.kill(os.getpid(), signal.SIGINT)

    asked = replace(job, folder=tmp_path / "asked")
    with pytest.raises(KeyboardInterrupt):
        run.train(asked, on_progress=interrupt)
    rows = []
    on = run.train(asked, on_progress=lambda progress: rows.append(progress.row["updates"]))
    assert rows == [6, 8]
    assert same(on.state, whole.state)

    def crash(progress):
        if progress.row["updates"] == 6:
            raise RuntimeError("the machine is gone")

    monkeypatch.setattr(run, "SAVE_EVERY", 0.0)
    killed = replace(job, folder=tmp_path / "killed")
    with pytest.raises(RuntimeError, match="gone"):
        run.train(killed, on_progress=crash)
    rows.clear()
    on = run.train(killed, on_progress=lambda progress: rows.append(progress.row["updates"]))
    assert rows == [6, 8]
    assert same(on.state, whole.state)
    unlike = {"seconds"}
    assert [{k: v for k, v in row.items() if k not in unlike} for row in on.log] == [
        {k: v for k, v in row.items() if k not in unlike} for row in whole.log
    ]

    assert PROGRAMS["go_on"]._cache_size() == compiled  # other programs may round otherwise

    longer = run.train(replace(killed, steps=60), on_progress=lambda progress: rows.append(progress.row["updates"]))
    assert longer.log[-1]["updates"] == 10
    with pytest.raises(InputError, match=r"holds another run, of other seeds; use another --out"):
        run.train(replace(killed, seeds=(1,)))
    text = (killed.folder / "run.json").read_bytes()
    (killed.folder / "run.json").write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))  # as an editor saves it
    assert run.train(replace(killed, steps=60)).log[-1]["updates"] == 10
    (killed.folder / "run.json").write_text("{")
    with pytest.raises(InputError, match=r"run\.json: cannot be read"):
        run.train(killed)
    for file in (asked.folder / "checkpoints").rglob("*"):
        if file.is_file():
            file.write_bytes(b"\0")
    with pytest.raises(InputError, match="cannot be read"):
        run.train(asked)


def test_a_run_that_diverges_says_so_and_keeps_its_last_checkpoint(quick, tmp_path, monkeypatch):
    def diverging(plan, mesh, length, task, state):
        state, metrics = PROGRAMS["go_on"](plan, mesh, length, task, state)
        bad = state.learner.updates == 4
        return state, metrics | {"opt/loss": jnp.where(bad, jnp.nan, metrics["opt/loss"])}

    monkeypatch.setattr(run, "go_on", diverging)
    monkeypatch.setattr(run, "SAVE_EVERY", 0.0)
    job = prepare(TASK, "r2dreamer", "tiny", steps=52, changes=SMALL, out=tmp_path / "run")
    with pytest.raises(FloatingPointError, match="no longer finite after 4 updates"):
        run.train(job)
    monkeypatch.setattr(run, "go_on", PROGRAMS["go_on"])
    assert [row["updates"] for row in run.train(job).log] == [2, 4, 6, 8]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(task="dmc_cartpole"), "unknown task 'dmc_cartpole'"),
        (dict(agent="ppo"), "unknown agent 'ppo'"),
        (dict(size="huge"), "unknown size 'huge'"),
        (dict(seeds=()), "seeds are"),
        (dict(seeds=(1, 1)), "seeds are"),
        (dict(seeds=(-1,)), "seeds is -1; allowed: a whole number from 0 to 4294967295"),
        (dict(steps=0), "steps is 0"),
        (dict(steps=10**12), "steps is 1000000000000"),
        (dict(changes=["lr"]), "'lr' is not a line"),
        (dict(changes=["batch_size = 0x" + 5000 * "f"]), "is not a line"),
        (dict(changes=["lr = nan"]), "lr is nan"),
        (dict(changes=["lr = -1.0"]), "lr is -1.0"),
        (dict(changes=["lr = 0"]), "lr is 0.0; allowed: a number from 1e-30 to 1.0"),
        (dict(changes=["lr = 1" + 400 * "0"]), "lr is inf"),
        (dict(changes=["beta2 = 1.0"]), "beta2 is 1.0"),
        (dict(changes=["temperature = 0.0"]), "temperature is 0.0"),
        (dict(changes=["train_ratio = 1_000_000"]), "train_ratio is 1000000; allowed: a whole number from 1 to 4096"),
        (dict(changes=["warm_up = 32"]), "warm_up is 32; allowed: less than batch_length, 32"),
        (dict(changes=["rate = 1.0"]), "unknown field of the recipe 'rate'"),
        (dict(changes=["batch_size = 2.5"]), "batch_size is 2.5"),
        (dict(changes=["batch_size = 0"]), "batch_size is 0"),
        (dict(changes=["batch_length = 1"]), "batch_length is 1"),
        (dict(changes=["max_size = 10"]), "max_size is 10"),
        (dict(changes=['lr = "a"']), "lr is 'a'"),
        (dict(changes=["env_num = 1" + 20 * "0"]), "env_num is 1000"),
        (
            dict(agent="dreamerpro", changes=["sinkhorn_iters = 101"]),
            "sinkhorn_iters is 101; allowed: .* 0 to 100",
        ),
    ],
)
def test_wrong_jobs(changed, message):
    given = dict(task=TASK, agent="r2dreamer", size="tiny") | changed
    with pytest.raises(InputError, match=message):
        prepare(given.pop("task"), given.pop("agent"), given.pop("size"), **given)


# What lies in the folder of a run, which may be full, in use, or a stranger's.

STATE = {"x": jnp.arange(6.0).reshape(1, 6), "empty": jnp.zeros((1, 0)), "key": jax.random.split(jax.random.key(0), 1)}
ROW = {"steps": 8, "updates": 2, "seconds": 1.5, "episode/score": [None], "opt/loss": [3.0]}


@contextmanager
def full_disk():
    """Have every file end at 1 KiB, which the system tells as it tells that a disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def saved(folder, step, state, log=()):
    with checkpoints(folder) as manager:
        save(manager, step, state, list(log))


def found(folder, like=STATE):
    with checkpoints(folder) as manager:
        return restore(manager, jax.eval_shape(lambda: like), multi_seed.devices(1))


def test_on_a_full_disk_the_checkpoint_before_is_kept(tmp_path, caplog):
    saved(tmp_path, 1, STATE, [ROW])
    large = STATE | {"x": jax.random.normal(jax.random.key(0), (1, 5000))}
    with full_disk(), pytest.raises(InputError, match=r"cannot be written \(File too large\); the checkpoint before"):
        saved(tmp_path, 2, large)
    assert not caplog.records
    state, log = found(tmp_path)
    assert same(state, STATE)
    assert log == [ROW]
    saved(tmp_path, 3, large)
    assert [path.name for path in tmp_path.iterdir()] == ["3"]


def drawn(folder, rows):
    with Curves(folder, (0, 1), 0) as curves:
        for steps in range(rows):
            curves.add({"steps": steps, "loss": [1.0, None], "score": [2.0, 3.0]})


def test_curves_are_what_tensorboard_reads(tmp_path):
    drawn(tmp_path, 2)
    wanted = {0: [(0, "loss", 1.0), (0, "score", 2.0), (1, "loss", 1.0), (1, "score", 2.0)],
              1: [(0, "score", 3.0), (1, "score", 3.0)]}  # fmt: skip
    for seed, points in wanted.items():
        (path,) = (tmp_path / f"seed_{seed}").iterdir()
        data, events = path.read_bytes(), []
        while data:
            length = int.from_bytes(data[:8], "little")
            assert data[8:12] == masked_crc32c(data[:8]).to_bytes(4, "little")
            assert data[12 + length : 16 + length] == masked_crc32c(data[12 : 12 + length]).to_bytes(4, "little")
            events.append(Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
        assert events[0].file_version == "brain.Event:2"
        assert [
            (event.step, value.tag, value.simple_value) for event in events for value in event.summary.value
        ] == points


def test_curves_on_a_full_disk_are_told(tmp_path):
    with full_disk(), pytest.raises(InputError, match=r"tensorboard: cannot be written \(File too large\)"):
        drawn(tmp_path / "tensorboard", 100)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="is a link"):
        drawn(tmp_path / "link", 1)


def test_a_checkpoint_of_other_shapes_is_not_read(tmp_path):
    saved(tmp_path / "a", 1, STATE)
    with pytest.raises(InputError, match=r"checkpoint 1 cannot be read \(x is \[1, 6\], expected \[1, 7\]\)"):
        found(tmp_path / "a", STATE | {"x": jnp.zeros((1, 7))})
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(InputError, match="is a link"):
        found(tmp_path / "link")
    (tmp_path / "a" / "2").mkdir()
    (tmp_path / "a" / "2" / "_CHECKPOINT_METADATA").write_text(100_000 * "[")
    with pytest.raises(InputError, match="a: cannot be opened"):
        found(tmp_path / "a")


def test_what_a_killed_writer_left_is_removed(tmp_path):
    saved(tmp_path, 1, STATE)
    (tmp_path / "2.orbax-checkpoint-tmp").mkdir()
    assert same(found(tmp_path)[0], STATE)
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


@pytest.mark.parametrize(
    "log",
    [None, {}, [], [5], [ROW | {"seconds": float("nan")}], [ROW | {"steps": 10**400}], [ROW | {"opt/loss": []}],
     [ROW | {"episode/score": [1.0, 2.0]}], [ROW | {"opt/loss": ["x"]}], [{"steps": 8, "updates": 2, "seconds": 1.0}]],
)  # fmt: skip
def test_a_log_of_a_stranger(log, tmp_path):
    job = prepare(TASK, "r2dreamer", "tiny", out=tmp_path)
    assert run._checked([ROW], job) == [ROW]
    with pytest.raises(InputError, match="the log there is not that of a run of 1 seeds"):
        run._checked(log, job)


def test_a_folder_has_one_process(tmp_path):
    job = prepare(TASK, "r2dreamer", "tiny", out=tmp_path)
    with run._claimed(job), pytest.raises(InputError, match="another process is writing to it"), run._claimed(job):
        pass
    with run._claimed(job):
        assert (tmp_path / "run.json").is_file()


@pytest.mark.parametrize("change", ["max_size = 2_000_000_000", "batch_size = 2_000_000", "imag_horizon = 1_000_000"])
def test_a_run_that_cannot_fit_leaves_nothing(change, tmp_path):
    job = prepare(TASK, "r2dreamer", "tiny", changes=[change], out=tmp_path / "run")
    with pytest.raises(InputError, match=r"needs at least [\d,.]+ GB .* allowed: .*max_size"):
        run.train(job)
    assert not job.folder.exists()


def test_the_command_of_a_job_asks_for_it():
    job = prepare(TASK, "infonce", "1m", seeds=(3, 4), steps=10_000, changes=["lr = 0.001"])
    assert job.command == (
        "wmjax train --task dmc_cartpole_balance --agent infonce --size 1m --steps 10000 --seeds 3 4 --set 'lr = 0.001'"
    )
    assert json.loads(json.dumps(job.identity)) == job.identity
