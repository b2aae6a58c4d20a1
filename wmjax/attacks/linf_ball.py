"""What every method works on: the ball around a clean image, the projection onto it, and the best point seen."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import struct

from wmjax.core.image import LEVELS

Loss = Callable[[jax.Array], jax.Array]
"""What is maximised: images [B, H, W, C] -> [B], each example's value from its own image alone."""

Tree = TypeVar("Tree")

_LEVELS = 255.0001
"""Grey levels in a budget of 1, and a share of 4e-7 more: float32 budgets, products and quotients fall short of theirs.
"""


@struct.dataclass
class Ball:
    """All images within the budget of a clean one, and within [0, 1]."""

    lower: jax.Array  #: [B, H, W, C]
    upper: jax.Array  #: [B, H, W, C]


def ball(image: jax.Array, eps: jax.Array, region: jax.Array | float = 1.0) -> Ball:
    """Return the L-inf ball of radius `eps` [B] around `image` [B, H, W, C], cut to [0, 1].

    `region`, [B, H, W, C] with any axis but the first also 1, is the share of the radius that a pixel has. The bounds
    are rounded inwards: no float32 in them is further than that from the image, even by a rounding error.
    """
    radius = per_pixel(eps) * region
    return Ball(jnp.maximum(_inwards(image, -radius), 0.0), jnp.minimum(_inwards(image, radius), 1.0))


def project(bounds: Ball, image: jax.Array) -> jax.Array:
    """Return the point of the ball nearest to `image` [B, H, W, C]."""
    return jnp.clip(image, bounds.lower, bounds.upper)


def quantize(image: jax.Array, clean: jax.Array, eps: jax.Array, region: jax.Array | float = 1.0) -> jax.Array:
    """Return `image` [B, H, W, C] rounded to grey levels k / 255, no more levels from `clean` than the ball allows.

    8 / 255 are 8 levels, although neither it nor the levels are exact in float32. `clean` is of grey levels itself.
    """
    most = jnp.floor(_LEVELS * per_pixel(eps) * region)
    middle = jnp.round(255 * clean)
    level = jnp.clip(jnp.clip(jnp.round(255 * image), middle - most, middle + most), 0, 255)
    return jnp.take(LEVELS, level.astype(jnp.int32), mode="clip")


@struct.dataclass
class Problem:
    """Where a loss is to be maximised; nothing of it is shared between examples."""

    image: jax.Array  #: [B, H, W, C] clean, in [0, 1]
    bounds: Ball  #: around it
    eps: jax.Array  #: [B] its radius
    start: jax.Array  #: [B, H, W, C] in the ball: the starting point unless the optimizer has its own
    keys: jax.Array | None = None  #: [B] of methods that draw at random


@struct.dataclass
class Incumbent:
    """The best point of each example so far."""

    image: jax.Array  #: [B, H, W, C]
    value: jax.Array  #: [B] its loss; -inf as long as none was known


def no_incumbent(image: jax.Array) -> Incumbent:
    """Return `image` [B, H, W, C] as the best point for want of another: any loss that is a number beats it."""
    return Incumbent(image, jnp.full(len(image), -jnp.inf, image.dtype))


def update_best(best: Incumbent, image: jax.Array, value: jax.Array) -> Incumbent:
    """Return the better of two points in each example; a loss that is not a number is never better."""
    return select_examples(value > best.value, Incumbent(image, value), best)


def select_examples(chosen: jax.Array, one: Tree, other: Tree) -> Tree:
    """Return the examples of `one` where `chosen` [B], else those of `other`; both are trees of arrays [B, ...]."""
    along = lambda leaf: chosen.reshape(-1, *[1] * (leaf.ndim - 1))  # noqa: E731
    return jax.tree.map(lambda a, b: jnp.where(along(a), a, b), one, other)


def keys_at(problem: Problem, t: int | jax.Array) -> jax.Array:
    """Return each example's key [B] for step (or start) `t`."""
    return jax.vmap(lambda key: jax.random.fold_in(key, t))(problem.keys)


def per_pixel(x: jax.Array) -> jax.Array:
    """Return a value an example [B] as [B, 1, 1, 1]."""
    return x[:, None, None, None]


def _inwards(image: jax.Array, step: jax.Array) -> jax.Array:
    """Return image + step, rounded towards the image."""
    total = image + step
    # Knuth's two-sum: image + step == total + error, exactly.
    part = total - image
    error = (image - (total - part)) + (step - part)
    overshot = error * jnp.sign(step) < 0
    return jnp.where(overshot, jnp.nextafter(total, image), total)
