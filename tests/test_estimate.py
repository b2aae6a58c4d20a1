"""What a dry run says: counts, operations, the queue and the batch; and that it leaves nothing behind."""

import json
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import wmjax
from wmjax import attacks, runtime
from wmjax.core.convolution import conv
from wmjax.core.errors import InputError
from wmjax.rollout.step import _perturb, draw_at, frame_at, initial_state
from wmjax.study import estimate as estimates
from wmjax.study.benchmark_run import Cost, Tried
from wmjax.study.estimate import duration, estimate, frames, queue, steps, told
from wmjax.study.flops import flops, step_flops
from wmjax.study.memory import batch_size, example_bytes
from wmjax.study.run import run
from wmjax.study.run_plan import prepare
from wmjax.study.study_file import parse_study

AGENT = "dmc_cartpole_balance_r2dreamer_1m"
STUDY = {
    "victims": [AGENT],
    "objectives": ["random", "vsa", "pda"],
    "optimizers": ["fgsm", "pgd"],
    "budgets": [0, 0.03],
    "seeds": [20, 21, 22],
    "modes": ["full", "sparse(4)"],
    "steps": 5,
    "episode_steps": 8,
}


def study(**changes):
    return parse_study(STUDY | changes)


def fake(examples) -> Tried:
    """A trial in which an attacked agent step takes 2 s, another 1 s, and programs 10 s to load."""
    kinds = [kind for kind, _ in examples]
    return Tried(
        python=3.0, start=4.0, reset=0.5, first=dict.fromkeys(kinds, 50.0),
        costs={kind: Cost(10.0, 1.0 + kind.attacked, 0.25, 4000.0) for kind in kinds},
        shard_bytes=20_000.0, host_bytes=1e9, device_bytes=None,
    )  # fmt: skip


@pytest.fixture
def without_trial(monkeypatch):
    monkeypatch.setattr(estimates, "try_out", lambda job, examples: fake(examples))


def test_counts_of_a_small_study(without_trial, tmp_path):
    found = estimate(prepare(study(), tmp_path / "out", batch=2))
    assert (found.clean, found.attacked, found.probes) == (3, 5 * 2 * 3, 3)  # random, and two objectives twice
    assert found.cells == 1 + 5 * 2 + 3
    assert (found.done, found.batch) == (0, 2)
    # Clean: 2. In mode full random has 4 episodes, fgsm and pgd 7 each; in the other one 3, 6 and 6.
    assert found.chunks == 2 + (2 + 4 + 4) + (2 + 3 + 3)
    assert found.programs == 3  # without steps, fgsm, pgd
    assert found.steps == (3 + 30 + 3) * 8
    assert found.untried == 0
    assert found.disk_bytes == 20 * 20_000 + (1 + 5 * 2) * 8 * 4000
    assert not (tmp_path / "out").exists()
    assert sum(found.seconds.values()) == found.wall
    text = dict(found.lines())
    assert text["cells"] == "14; episodes: 3 clean, 30 attacked, probes: 3"
    assert text["compiled"] == f"the programs, just now, in {duration(40.0 * 4)}"


def test_a_part_of_a_study_and_nothing_left(without_trial, monkeypatch, tmp_path):
    whole = estimate(prepare(study(), tmp_path, batch=2))
    parts = [estimate(prepare(study(), tmp_path, batch=2, shard=f"{i}/2")) for i in (1, 2)]
    for name in ("clean", "attacked", "probes", "chunks", "steps"):
        assert sum(getattr(part, name) for part in parts) == getattr(whole, name)
    assert sum(part.flops for part in parts) == pytest.approx(whole.flops)
    monkeypatch.setattr(estimates, "finished", lambda *_: True)
    over = estimate(prepare(study(), tmp_path, batch=2))
    assert (over.done, over.chunks, over.steps, over.flops, over.programs) == (36, 0, 0, 0.0, 0)
    assert over.wall == pytest.approx(3.0 + over.seconds["report"])


def test_agent_steps_of_a_chunk_by_kind():
    job = prepare(study(), batch=2)
    by_mode = {chunk.episodes[0].mode: steps(job, chunk) for chunk in job.chunks if chunk.episodes[0].steps == 5}
    (attacked,) = by_mode["full"]
    assert by_mode["full"] == {attacked: 8}
    assert list(by_mode["sparse(4)"].values()) == [2, 6]
    spared = list(by_mode["sparse(4)"])[1]
    assert by_mode["sparse(4)"][attacked] == 2
    clean = next(chunk for chunk in job.chunks if chunk.episodes[0].objective == "clean")
    assert steps(job, clean) == {spared: 8}
    assert not spared.attacked


def test_frames_that_an_online_rule_attacks():
    assert frames(attacks.timing("policy_gap(0.1)", 100), 4) == 100
    assert frames(attacks.timing("policy_top(10)", 100), 1) == 10
    assert frames(attacks.timing("policy_top(10)", 100), 2) == 19  # two episodes of ten each, one frame in common
    assert frames(attacks.timing("second_half", 1), 2) == 0


def test_the_queue_of_two_lanes():
    job = prepare(study(objectives=["vsa"], optimizers=["pgd"], modes=["full"]), batch=2)
    job = replace(job, devices=job.devices[:1] * 2)
    chunks = [chunk for chunk in job.chunks if chunk.episodes[0].objective == "vsa"]
    assert [len(chunk.episodes) for chunk in chunks] == [2, 2]
    kinds = {kind: chunk for chunk in job.chunks for kind in steps(job, chunk)}
    trial = fake(kinds.items())
    costs = told(trial, dict.fromkeys(kinds, 1.0))
    records = [1, 0, 0]
    clean = [chunk for chunk in job.chunks if chunk.episodes[0].objective == "clean"][:1]
    found = queue(job, chunks + clean, trial, costs, records)
    # One device worker: 4 + 10 + 8 * 2, and 8 * 0.25 of recordings. The other: the same without, then 0.5 + 10 + 8 * 1.
    assert found == {
        "environments": (4 + 4 + 0.5) / 2,
        "loading programs": 30 / 2,
        "playing": (16 + 16 + 8) / 2,
        "recordings": 2 / 2,
        "waiting for the last device worker": 48.5 - (32 + 48.5) / 2,
    }


def test_kinds_that_were_not_tried_are_told_from_their_nearest_relative():
    job = prepare(study(), batch=2)
    kinds = {kind: chunk for chunk in job.chunks for kind in steps(job, chunk)}
    small, large, other, clean = sorted(
        kinds, key=lambda kind: (not kind.attacked, kind.program.attack.optimizer.steps)
    )
    work = {small: 1.0, large: 6.0, other: 2.0, clean: 6.0}
    costs = told(fake([(small, None), (other, None), (clean, None)]), work)
    assert {kind: (cost.load, cost.step) for kind, cost in costs.items()} == {
        small: (10.0, 2.0), other: (10.0, 2.0), large: (50.0, 6.0), clean: (10.0, 1.0)
    }  # fmt: skip


def test_a_wrong_study_is_refused_as_by_run(without_trial, tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps({"identity": {"batch": 3}}))
    wrong = [
        {"study": study(victims=["nobody"])},
        {"study": study(), "batch": 0},
        {"study": study(), "shard": "3/2"},
        {"study": study(tasks=["dmc_walker_walk"])},
        {"study": str(tmp_path / "missing.toml")},
        {"study": study(), "out": tmp_path},
    ]
    for given in wrong:
        given = {"out": tmp_path / "out"} | given
        with pytest.raises(InputError) as one:
            run(**given)
        with pytest.raises(InputError) as other:
            estimate(prepare(**given))
        assert str(one.value) == str(other.value)
    assert not (tmp_path / "out").exists()


def test_a_trial_on_a_real_agent_writes_nothing(tmp_path):
    tiny = study(objectives=["random"], modes=["full"], seeds=[20, 21], episode_steps=4)
    job = prepare(tiny, tmp_path / "out", batch=2)
    found = estimate(job)
    assert list(tmp_path.iterdir()) == []
    assert found.wall > sum(found.seconds[name] for name in ("start", "playing")) > 0
    assert min(found.seconds.values()) >= 0
    assert found.host_bytes > 1e8
    assert found.device_bytes is None
    assert 10_000 < found.disk_bytes < 1e6
    assert found.chunks == 3  # clean, random, and the probe with it


@pytest.fixture(scope="module")
def victim():
    return wmjax.load(AGENT)[0]


def test_flops_of_known_programs():
    a, b = jnp.ones((3, 5)), jnp.ones((5, 7))

    def rounds(x):
        return jax.lax.scan(
            lambda c, _: (c, jax.lax.cond(c.sum() > 0, lambda: (a @ b) @ c, lambda: a[:, :4] * 0)), x, length=6
        )

    program = jax.make_jaxpr(rounds)(jnp.ones((7, 4))).jaxpr
    assert flops(program) == 6 * 2 * (3 * 5 * 7 + 3 * 7 * 4)
    assert flops(program, asked=False) == 0
    image, kernel = jnp.ones((2, 8, 8, 4)), jnp.ones((2, 2, 4, 32))
    direct = 2 * 2 * 64 * 4 * 4 * 32
    assert flops(jax.make_jaxpr(conv)(image, kernel).jaxpr) == direct
    image, kernel = jnp.ones((2, 8, 8, 16)), jnp.ones((5, 5, 16, 32))
    direct, ours = 2 * 2 * 64 * 25 * 16 * 32, jax.make_jaxpr(conv)(image, kernel).jaxpr
    assert flops(ours, "cuda") == direct
    assert flops(ours, "cpu") == pytest.approx(direct * 8 / 20)  # eight rows of products where there were 4 * 5


def test_flops_scale_with_iterations_and_frames(victim):
    @cache
    def count(steps, batch=2, source=None, critic=False):
        attack = attacks.Attack(attacks.optimizer("pgd", steps), source=source)
        return step_flops(victim, attack, batch, attacked=True, critic=critic)

    five = count(5)
    assert count(9) - five == pytest.approx(4 * (count(6) - five))
    assert count(5, batch=4) == pytest.approx(2 * five, rel=1e-3)
    assert count(5, critic=True) > five
    assert count(5, source=victim) > five
    clean = step_flops(victim, attacks.Attack(), 2, attacked=False)
    assert 0 < clean < five - 4 * (count(6) - five)


def test_a_batch_fits_the_memory(victim, monkeypatch):
    cpu, gpu = (
        SimpleNamespace(platform="cpu"),
        SimpleNamespace(platform="gpu", memory_stats=lambda: {"bytes_limit": room}),
    )
    each = example_bytes(victim)
    small = study()
    assert batch_size(small, [victim], [cpu]) == 4
    room = 2 * 1000 * each
    assert batch_size(small, [victim], [gpu, gpu]) == 64
    room = 2 * 31 * each
    assert batch_size(small, [victim], [gpu]) == 16
    room = each // 2
    assert batch_size(small, [victim], [gpu]) == 1
    room = 2 * 1000 * each
    drawn = study(defenses=["none", "noise(0.04)"], adaptive=[True], draws=64)
    assert batch_size(drawn, [victim], [gpu]) == 8
    assert batch_size(drawn, [victim], [SimpleNamespace(platform="tpu", memory_stats=lambda: None)]) == 64
    monkeypatch.setattr(runtime, "memory", lambda devices: 2 * 3 * each)
    assert batch_size(small, [victim], [cpu]) == 2


def test_bytes_of_an_example_are_more_than_its_program_takes(victim):
    batch = 8
    params = jax.eval_shape(victim.init, jax.random.key(0))
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), batch))
    goals = attacks.threat(["vsa"] * batch, [0.03] * batch)
    attack = attacks.Attack(attacks.optimizer("fgsm"))
    image, t = jax.ShapeDtypeStruct((batch, 64, 64, 3), jnp.uint8), jax.ShapeDtypeStruct((), jnp.int32)

    def aimed(params, image, keys, t):
        state = initial_state(victim, batch, 1)
        frame = frame_at(attack, victim, params, state.belief, state.action, image, keys, t, goals)
        return frame, draw_at(victim, keys, t)

    frame, drawn = jax.eval_shape(aimed, params, image, keys, t)
    measured = _perturb.lower(attack, victim, params, frame, drawn, goals).compile().memory_analysis()
    needed = batch * example_bytes(victim)
    assert needed / 4 < measured.temp_size_in_bytes < needed


def test_durations_are_written_as_people_do():
    assert [duration(s) for s in (0.04, 59.94, 90, 3599, 3 * 3600 + 61)] == [
        "0.0 s",
        "59.9 s",
        "1.5 min",
        "1 h 0 min",
        "3 h 1 min",
    ]
