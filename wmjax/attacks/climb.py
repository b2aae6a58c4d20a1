"""Gradient methods with steps of one size: FGSM (arXiv 1412.6572), PGD (arXiv 1706.06083), and MI-, NI-, DI-, TI-FGSM.

They differ in the parts of a `Climb` only. Each step moves by budget / steps; the last point is the result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from wmjax.attacks.directions import SIGN, Direction
from wmjax.attacks.problem import Best, Loss, Problem, keys_at, per_pixel, project


def slope(loss: Loss, image: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the loss [B] and its gradient [B, H, W, C], finite: 0 for what is not a number."""
    value, pullback = jax.vjp(loss, image)
    # The losses of a batch are independent, so the gradient of their sum holds each one's own.
    (gradient,) = pullback(jnp.ones_like(value))
    return value, jnp.nan_to_num(gradient)


def flat(gradient: jax.Array) -> jax.Array:
    """Return whether each example's gradient is exactly zero everywhere, [B]."""
    return jnp.all(gradient == 0, axis=(1, 2, 3))


@dataclass(frozen=True)
class Climb:
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
        value, direction = slope(seen, at)
        zero = flat(direction)
        after: list[Any] = []
        for part, held in zip(self.directions, memory, strict=True):
            direction, held = part.update(direction, held)
            after.append(held)
        return (project(problem.bounds, image + size * direction), tuple(after)), (value, zero)

    def best(self, loss: Loss, problem: Problem, state: tuple) -> Best:
        """Return the last iterate; its loss costs a forward pass only where it is used."""
        del problem
        image, _ = state
        return Best(image, loss(image))
