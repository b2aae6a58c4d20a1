"""Methods that need no gradient, only the loss: Square (arXiv 1912.00049) and the best of some random draws.

Each step is one forward pass, and the best point is the result.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from wmjax.attacks.initial_points import Noise, sign_noise
from wmjax.attacks.linf_ball import Incumbent, Loss, Problem, keys_at, no_incumbent, per_pixel, project, update_best

SHARE = 0.8
"""The share of the image that the first squares cover."""

HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""Where the share is halved, in ten-thousandths of the squares."""


@dataclass(frozen=True)
class Square:
    """Set a random square of the best point to plus or minus the budget, a sign a channel; keep it if the loss rises.

    Step 0 evaluates the start. Unlike in the published code each example has a square of its own.
    """

    def init(self, problem: Problem, start: jax.Array) -> Incumbent:
        """Return the start, its loss not yet known."""
        del problem
        return no_incumbent(start)

    def step(
        self, loss: Loss, problem: Problem, state: Incumbent, t: jax.Array, steps: int
    ) -> tuple[Incumbent, tuple[jax.Array, jax.Array]]:
        """Return the best point after step `t` of `steps`, and the loss of the one tried; no gradient is ever zero."""
        shape = problem.image.shape[1:]
        side = jnp.asarray(sides(steps, *shape[:2]))[t]
        inside, signs = jax.vmap(lambda key: _square(key, side, shape))(keys_at(problem, t))
        corner = jnp.where(signs > 0, problem.bounds.upper, problem.bounds.lower)
        tried = jnp.where(inside, corner, state.image)
        value = loss(tried)
        return update_best(state, tried, value), (value, jnp.zeros(len(value), bool))

    def best(self, loss: Loss, problem: Problem, state: Incumbent) -> Incumbent:
        """Return the best point of all."""
        del loss, problem
        return state


@dataclass(frozen=True)
class RandomSearch:
    """Draw noise around the clean image, as many times as there are steps, and keep the best draw."""

    noise: Noise

    def init(self, problem: Problem, start: jax.Array) -> Incumbent:
        """Return the start, to which any draw is preferred."""
        del problem
        return no_incumbent(start)

    def step(
        self, loss: Loss, problem: Problem, state: Incumbent, t: jax.Array, steps: int
    ) -> tuple[Incumbent, tuple[jax.Array, jax.Array]]:
        """Return the best draw after step `t`, and the loss of the new one; no gradient is ever zero."""
        del steps
        noise = jax.vmap(lambda key: self.noise(key, problem.image.shape[1:]))(keys_at(problem, t))
        tried = project(problem.bounds, problem.image + per_pixel(problem.eps) * noise)
        value = loss(tried)
        return update_best(state, tried, value), (value, jnp.zeros(len(value), bool))

    def best(self, loss: Loss, problem: Problem, state: Incumbent) -> Incumbent:
        """Return the best draw."""
        del loss, problem
        return state


def sides(steps: int, height: int, width: int) -> np.ndarray:
    """Return the side in pixels of each step's square, int32 [steps]; 0 at step 0, which is the start itself."""
    found = [0]
    for square in range(steps - 1):
        passed = square * 10_000 // (steps - 1)
        share = SHARE / 2 ** sum(passed > bound for bound in HALVINGS)
        found.append(min(max(round(math.sqrt(share * height * width)), 1), height, width))
    return np.array(found, np.int32)


def _square(key: jax.Array, side: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Return a random square [H, W, 1] of that side, and a sign a channel, [1, 1, C]."""
    rows, columns, channels = jax.random.split(key, 3)
    height, width, depth = shape
    top = jax.random.randint(rows, (), 0, height - side + 1)
    left = jax.random.randint(columns, (), 0, width - side + 1)
    y, x = jnp.arange(height)[:, None, None], jnp.arange(width)[None, :, None]
    inside = (y >= top) & (y < top + side) & (x >= left) & (x < left + side)
    return inside, sign_noise(channels, (1, 1, depth))
