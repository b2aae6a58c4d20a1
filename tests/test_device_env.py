"""Environments on the device: the host's interface, MuJoCo's pixels and dm_control's rewards, without its processes."""

import jax
import numpy as np
import pytest

import wmjax
from wmjax.core.errors import InputError

TASK = "dmc_cartpole_balance"


@pytest.fixture(scope="module")
def env():
    with wmjax.envs.make(TASK, backend="device", batch=2) as env:
        yield env


@pytest.fixture(scope="module")
def start(env):
    return env.reset([20, 21])


def test_frames_and_rewards_are_those_of_the_host(env, start):
    actions = np.random.default_rng(0).uniform(-1, 1, (5, 2, 1))
    qpos, qvel = (np.asarray(getattr(start.worlds.data, name)) for name in ("qpos", "qvel"))
    with wmjax.envs.make(TASK, batch=2) as host:
        ours, theirs = start, host.state_at(qpos, qvel)
        for action in actions:
            difference = np.abs(env.image(ours).astype(int) - host.image(theirs))
            assert difference.mean() <= 0.6
            assert np.percentile(difference, 99) <= 12
            ours, theirs = env.step(ours, action), host.step(theirs, action)
            np.testing.assert_allclose(ours.reward, theirs.reward, atol=1e-4)
    assert not ours.nan.any()


def test_a_seed_is_an_episode_and_a_state_a_value(env, start):
    again = env.reset([20, 22])
    np.testing.assert_array_equal(again.image[0], start.image[0])
    np.testing.assert_array_equal(again.worlds.data.qpos[0], start.worlds.data.qpos[0])
    assert (np.asarray(again.worlds.data.qpos[1]) != np.asarray(start.worlds.data.qpos[1])).any()
    first, second = (env.step(start, np.ones((2, 1))) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)


def test_a_nan_action_freezes_its_episode_alone(env, start):
    state = env.step(start, np.array([[np.nan], [0.5]]))
    assert state.nan.tolist() == [True, False]
    assert state.reward[0] == 0
    assert state.reward[1] > 0
    np.testing.assert_array_equal(state.image[0], start.image[0])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda env: env.reset([1]), "seeds must be 2 integers"),
        (lambda env: env.reset([-1, 1]), "seeds must be 2 integers"),
        (lambda env: env.step(env.reset([1, 2]), np.zeros((2, 3))), "action must have shape"),
        (lambda env: env.state_at(np.zeros((1, 2)), np.zeros((2, 2))), "qpos must have a first axis of 2"),
        (lambda env: env.state_at(0.0, np.zeros((2, 2))), "qpos must have a first axis of 2"),
        (lambda env: env.state_at(np.full((2, 2), np.nan), np.zeros((2, 2))), "qpos has values that are not finite"),
        (
            lambda env: wmjax.envs.make(TASK, backend="device", batch=2.5),
            "batch is 2.5; allowed: a whole number from 1",
        ),
        (
            lambda env: wmjax.envs.make(TASK, backend="device", workers=0),
            "workers is 0; allowed: a whole number from 1",
        ),
        (lambda env: wmjax.envs.make(TASK, backend="cloud"), "unknown backend 'cloud'; known: device, host"),
    ],
)
def test_wrong_input_is_named(env, call, words):
    with pytest.raises(InputError, match=words):
        call(env)
