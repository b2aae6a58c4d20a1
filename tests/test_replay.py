"""The replay: what is drawn is what was written, in order, with what came before it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import QUICK

from wmjax.agents.base import Belief
from wmjax.train.replay import Moment, classes, empty, refresh, sample, write

EPISODES, GROUPS, DETER = 3, 4, 2


def moment(t, victim):
    """Moment number `t` of all episodes; every array tells where and when it is from."""
    mark = t * 10 + jnp.arange(EPISODES)
    spread = lambda *shape: jnp.broadcast_to(mark.reshape(-1, *[1] * len(shape)), (EPISODES, *shape))  # noqa: E731
    return Moment(
        image=spread(2, 2, 3).astype(jnp.uint8),
        action=spread(victim.action_size).astype(jnp.float32),
        reward=mark.astype(jnp.float32),
        is_first=jnp.full(EPISODES, t % 5 == 0),
        is_last=jnp.full(EPISODES, t % 5 == 4),
        stoch=spread(GROUPS).astype(jnp.int8) % victim.discrete,
        deter=spread(DETER).astype(jnp.float32),
    )


@partial(jax.jit, static_argnums=(0, 1, 2, 3), compiler_options=QUICK)
def drawn(victim, capacity, size, length, count, key):
    """Sequences from a ring into which `count` moments were written."""
    first = moment(jnp.int32(0), victim)
    replay = jax.lax.fori_loop(0, count, lambda t, ring: write(ring, moment(t, victim)), empty(first, capacity))
    batch, where = sample(victim, replay, size, length, key)
    return replay, batch, where


@settings(max_examples=30)
@given(st.integers(5, 60), st.integers(0, 2**31 - 1))
def test_sequences_are_runs_of_the_newest_moments(tiny, count, seed):
    victim, capacity, size, length = tiny[0], 12, 16, 4
    _, batch, _ = drawn(victim, capacity, size, length, count, jax.random.key(seed))
    reward = np.asarray(batch.reward)
    times, episodes = reward // 10, reward % 10
    assert set(episodes.ravel()) <= set(range(EPISODES))
    np.testing.assert_array_equal(np.diff(times, axis=1), 1)
    np.testing.assert_array_equal(np.diff(episodes, axis=1), 0)
    assert times.max() <= count - 1
    assert times.min() >= max(count - capacity, 0) + 1  # one more moment gives the initial belief
    np.testing.assert_array_equal(batch.action, np.repeat(reward[..., None] - 10, victim.action_size, 2))
    np.testing.assert_array_equal(batch.initial.deter, np.repeat(reward[:, :1] - 10, DETER, 1))
    np.testing.assert_array_equal(batch.is_first, times % 5 == 0)
    np.testing.assert_array_equal(batch.is_last, times % 5 == 4)
    assert not np.any(batch.is_terminal)
    np.testing.assert_array_equal(batch.image, np.broadcast_to(reward[..., None, None, None], batch.image.shape) % 256)
    np.testing.assert_array_equal(
        classes(batch.initial.stoch), np.repeat(((reward[:, :1] - 10) % 256 % victim.discrete), GROUPS, 1)
    )


def test_every_start_is_drawn(tiny):
    _, batch, _ = drawn(tiny[0], 12, 512, 4, 30, jax.random.key(0))
    assert set(np.asarray(batch.reward)[:, 0] // 10) == set(range(19, 27))


def test_new_beliefs_go_where_the_frames_came_from(tiny):
    victim = tiny[0]
    replay, batch, where = drawn(victim, 12, 5, 4, 30, jax.random.key(3))
    stoch = jax.nn.one_hot(jnp.full((5, 4, GROUPS), 2), victim.discrete)
    after = refresh(replay, where, Belief(stoch, -batch.reward[..., None].repeat(DETER, 2)))
    old, new = (np.asarray(ring.moments.deter)[..., 0] for ring in (replay, after))
    touched = np.zeros_like(old, bool)
    touched[np.asarray(where.episode), np.asarray(where.column)] = True
    np.testing.assert_array_equal(new, np.where(touched, -old, old))
    np.testing.assert_array_equal(np.asarray(after.moments.stoch)[touched], 2)
    np.testing.assert_array_equal(after.moments.reward, replay.moments.reward)
