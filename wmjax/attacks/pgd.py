"""Gradient methods with steps of one size: FGSM (arXiv 1412.6572), PGD (arXiv 1706.06083), and MI-, NI-, DI-, TI-FGSM.

They differ in the parts of an `IteratedGradient` only: the directions that a gradient becomes a step by, chained, each
fed with what the one before made of it (smoothing TI, arXiv 1904.02884; momentum MI, arXiv 1710.06081; Nesterov's NI,
arXiv 1908.06281; the sign), and the copies that the gradient is taken on (input diversity DI, arXiv 1803.06978). Each
step moves by budget / steps; the last point is the result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wmjax.attacks.linf_ball import Incumbent, Loss, Problem, keys_at, per_pixel, project

DECAY = 1.0
"""Share of the momentum that outlives a step."""

KERNEL, DEVIATIONS = 15, 3.0
"""Width of the smoothing kernel in pixels, and how many standard deviations its half covers."""

DIVERSE_SHARE = 0.5
"""Share of the copies that are not the image itself."""

SMALLEST_COPY = 0.9
"""Size of the smallest copy, over that of the image."""


def value_and_grad(loss: Loss, image: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the loss [B] and its gradient [B, H, W, C], finite: 0 for what is not a number."""
    value, pullback = jax.vjp(loss, image)
    # The losses of a batch are independent, so the gradient of their sum holds each one's own.
    (gradient,) = pullback(jnp.ones_like(value))
    return value, jnp.nan_to_num(gradient)


def is_zero(gradient: jax.Array) -> jax.Array:
    """Return whether each example's gradient is exactly zero everywhere, [B]."""
    return jnp.all(gradient == 0, axis=(1, 2, 3))


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


def diverse(keys: jax.Array, image: jax.Array) -> jax.Array:
    """Return copies of `image` [B, H, W, C], H = W, by a key an example [B]; half of them are the image itself.

    The others are shrunk bilinearly, to a side from `SMALLEST_COPY` H to H - 1, and put anywhere on black. As in the
    published code a copy leaves at least one row below it and one column to its right black.
    """
    return jax.vmap(_diverse)(keys, image)


def _diverse(key: jax.Array, image: jax.Array) -> jax.Array:
    chance, size, place = jax.random.split(key, 3)
    side = jax.random.randint(size, (), max(int(SMALLEST_COPY * len(image)), 1), len(image))
    corner = jax.random.randint(place, (2,), 0, len(image) - side).astype(image.dtype)
    scale = jnp.full(2, side.astype(image.dtype) / len(image))
    shrunk = jax.image.scale_and_translate(image, image.shape, (0, 1), scale, corner, "linear", antialias=False)
    return jnp.where(jax.random.bernoulli(chance, DIVERSE_SHARE), shrunk, image)


@dataclass(frozen=True)
class IteratedGradient:
    """Steps along what the chained `directions` make of the gradient.

    `transform(keys, image) -> image` is what the loss sees in place of the iterate.
    """

    directions: tuple[Direction, ...] = (SIGN,)
    transform: Callable[[jax.Array, jax.Array], jax.Array] | None = None

    def init(self, problem: Problem, start: jax.Array) -> tuple:
        """Return the state at `start`: the iterate, and the states of the directions."""
        del problem
        return start, tuple(direction.init(start) for direction in self.directions)

    def step(
        self, loss: Loss, problem: Problem, state: tuple, t: jax.Array, steps: int
    ) -> tuple[tuple, tuple[jax.Array, jax.Array]]:
        """Return the state after step `t` of `steps`, and the loss and whether its gradient was zero before it."""
        image, memory = state
        size = per_pixel(problem.eps / steps)
        at = image
        for part, held in zip(self.directions, memory, strict=True):
            if part.ahead is not None:
                at = at + size * part.ahead(held)
        seen = loss
        if self.transform is not None:
            keys, transform = keys_at(problem, t), self.transform
            seen = lambda x: loss(transform(keys, x))  # noqa: E731
        value, direction = value_and_grad(seen, at)
        zero = is_zero(direction)
        after: list[Any] = []
        for part, held in zip(self.directions, memory, strict=True):
            direction, held = part.update(direction, held)
            after.append(held)
        return (project(problem.bounds, image + size * direction), tuple(after)), (value, zero)

    def best(self, loss: Loss, problem: Problem, state: tuple) -> Incumbent:
        """Return the last iterate; its loss costs a forward pass only where it is used."""
        del problem
        image, _ = state
        return Incumbent(image, loss(image))
