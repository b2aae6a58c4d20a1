"""What one update learns from: sequences of replayed frames, and random numbers."""

from dataclasses import replace
from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import struct

from wmjax.agents.base import Belief
from wmjax.agents.dreamer import Dreamer
from wmjax.train.recipe import Recipe

T = TypeVar("T")


@struct.dataclass
class Batch:
    """B sequences of T frames."""

    image: jax.Array  #: [B, T, H, W, C] uint8
    action: jax.Array  #: [B, T, A] taken before each frame, on which the frame follows
    reward: jax.Array  #: [B, T] that came with each frame
    is_first: jax.Array  #: [B, T] bool, the frame begins an episode
    is_last: jax.Array  #: [B, T] bool, the frame ends one
    is_terminal: jax.Array  #: [B, T] bool, it ends it for good: nothing would have followed
    initial: Belief  #: [B] what the agent believed before the first frame


@struct.dataclass
class Noise:
    """The random numbers of an update, with I = imag_horizon + 1 and N = B * T."""

    post: jax.Array  #: [T, B, G, K] Gumbel, of the posterior's samples
    action: jax.Array  #: [I, N, A] standard normal, of the imagined actions
    prior: jax.Array  #: [I, N, G, K] Gumbel, of the imagined latents
    shift: jax.Array | None = None  #: [2 B, 2] int32 in [0, 2 max_delta], along W and H (dreamerpro, as the next)
    augmented: jax.Array | None = None  #: [T, 2 B, G, K] Gumbel, of the posterior's samples for shifted images


def flat(sequences: T) -> T:
    """Return the frames of arrays [B, T, ...] in one row: [B * T, ...]."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), sequences)


def draw(victim: Dreamer, recipe: Recipe, batch: int, length: int, key: jax.Array) -> Noise:
    """Draw the noise of an update of `batch` sequences of `length` frames; the key is consumed."""
    keys = jax.random.split(key, 5)
    imagined, latent = (recipe.imag_horizon + 1, batch * length), victim.latent_shape
    noise = Noise(
        post=jax.random.gumbel(keys[0], (length, batch, *latent)),
        action=jax.random.normal(keys[1], (*imagined, victim.action_size)),
        prior=jax.random.gumbel(keys[2], (*imagined, *latent)),
    )
    if victim.agent != "dreamerpro":
        return noise
    return replace(
        noise,
        shift=jax.random.randint(keys[3], (2 * batch, 2), 0, 2 * recipe.max_delta + 1, jnp.int32),
        augmented=jax.random.gumbel(keys[4], (length, 2 * batch, *latent)),
    )
