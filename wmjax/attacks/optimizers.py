"""First-order attacks as parts: the ball, the projection onto it, the direction of a step, and how many steps.

FGSM (arXiv 1412.6572) is one step of the whole budget; PGD (arXiv 1706.06083) is K steps of budget / K, as in ARB4WM.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from wmjax.core.errors import InputError, unknown_name


@struct.dataclass
class Ball:
    """All images within the budget of a clean one, and within [0, 1]."""

    lower: jax.Array  #: [B, H, W, C]
    upper: jax.Array  #: [B, H, W, C]


def ball(image: jax.Array, eps: jax.Array) -> Ball:
    """Return the L-inf ball of radius `eps` [B] around `image` [B, H, W, C], cut to [0, 1].

    Its bounds are rounded inwards: no float32 in it is further than `eps` from the image, even by a rounding error.
    """
    eps = _per_example(eps)
    return Ball(jnp.maximum(_inwards(image, -eps), 0.0), jnp.minimum(_inwards(image, eps), 1.0))


def project(bounds: Ball, image: jax.Array) -> jax.Array:
    """Return the point of the ball nearest to `image` [B, H, W, C]."""
    return jnp.clip(image, bounds.lower, bounds.upper)


@dataclass(frozen=True)
class Direction:
    """How a gradient becomes a step: `init(image) -> state`, `update(gradient, state) -> (direction, state)`."""

    init: Callable[[jax.Array], Any]
    update: Callable[[jax.Array, Any], tuple[jax.Array, Any]]


SIGN = Direction(init=lambda image: (), update=lambda gradient, state: (jnp.sign(gradient), state))
"""Steepest ascent under the L-inf norm; a zero gradient moves nothing."""


@dataclass(frozen=True)
class Optimizer:
    """A static choice: `steps` (K) steps of `eps / steps` along `direction`. With 0 steps the start is the result."""

    steps: int
    direction: Direction = SIGN


def fgsm(steps: int | None = None) -> Optimizer:
    """Return the single-step attack."""
    if steps not in (None, 1):
        raise InputError(f"steps is {steps}; fgsm takes exactly 1")
    return Optimizer(1)


def pgd(steps: int | None = None) -> Optimizer:
    """Return the multi-step attack, of 10 steps if not given."""
    if steps is not None and steps < 1:
        raise InputError(f"steps is {steps}; pgd needs at least 1")
    return Optimizer(10 if steps is None else steps)


OPTIMIZERS: dict[str, Callable[[int | None], Optimizer]] = {"fgsm": fgsm, "pgd": pgd}
"""By name, from the number of steps (None: the benchmark's)."""

NO_STEPS = Optimizer(0)
"""No gradient at all: what the clean and the random baseline use."""


def optimizer(name: str, steps: int | None = None) -> Optimizer:
    """Return the named optimizer; raises InputError for an unknown name or a wrong number of steps."""
    if name not in OPTIMIZERS:
        raise unknown_name("optimizer", name, OPTIMIZERS)
    return OPTIMIZERS[name](steps)


def _inwards(image: jax.Array, step: jax.Array) -> jax.Array:
    """Return image + step, rounded towards the image."""
    total = image + step
    # Knuth's two-sum: image + step == total + error, exactly.
    part = total - image
    error = (image - (total - part)) + (step - part)
    overshot = error * jnp.sign(step) < 0
    return jnp.where(overshot, jnp.nextafter(total, image), total)


def _per_example(x: jax.Array) -> jax.Array:
    return x[:, None, None, None]
