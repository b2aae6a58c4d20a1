"""Whole attacked episodes as one program on the device: the host driver's episodes, and compiled once."""

import jax
import numpy as np
import pytest
from waves import arrays

import wmjax
from wmjax import attacks, rollout
from wmjax.core.errors import InputError
from wmjax.rollout import drivers

TASK, SIBLING = "dmc_cartpole_balance", "dmc_cartpole_swingup"
AGENT = "dmc_cartpole_balance_r2dreamer_1m"
NAMES = ("vsa", "lda")
BATCH = len(NAMES)
T = 8
FULL = np.ones(T, bool)
PGD = attacks.Attack(attacks.optimizer("pgd", 2))
SEEDS = (20, 21)


@pytest.fixture(scope="module")
def agent():
    return wmjax.load(AGENT)


@pytest.fixture(scope="module")
def env():
    with wmjax.envs.make(TASK, backend="device", batch=BATCH) as env:
        yield env


def play(
    agent, env, drive=rollout.device, names=NAMES, eps=8 / 255, mask=FULL, seeds=SEEDS, record=range(BATCH), **more
):
    keys = jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32))
    return drive(
        *agent, env, PGD, attacks.threat(names, [eps] * BATCH), mask, seeds=seeds, keys=keys, attack_keys=keys,
        record=list(record), **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def attacked(agent, env):
    return play(agent, env)


@pytest.fixture(scope="module")
def clean(agent, env):
    return play(agent, env, mask=~FULL)


def test_the_two_drivers_play_the_same_episodes(agent, env, attacked, clean):
    for mask, ours in ((FULL, attacked), (~FULL, clean)):
        theirs = play(agent, env, rollout.host, mask=mask)  # the same physics and pixels, called from outside
        np.testing.assert_allclose(ours.returns, theirs.returns, rtol=1e-5)
        np.testing.assert_array_equal(ours.nan, theirs.nan)
        for i, trace in theirs.traces.items():
            np.testing.assert_array_equal(ours.traces[i].frames[0], trace.frames[0])
            np.testing.assert_allclose(ours.traces[i].action[0], trace.action[0], atol=2e-3)
            shapes = [{name: (v.shape, v.dtype) for name, v in arrays(t).items()} for t in (ours.traces[i], trace)]
            assert shapes[0] == shapes[1]
        for name, values in theirs.diagnostics.items():
            assert np.isnan(values).all() == np.isnan(ours.diagnostics[name]).all() == (not mask.any())
    assert attacked.returns.dtype == np.float64


def test_a_zero_budget_is_the_clean_trajectory(agent, env, clean):
    zero = play(agent, env, eps=0.0)
    np.testing.assert_array_equal(zero.returns, clean.returns)
    for i, trace in clean.traces.items():
        for name in ("frames", "seen", "reward", "action"):
            np.testing.assert_array_equal(getattr(zero.traces[i], name), getattr(trace, name), err_msg=name)
    for name in ("max_delta", "saturated", "drift_h", "drift_z"):
        assert not zero.diagnostics[name].any(), name
    for name in ("action_change", "policy_kl"):
        np.testing.assert_allclose(zero.diagnostics[name], 0, atol=1e-6, err_msg=name)


def test_an_attack_changes_what_is_seen_within_its_budget_and_where_the_mask_says(agent, env, attacked, clean):
    assert (attacked.returns != clean.returns).all()
    assert (attacked.diagnostics["max_delta"] > 0.9 * 8 / 255).all()
    assert (np.float64(attacked.diagnostics["max_delta"]) <= 8 / 255).all()
    mask = np.array([False, False, True, False, True, False, False, False])
    result = play(agent, env, mask=mask)
    for i, trace in result.traces.items():
        np.testing.assert_array_equal(trace.frames[:3], clean.traces[i].frames[:3])
        np.testing.assert_array_equal((trace.seen != trace.frames).any(axis=(1, 2, 3)), mask)
    assert result.diagnostics["loss_last"][0] > result.diagnostics["loss_first"][0]


def test_frames_that_are_left_alone_cost_no_attack(agent, env):
    victim, params = agent
    keys = jax.vmap(jax.random.key)(np.asarray(SEEDS, np.uint32))

    def program(mask):
        loop = rollout.start(victim, env.reset(SEEDS).worlds, T)
        aim = attacks.threat(NAMES, [0.1] * BATCH)
        return rollout.scan(victim, PGD, env.world, params, env.scene, loop, aim, mask, keys, keys)

    (loop,) = (
        eqn for eqn in jax.make_jaxpr(program)(FULL).eqns if eqn.primitive.name == "scan" and eqn.params["length"] == T
    )
    body = loop.params["jaxpr"].jaxpr
    branches = [[str(branch) for branch in eqn.params["branches"]] for eqn in body.eqns if eqn.primitive.name == "cond"]
    assert len(branches) == 2  # the attack and its diagnostics: real branches, not a choice between two results
    for spared, taken in branches:
        assert "dot_general" in taken
        assert "dot_general" not in spared
        assert "conv_general_dilated" not in spared


def test_one_program_serves_a_whole_study(agent, env, attacked, caplog):
    victim, params = agent
    other = victim, jax.tree.map(lambda x: x * np.float32(0.99), params)
    with (
        wmjax.envs.make(SIBLING, backend="device", batch=BATCH) as sibling,
        jax.log_compiles(),
        caplog.at_level("WARNING", logger="jax"),
    ):
        play(agent, env, seeds=(1, 2**32 - 1))
        play(agent, env, names=NAMES[::-1], eps=0.02, mask=attacks.timing("sparse(2)", T).mask)
        play(other, env, record=())
        swung = play(agent, sibling, record=[1])
        counted = [entry.getMessage() for entry in caplog.records if entry.getMessage().startswith("Compiling")]
        assert counted == []
        jax.jit(lambda x: x + 1)(swung.returns)  # that compilations are counted at all
    assert any(entry.getMessage().startswith("Compiling") for entry in caplog.records)
    assert (np.abs(swung.returns - attacked.returns) > 1).all()


def test_long_episodes_are_played_in_equal_parts(agent, env, attacked):
    class Stop(Exception):
        pass

    def stop(t):
        seen.append(t)
        if t >= T:
            raise Stop

    seen: list[int] = []
    with pytest.raises(Stop):
        play(agent, env, mask=np.ones(53 * T, bool), on_step=stop, record=())  # 53 is prime, and more than a part
    assert seen == [0, T]


@pytest.mark.parametrize(
    ("steps", "batch", "call"), [(500, 4, 50), (500, 256, 50), (500, 4096, 2), (499, 1, 1), (7, 1, 7)]
)
def test_calls_are_of_equal_length_and_bounded_memory(steps, batch, call):
    assert drivers.call_length(steps, batch) == call


def test_a_world_that_breaks_is_flagged_and_leaves_the_others_alone(agent, env, attacked):
    victim, params = agent
    broken = params | {"actor": jax.tree.map(lambda x: x * np.nan, params["actor"])}
    result = play((victim, broken), env)
    assert result.nan.all()
    assert np.isnan(result.returns).all()
    assert all(not trace.action.any() for trace in result.traces.values())
    assert not attacked.nan.any()


def test_one_policy_that_is_not_finite_breaks_its_episode(agent, env, attacked, monkeypatch):
    real = drivers._scan

    def breaks_in_the_middle(*arguments):
        loop, past = real(*arguments)
        return loop, past.replace(nan=past.nan.at[2, 0].set(True))

    monkeypatch.setattr(drivers, "_scan", breaks_in_the_middle)
    result = play(agent, env)
    assert result.nan.tolist() == [True, False]
    np.testing.assert_array_equal(result.returns, [np.nan, attacked.returns[1]])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"seeds": (1, 2, 3)}, "keys has shape"),
        ({"mask": np.ones(T)}, "mask is"),
        ({"mask": np.ones(0, bool)}, "mask is"),
        ({"mask": np.ones(501, bool)}, "mask has 501 entries"),
        ({"record": [BATCH]}, "record is"),
        ({"record": [0.0]}, "record is"),
        ({"seeds": (1, -4)}, "seeds must be"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_are_refused(agent, env, wrong, words):
    keys = jax.random.split(jax.random.key(0), BATCH)
    given = {"mask": FULL, "seeds": SEEDS, "record": []} | wrong
    aim = attacks.threat(NAMES, [0.1] * BATCH)
    with pytest.raises(InputError, match=words):
        rollout.device(*agent, env, PGD, aim, given.pop("mask"), keys=keys, attack_keys=keys, **given)
