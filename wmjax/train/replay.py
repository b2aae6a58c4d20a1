"""The replay: a ring of what N episodes side by side have seen, on the device, with the latents of that time."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct

from wmjax.agents.base import Belief
from wmjax.agents.dreamer import Dreamer
from wmjax.train.batch import Batch


@struct.dataclass
class Moment:
    """One frame of N episodes, and what the agent made of it. In the replay: [N, L, ...]."""

    image: jax.Array  #: [N, H, W, C] uint8
    action: jax.Array  #: [N, A] taken on seeing it; zero on an episode's last frame
    reward: jax.Array  #: [N] that came with it
    is_first: jax.Array  #: [N] bool
    is_last: jax.Array  #: [N] bool
    stoch: jax.Array  #: [N, G] int8 or int32, the class of every group
    deter: jax.Array  #: [N, D]


@struct.dataclass
class Replay:
    """The last L moments."""

    moments: Moment  #: [N, L, ...]
    count: jax.Array  #: [] int32, moments ever written

    @property
    def length(self) -> int:
        """L, how many moments there is room for."""
        return self.moments.reward.shape[1]


def empty(moment: Moment, length: int) -> Replay:
    """Return a ring with room for `length` moments like `moment`."""
    blank = lambda x: jnp.zeros((x.shape[0], length, *x.shape[1:]), x.dtype)  # noqa: E731
    return Replay(jax.tree.map(blank, moment), jnp.zeros((), jnp.int32))


def write(replay: Replay, moment: Moment) -> Replay:
    """Return the ring with `moment` in it, over the oldest one once it is full."""
    at = replay.count % replay.length
    put = lambda ring, new: jax.lax.dynamic_update_index_in_dim(ring, new, at, 1)  # noqa: E731
    return Replay(jax.tree.map(put, replay.moments, moment), replay.count + 1)


@struct.dataclass
class Where:
    """Which moments a batch of B sequences is made of."""

    episode: jax.Array  #: [B, 1] int32, of N
    column: jax.Array  #: [B, T] int32, of L


def sample(victim: Dreamer, replay: Replay, size: int, length: int, key: jax.Array) -> tuple[Batch, Where]:
    """Return `size` sequences of `length` frames, drawn uniformly from the ring, and where they stand in it.

    The moment before a sequence gives its initial belief and first action. Sequences may run from one episode into the
    next. The ring must hold more than `length` moments. The key is consumed.
    """
    of_episode, of_start = jax.random.split(key)
    held = jnp.minimum(replay.count, replay.length)
    start = jax.random.randint(of_start, (size, 1), replay.count - held, replay.count - length, jnp.int32)
    episode = jax.random.randint(of_episode, (size, 1), 0, replay.moments.reward.shape[0], jnp.int32)
    column = (start + jnp.arange(length + 1, dtype=jnp.int32)[None]) % replay.length
    past = jax.tree.map(lambda ring: ring[episode, column], replay.moments)
    now = jax.tree.map(lambda x: x[:, 1:], past)
    batch = Batch(
        image=now.image,
        action=past.action[:, :-1],
        reward=now.reward,
        is_first=now.is_first,
        is_last=now.is_last,
        is_terminal=jnp.zeros_like(now.is_last),  # the benchmark's episodes end by their time limit alone
        initial=Belief(one_hot(victim, past.stoch[:, 0]), past.deter[:, 0]),
    )
    return batch, Where(episode, column[:, 1:])


def refresh(replay: Replay, where: Where, belief: Belief) -> Replay:
    """Return the ring with what the agent believes now of the moments `where`: `belief` [B, T]."""
    moments = replay.moments
    at = (where.episode, where.column)
    stoch, deter = moments.stoch.at[at].set(classes(belief.stoch)), moments.deter.at[at].set(belief.deter)
    return replace(replay, moments=replace(moments, stoch=stoch, deter=deter))


def classes(stoch: jax.Array) -> jax.Array:
    """Return the class of every group of one-hot latents [..., G, K]: int8 [..., G]."""
    return jnp.argmax(stoch, axis=-1).astype(jnp.int8)


def one_hot(victim: Dreamer, stoch: jax.Array) -> jax.Array:
    """Return latents [..., G, K] of their classes [..., G]."""
    return jax.nn.one_hot(stoch, victim.discrete, dtype=jnp.float32)
