"""Whole studies on a real agent and real physics: complete, and the same whatever happens on the way."""

import errno
import json
import os
import platform
import signal
import subprocess
import sys
import time
import weakref
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import wmjax
from wmjax.agents import weights, zoo
from wmjax.core.errors import InputError
from wmjax.envs import HostEnv, WorkerError
from wmjax.rollout import MEANS
from wmjax.study import device_worker
from wmjax.study.device_worker import DeviceWorker
from wmjax.study.merge import Merged, merge
from wmjax.study.provenance import git_state
from wmjax.study.run import run
from wmjax.study.schema import CELL, SCHEMA, TIMING
from wmjax.study.store import read_manifest
from wmjax.study.study_file import read_study

AGENT = "dmc_cartpole_balance_r2dreamer_1m"
T = 8
DIAGNOSTICS = (*MEANS, "max_delta", "loss_error")
STUDY = f"""
victims = ["{AGENT}"]
objectives = ["random", "vsa"]
optimizers = ["pgd"]
budgets = [0, "8/255"]
seeds = "20..22"
steps = 2
episode_steps = {T}
"""
CHUNKS = 6  # of two episodes, or one: clean, random and vsa, with three seeds each, and the probes of both attacks
EPISODES = 11

RUN = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job would ignore it
from wmjax import runtime
runtime.use_compilation_cache()
from wmjax.study.run import run
"""
SLOWLY = "run(*sys.argv[1:], batch=2, on_progress=lambda progress: time.sleep(0.02))"
DIE_BEFORE_A_RENAME = """
rename = pathlib.Path.replace
def die(path, target):
    if target.suffix == ".parquet":
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(path, target)
pathlib.Path.replace = die
"""


@pytest.fixture(scope="module")
def study_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("study") / "study.toml"
    path.write_text(STUDY)
    return path


@pytest.fixture(scope="module")
def study(study_file):
    return read_study(study_file)


@pytest.fixture(scope="module")
def undisturbed(study, tmp_path_factory):
    """The outcome of the study when all goes well."""
    return run(study, tmp_path_factory.mktemp("undisturbed") / "out", batch=2)


def shards(folder: Path) -> dict[str, int]:
    """The finished shards and when they were written."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("rows/*.parquet")}


def rows(folder: Path) -> list[dict]:
    """All rows, sorted by cell, without the columns that two runs differ in."""
    table = pa.concat_tables(pq.read_table(folder / "rows" / name) for name in shards(folder))
    return table.sort_by([(name, "ascending") for name in CELL]).drop_columns(list(TIMING)).to_pylist()


def without_probes(rows: list[dict]) -> list[dict]:
    return [row for row in rows if row["objective"] == "clean" or row["eps"]]


def recorded(folder: Path) -> dict[tuple, dict[str, np.ndarray]]:
    """The recorded episodes, by cell."""
    found = {}
    for path in folder.glob("traces/*"):
        with np.load(path, allow_pickle=False) as arrays:
            trace = dict(arrays)
        meta = json.loads(trace["meta"].item())
        found[tuple(meta[name] for name in CELL)] = trace
    return found


def assert_same_rows(got: list[dict], want: list[dict]) -> None:
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        assert one.keys() == other.keys()
        for name, value in other.items():
            np.testing.assert_array_equal(one[name], value, err_msg=name, strict=True)


def workers(pid: int) -> list[int]:
    """The processes that step environments for the process `pid`."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"wmjax.envs.worker" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has just ended
    return found


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_rows_are_complete(study, undisturbed):
    assert undisturbed.failed == {}
    assert undisturbed.episodes == EPISODES
    assert undisturbed.notes == (zoo.caveat(AGENT),)
    assert len(shards(undisturbed.folder)) == CHUNKS
    for name in shards(undisturbed.folder):
        assert pq.read_schema(undisturbed.folder / "rows" / name).equals(SCHEMA, check_metadata=True)
    found = rows(undisturbed.folder)
    cells = [("clean", 0.0)] * 3
    for attack in ("random", "vsa"):
        cells += [(attack, 0.0)] + [(attack, 8 / 255)] * 3
    assert [(row["objective"], row["eps"]) for row in found] == cells
    assert [row["seed"] for row in found] == [20, 21, 22, *[20, 20, 21, 22] * 2]
    for row in found:
        attack = row["objective"]
        assert (row["victim"], row["agent"], row["task"]) == (AGENT, "r2dreamer", "dmc_cartpole_balance")
        how = ("pgd", 2, "fresh", 1) if attack == "vsa" else ("none", 0, "none", 0)
        assert (row["optimizer"], row["steps"], row["noise"], row["draws"]) == how
        place = ("none", "none", "none") if attack == "clean" else ("float", "all", "full")
        assert (row["frames"], row["region"], row["mode"]) == place
        assert (row["defense"], row["adaptive"]) == ("none", False)
        assert row["attacked"] == (0 if attack == "clean" else T)
        assert row["length"] == T
        assert row["max_return"] == 2 * T
        assert 0 < row["return"] <= row["max_return"]
        assert row["nan"] is False
        no_objective = {"loss_first", "loss_last", "loss_error", "zero_grad", "restart_gap"}
        without = {"random": no_objective, "clean": {*DIAGNOSTICS}, "vsa": {"restart_gap"}}
        assert {name for name in DIAGNOSTICS if np.isnan(row[name])} == without[attack]
        assert attack == "clean" or 0.9 * row["eps"] <= row["max_delta"] <= row["eps"]
        assert attack != "vsa" or row["loss_error"] < 1e-4
        assert (row["wmjax"], row["device"]) == (wmjax.__version__, "cpu")
        assert row["victim_sha256"] == weights.file_sha256(zoo.locate(AGENT))
    returns = [{row["return"] for row in found if row["eps"] == 0 and row["seed"] == seed} for seed in (20, 21, 22)]
    assert [len(of_a_seed) for of_a_seed in returns] == [1, 1, 1]  # probes are equal to clean
    assert len({row["return"] for row in found if row["objective"] != "random"}) == 6
    assert not list((undisturbed.folder / "errors").iterdir())
    assert not workers(os.getpid())


def test_the_manifest_says_what_was_run(undisturbed):
    manifest = read_manifest(undisturbed.folder)
    assert manifest["study"]["objectives"] == ["random", "vsa"]
    assert manifest["versions"].keys() >= {"wmjax", "jax", "mujoco"}
    assert manifest["device"] == "1 x cpu"
    assert manifest["notes"] == [zoo.caveat(AGENT)]
    assert len(manifest["chunks"]) == CHUNKS
    assert manifest["identity"]["study"]["victims"] == [AGENT]
    assert (manifest["command"], manifest["shard"], manifest["earlier"]) == (None, None, [])
    assert manifest["python"] == platform.python_version()
    assert abs(datetime.now(UTC) - datetime.fromisoformat(manifest["started"])) < timedelta(hours=1)
    assert manifest["git"] == git_state(Path(wmjax.__file__).parents[1])


def test_a_finished_study_is_left_alone(study_file, undisturbed):
    before, told = shards(undisturbed.folder), []
    again = run(str(study_file), str(undisturbed.folder), batch=2, on_progress=told.append)
    assert again == undisturbed
    assert shards(undisturbed.folder) == before
    assert [(progress.done, progress.total) for progress in told] == [(CHUNKS * T, CHUNKS * T)]


def test_another_batch_size_or_study_does_not_mix(study, undisturbed):
    before = rows(undisturbed.folder)
    for other, batch in [(study, 3), (replace(study, seeds=(20,)), 2)]:
        with pytest.raises(InputError, match="holds the results of another study"):
            run(other, undisturbed.folder, batch=batch)
    assert_same_rows(rows(undisturbed.folder), before)


def test_a_larger_study_compiles_nothing_new(study, undisturbed, tmp_path, caplog):
    """Objectives, budgets, modes, regions, seeds and length share the programs that are there."""
    larger = replace(
        study,
        objectives=("random", "pda", "critic", "target(0.5)", "vsa+0.5*pea"),
        budgets=(1 / 255, 0.1),
        modes=("first_half", "sparse(2,1)"),
        regions=("all", "patch(8)"),
        seeds=(7,),
        episode_steps=2,
    )
    jax.config.update("jax_log_compiles", True)
    try:
        with caplog.at_level("WARNING", logger="jax"):
            assert run(larger, tmp_path / "out", batch=2).episodes == 1 + 5 * 2 * 2 * 2 + 2
            counted = [message for message in caplog.messages if message.startswith("Compiling")]
            assert counted == []
            jax.jit(lambda x: x + 1)(np.zeros(3))  # that compilations are counted at all
            assert any(message.startswith("Compiling") for message in caplog.messages)
    finally:
        jax.config.update("jax_log_compiles", False)


def test_first_seeds_are_kept_frame_by_frame(undisturbed):
    found = [row for row in rows(undisturbed.folder) if row["seed"] == 20]
    first = without_probes(found)
    traces = recorded(undisturbed.folder)
    assert len(traces) == len(first) == 3
    for row in first:
        trace = traces[tuple(row[name] for name in CELL)]
        meta = json.loads(trace["meta"].item())
        assert np.sum(trace["reward"]) == pytest.approx(row["return"], rel=1e-12)
        assert meta["return"] == row["return"]
        assert trace["frames"].shape == trace["seen"].shape == (T, 64, 64, 3)
        assert trace["frames"].dtype == trace["seen"].dtype == np.uint8
        assert trace["action"].shape == (T, 1)
        assert trace["attacked"].tolist() == [row["objective"] != "clean"] * T
        farthest = np.abs(trace["seen"].astype(int) - trace["frames"]).max(axis=(1, 2, 3))
        assert farthest.tolist() == [0 if row["objective"] == "clean" else 8] * T


def test_an_episode_is_the_same_in_another_study(study, undisturbed, tmp_path):
    """Its rows do not depend on what else is in the study, on its place in a chunk, or on how its agent is named."""
    path = tmp_path / f"{AGENT}.safetensors"
    path.write_bytes(zoo.locate(AGENT).read_bytes())
    other = run(replace(study, victims=(str(path),), objectives=("vsa",), seeds=(22, 20)), tmp_path / "out", batch=2)
    assert other.notes == ()  # an agent of the user's own has no card
    assert read_manifest(other.folder)["identity"]["study"]["victims"] == [AGENT]  # wherever a machine keeps its file
    want = [row for row in rows(undisturbed.folder) if row["objective"] != "random" and row["seed"] != 21]
    assert_same_rows(without_probes(rows(other.folder)), without_probes(want))


def test_defenses_frames_regions_and_rules_in_one_study(study, tmp_path):
    tiny = replace(
        study,
        objectives=("vsa",),
        optimizers=("random_sign",),  # six programs: without a gradient they compile faster
        budgets=(0.03,),
        seeds=(20,),
        modes=("policy_top(2)",),
        regions=("patch(16)",),
        frames=("float", "uint8"),
        defenses=("none", "jpeg"),
        adaptive=(False, True),
        episode_steps=6,
    )
    outcome = run(tiny, tmp_path, batch=2)
    assert outcome.failed == {}
    found = rows(tmp_path)
    clean = {row["defense"]: row for row in found if row["objective"] == "clean"}
    attacked = [row for row in found if row["objective"] != "clean"]
    assert len(found) == outcome.episodes == len(clean) + len(attacked)
    assert clean.keys() == {"none", "jpeg(75)"}
    assert {(row["attacked"], row["frames"], row["region"], row["mode"]) for row in clean.values()} == {
        (0, "none", "none", "none")
    }
    assert {(row["attacked"], row["region"], row["mode"]) for row in attacked} == {(2, "patch(16)", "policy_top(2)")}
    guarded = [("none", False), ("jpeg(75)", False), ("jpeg(75)", True)]
    cells = [(row["frames"], row["defense"], row["adaptive"], row["eps"]) for row in attacked]
    assert sorted(cells) == sorted(
        (f, *guard, eps) for f in ("float", "uint8") for guard in guarded for eps in (0, 0.03)
    )

    for row in attacked:
        if not row["eps"]:
            assert row["return"] == clean[row["defense"]]["return"]
            assert row["max_delta"] == 0
        elif row["frames"] == "uint8":
            assert row["max_delta"] == pytest.approx(7 / 255, abs=1e-7)
        else:
            assert row["max_delta"] == pytest.approx(0.03, abs=1e-7)
        assert row["loss_error"] < 1e-4

    traces = recorded(tmp_path)
    assert len(traces) == 2 + 6
    inside = np.zeros((64, 64, 1), bool)
    inside[24:40, 24:40] = True
    for cell, trace in traces.items():
        row = dict(zip(CELL, cell, strict=True))
        assert trace["attacked"].sum() == (0 if row["objective"] == "clean" else 2)
        if row["defense"] == "none":
            changed = trace["seen"] != trace["frames"]
            assert not (changed & ~inside).any()
            assert (changed.any(axis=(1, 2, 3)) == trace["attacked"]).all()


class TestInterrupted:
    @pytest.fixture
    def start(self, study_file, tmp_path):
        """Start the study in a process of its own; it must end, and its workers with it."""
        started = []

        def call(code: str, file: Path = study_file, **environment: str) -> subprocess.Popen:
            process = subprocess.Popen(
                [sys.executable, "-c", RUN + code, file, tmp_path / "out"],
                env=os.environ | environment,
                stderr=subprocess.PIPE,
                text=True,
            )
            started.append(process)
            return process

        yield call
        for process in started:
            process.kill()
            process.communicate()

    def test_killed_twice_then_interrupted_then_resumed(self, start, study, undisturbed, tmp_path):
        out = tmp_path / "out"

        process = start(SLOWLY)
        wait_until(lambda: shards(out))
        helpers = workers(process.pid)
        assert helpers
        process.kill()
        assert process.wait() == -signal.SIGKILL
        wait_until(lambda: not any(map(running, helpers)), 60)
        first = shards(out)
        assert 1 <= len(first) < CHUNKS

        process = start(DIE_BEFORE_A_RENAME + SLOWLY)
        assert process.wait(300) == -signal.SIGKILL
        assert shards(out) == first
        assert len(list(out.glob("rows/.*.part"))) == 1

        process = start(SLOWLY)
        wait_until(lambda: len(shards(out)) > len(first))
        helpers = workers(process.pid)
        assert helpers
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGINT
        assert said.rstrip().endswith("KeyboardInterrupt")
        assert not any(map(running, helpers))
        second = shards(out)
        assert len(first) < len(second) < CHUNKS
        assert first.items() <= second.items()

        outcome = run(study, out, batch=2)
        assert (outcome.episodes, outcome.failed) == (EPISODES, {})
        assert second.items() <= shards(out).items()
        assert_same_rows(rows(out), rows(undisturbed.folder))
        assert not list(out.glob("*/.*.part"))

    @pytest.mark.parametrize(("devices", "objectives"), [(2, ["random", "vsa"]), (4, ["random"])])
    def test_several_devices_give_the_same_rows(self, start, undisturbed, tmp_path, devices, objectives):
        file = tmp_path / "study.toml"
        file.write_text(STUDY.replace('["random", "vsa"]', json.dumps(objectives)))  # every device compiles of its own
        flags = f"--xla_force_host_platform_device_count={devices} --xla_cpu_multi_thread_eigen=false"
        process = start(SLOWLY, file, XLA_FLAGS=flags)
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
        assert read_manifest(tmp_path / "out")["device"] == f"{devices} x cpu"
        played = [row for row in rows(undisturbed.folder) if row["objective"] in ("clean", *objectives)]
        assert_same_rows(rows(tmp_path / "out"), played)


def test_programs_are_let_go_before_they_are_too_many(monkeypatch):
    cleared = []
    monkeypatch.setattr(device_worker.jax, "clear_caches", lambda: cleared.append(True))
    for share, times in ((1e9, 0), (0.0, 1)):
        monkeypatch.setattr(device_worker, "_SHARE", share)
        device_worker._make_room()
        assert len(cleared) == times


def test_a_killed_worker_costs_a_second_try(study, undisturbed, tmp_path):
    told, killed = [], []

    def kill_once(progress):
        told.append(progress)
        if progress.done > T + 2 and not killed:
            killed.extend(workers(os.getpid()))
            os.kill(killed[0], signal.SIGKILL)

    outcome = run(study, tmp_path / "out", batch=2, on_progress=kill_once)
    assert (outcome.episodes, outcome.failed) == (EPISODES, {})
    messages = [progress.message for progress in told if progress.message]
    assert len(messages) == 1
    assert "failed, trying again" in messages[0]
    assert "was killed by SIGKILL" in messages[0]
    assert not list((tmp_path / "out" / "errors").iterdir())
    assert told[-1].done == told[-1].total == CHUNKS * T
    assert_same_rows(rows(tmp_path / "out"), rows(undisturbed.folder))
    assert not workers(os.getpid())


def test_what_fails_twice_is_reported_and_can_be_tried_again(study, undisturbed, tmp_path, monkeypatch):
    play = DeviceWorker.play
    tries = []

    def fail(worker, chunk, record, on_step):
        if chunk.episodes[0].objective == "random" and chunk.episodes[0].seed == 20:
            tries.append(chunk.id)
            on_step(3)
            raise RuntimeError("out of \x1b[31mluck\udcff\nwhat else is known")
        return play(worker, chunk, record, on_step)

    out, told = tmp_path / "out", []
    monkeypatch.setattr(DeviceWorker, "play", fail)
    outcome = run(study, out, batch=2, on_progress=told.append)
    why = "RuntimeError: out of �[31mluck�"
    assert outcome.failed == {tries[0]: why}
    assert tries == [tries[0]] * 2
    assert outcome.episodes == EPISODES - 2
    assert "Traceback" in (out / "errors" / f"{tries[0]}.txt").read_text()
    assert [progress.message.splitlines()[0].split(": ")[1] for progress in told if progress.message] == [
        "failed, trying again",
        "failed, given up",
    ]
    assert told[-1].done == told[-1].total
    whole = rows(undisturbed.folder)
    lost = [row for row in whole if row["objective"] == "random" and row["seed"] == 20]
    assert len(lost) == 2
    got = rows(out)
    assert_same_rows([row for row in got if not row["error"]], [row for row in whole if row not in lost])
    for one, other in zip([row for row in got if row["error"]], lost, strict=True):
        assert (one["error"], one["attacked"], one["nan"]) == (why, 0, False)
        assert all(np.isnan(one[name]) for name in ("return", *DIAGNOSTICS))
        for name in (*CELL, "agent", "max_return", "length", "schema", "wmjax", "device", "backend", "victim_sha256"):
            assert one[name] == other[name], name

    # A shard that was damaged since is named and made again too, and nothing else; what is no shard is named.
    before = shards(out)
    damaged = min(before.keys() - {f"{tries[0]}.parquet"})
    (out / "rows" / damaged).write_bytes((out / "rows" / damaged).read_bytes()[:-100])
    (out / "rows" / "notes.txt").write_text("mine")
    monkeypatch.undo()
    told.clear()
    outcome = run(study, out, batch=2, on_progress=told.append)
    assert (outcome.episodes, outcome.failed) == (EPISODES, {})
    assert not list((out / "errors").iterdir())
    assert (out / "rows" / "notes.txt").read_text() == "mine"
    stray, broken = [progress.message for progress in told if progress.message]
    assert stray == f"{out}/rows/notes.txt: belongs to no chunk of this study, and is left alone"
    assert broken.startswith(f"{out}/rows/{damaged}: not a readable Parquet file (")
    assert broken.endswith("; it is made again")
    again = {damaged, f"{tries[0]}.parquet"}
    assert {name for name, written in shards(out).items() if before[name] == written} == before.keys() - again
    assert_same_rows(rows(out), whole)


def test_machines_that_split_a_study_play_it_once_and_their_parts_join(study, undisturbed, tmp_path):
    parts = [tmp_path / "one", tmp_path / "two"]
    outcomes = [run(study, part, batch=2, shard=f"{i}/2", command=["x"]) for i, part in enumerate(parts, 1)]
    assert sum(outcome.episodes for outcome in outcomes) == EPISODES
    assert [len(shards(part)) for part in parts] == [CHUNKS / 2] * 2
    for i, part in enumerate(parts, 1):
        manifest = read_manifest(part)
        assert (manifest["shard"], manifest["command"], len(manifest["chunks"])) == (f"{i}/2", ["x"], CHUNKS)
    half, whole = tmp_path / "half", tmp_path / "whole"
    assert merge(parts[1:], half) == Merged(half, played=3, failed=0, missing=3)
    assert merge(parts, whole) == Merged(whole, played=CHUNKS, failed=0, missing=0)
    before = shards(half), shards(whole)
    for out, had in zip((half, whole), before, strict=True):  # the study goes on there
        assert run(study, out, batch=2).episodes == EPISODES
        assert had.items() <= shards(out).items()
        assert_same_rows(rows(out), rows(undisturbed.folder))
        assert recorded(out).keys() == recorded(undisturbed.folder).keys()
    assert shards(whole) == before[1]


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1/0", "2", "1/2/3", "-1/2", "1.0/2", "", "１/2", "1/9999999999", 1])
def test_an_impossible_shard(study, tmp_path, shard):
    with pytest.raises(InputError, match=r"^shard is .*; allowed: i/n with 1 <= i <= n < 10\^9, such as 1/3$"):
        run(study, tmp_path / "out", shard=shard)
    assert not (tmp_path / "out").exists()


def test_a_shard_of_more_machines_than_chunks_is_empty(study, tmp_path):
    told = []
    outcome = run(study, tmp_path, batch=2, shard=f"{CHUNKS + 1}/{CHUNKS + 1}", on_progress=told.append)
    assert (outcome.episodes, outcome.failed) == (0, {})
    assert {(progress.done, progress.total) for progress in told} == {(0, 0)}
    assert f"has nothing to play: the study has {CHUNKS} chunks" in told[-1].message


def test_finished_rows_are_let_go(study, tmp_path, monkeypatch):
    """A device worker holds what it plays, and nothing of the chunks before."""
    play, played, held = DeviceWorker.play, [], []

    def watch(worker, chunk, record, on_step):
        held.append(sum(reference() is not None for reference in played))
        result = play(worker, chunk, record, on_step)
        played.append(weakref.ref(result))
        return result

    monkeypatch.setattr(DeviceWorker, "play", watch)
    run(study, tmp_path, batch=2)
    assert held == [0] * CHUNKS


def test_a_full_disk_ends_the_study_and_keeps_what_is_finished(study, undisturbed, tmp_path, monkeypatch):
    out = tmp_path / "out"
    sync = os.fsync

    def full(file):
        if len(shards(out)) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(file)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"out/\w+/[^/]+: cannot be written \(No space left on device\)$"):
        run(study, out, batch=2)
    assert not workers(os.getpid())
    assert not list(out.glob("*/.*"))
    before = shards(out)
    assert len(before) == 2
    monkeypatch.undo()
    run(study, out, batch=2)
    assert before.items() <= shards(out).items()
    assert_same_rows(rows(out), rows(undisturbed.folder))


def test_a_wrong_setting_of_the_machine_is_wrong_input(study, tmp_path, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    with pytest.raises(InputError, match="MUJOCO_GL is 'glfw'"):
        run(study, tmp_path / "out", batch=2)
    assert not list((tmp_path / "out" / "errors").iterdir())
    assert not workers(os.getpid())


def test_environments_that_do_not_start_end_the_study_at_once(study, tmp_path, monkeypatch):
    tried = []

    def never(env, seeds):
        tried.append(seeds)
        raise WorkerError("no physics here")

    monkeypatch.setattr(HostEnv, "reset", never)
    with pytest.raises(WorkerError, match="no physics here"):
        run(study, tmp_path, batch=2)
    assert 2 <= len(tried) <= 2 * len(jax.local_devices())


def test_an_error_of_the_callers_own_is_no_failed_chunk(study, undisturbed, tmp_path):
    def show(progress):
        if progress.done:
            raise RuntimeError("the caller's own")

    with pytest.raises(RuntimeError, match="the caller's own"):
        run(study, tmp_path, batch=2, on_progress=show)
    assert not list((tmp_path / "errors").iterdir())


def test_results_of_other_versions_do_not_mix(study, undisturbed, tmp_path):
    manifest = read_manifest(undisturbed.folder)
    manifest["identity"]["versions"]["mujoco"] = "0.0"
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"mujoco"):
        run(study, tmp_path, batch=2)


def test_a_study_on_the_device_gives_the_same_table(study, undisturbed, tmp_path, caplog):
    there = replace(study, backend="device", objectives=("vsa",))
    first = run(there, tmp_path / "out", batch=2)
    assert first.failed == {}
    ours = rows(first.folder)
    theirs = [row for row in rows(undisturbed.folder) if row["objective"] != "random"]
    for one, other in zip(ours, theirs, strict=True):
        assert list(one) == list(other)
        assert (one["backend"], other["backend"]) == ("device", "host")
        for name in (*CELL, "agent", "max_return", "length", "attacked", "nan", "victim_sha256"):
            assert one[name] == other[name], name
        assert {name for name in DIAGNOSTICS if np.isnan(one[name])} == {
            name for name in DIAGNOSTICS if np.isnan(other[name])
        }
        # Other starts from the same distribution: the pole is almost upright, and all that happens in 8 steps alike.
        assert one["return"] == pytest.approx(other["return"], rel=0.1)
        if one["objective"] == "vsa":
            assert one["value_clean"] == pytest.approx(other["value_clean"], rel=0.1)
    (probe,) = (row for row in ours if row["objective"] == "vsa" and not row["eps"])
    assert probe["return"] == ours[0]["return"]  # that of the clean episode of the same seed
    lost = next((first.folder / "rows").iterdir())
    lost.unlink()
    with jax.log_compiles(), caplog.at_level("WARNING", logger="jax"):
        run(there, first.folder, batch=2)
        run(
            replace(there, seeds=(5,), budgets=(0.1,), objectives=("lda",), modes=("sparse(3)",)),
            tmp_path / "b",
            batch=2,
        )
        assert [entry for entry in caplog.records if entry.getMessage().startswith("Compiling")] == []
    assert_same_rows(rows(first.folder), ours)
