"""How a gradient becomes a step: parts that are chained, each fed with what the one before made of the gradient.

Smoothing (TI, arXiv 1904.02884), momentum (MI, arXiv 1710.06081), Nesterov's (NI, arXiv 1908.06281), and the sign.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

DECAY = 1.0
"""How much of the momentum outlives a step."""

KERNEL, DEVIATIONS = 15, 3.0
"""Width of the smoothing kernel in pixels, and how many standard deviations its half covers."""


@dataclass(frozen=True)
class Direction:
    """One part: `init(image) -> state`, and `update(gradient, state) -> (direction, state)`.

    `ahead(state)` says how far ahead of the iterate the gradient is taken, in units of the step; None: at the iterate.
    """

    init: Callable[[jax.Array], Any]
    update: Callable[[jax.Array, Any], tuple[jax.Array, Any]]
    ahead: Callable[[Any], jax.Array] | None = None


def _remember(gradient: jax.Array, momentum: jax.Array) -> tuple[jax.Array, jax.Array]:
    size = jnp.mean(jnp.abs(gradient), axis=(1, 2, 3), keepdims=True)
    # A zero gradient adds nothing; the second `where` keeps 0 / 0 from being computed at all.
    unit = jnp.where(size > 0, gradient / jnp.where(size > 0, size, 1.0), 0.0)
    momentum = DECAY * momentum + unit
    return momentum, momentum


def _smooth(gradient: jax.Array, state: tuple) -> tuple[jax.Array, tuple]:
    _, height, width, _ = gradient.shape
    across = jnp.einsum("wv,bhvc->bhwc", gaussian(width), gradient, precision="highest")
    return jnp.einsum("hg,bgwc->bhwc", gaussian(height), across, precision="highest"), state


def gaussian(size: int) -> np.ndarray:
    """Return the matrix [size, size] that smooths along one axis, with zeros beyond the border, float32."""
    bell = np.exp(-0.5 * np.linspace(-DEVIATIONS, DEVIATIONS, KERNEL) ** 2)
    offset = np.arange(size)[:, None] - np.arange(size) + KERNEL // 2
    near = (offset >= 0) & (offset < KERNEL)
    return np.where(near, (bell / bell.sum())[offset.clip(0, KERNEL - 1)], 0).astype(np.float32)


SIGN = Direction(init=lambda image: (), update=lambda gradient, state: (jnp.sign(gradient), state))
"""Steepest ascent under the L-inf norm; a zero gradient moves nothing."""

MOMENTUM = Direction(init=jnp.zeros_like, update=_remember)
"""The running sum of gradients, each over its mean magnitude."""

NESTEROV = Direction(init=jnp.zeros_like, update=_remember, ahead=lambda momentum: DECAY * momentum)
"""Momentum whose gradient is taken where the momentum leads."""

SMOOTH = Direction(init=lambda image: (), update=_smooth)
"""The gradient under a Gaussian kernel: about the mean over shifted images."""
