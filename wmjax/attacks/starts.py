"""Where a method starts: `(problem, restart) -> image` [B, H, W, C] in the ball, with `restart` counted from 0."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from wmjax.attacks import noises
from wmjax.attacks.problem import Problem, keys_at, per_pixel, project

Start = Callable[[Problem, jax.Array], jax.Array]

_STEP = 2**31  # a number that no step has: the key of a start is not one of a step


def given(problem: Problem, restart: jax.Array) -> jax.Array:
    """Start where the problem says: at the clean image, or away from it where that gives nothing to climb."""
    del restart
    return problem.start


def uniform(problem: Problem, restart: jax.Array) -> jax.Array:
    """Start at the clean image plus noise uniform in the ball."""
    del restart
    return project(problem.bounds, problem.image + per_pixel(problem.eps) * _noise(problem))


def given_first(problem: Problem, restart: jax.Array) -> jax.Array:
    """Start where the problem says, and restart with uniform noise."""
    return jnp.where(restart == 0, problem.start, uniform(problem, restart))


def surface(problem: Problem, restart: jax.Array) -> jax.Array:
    """Start at uniform noise, scaled so that its largest pixel uses the whole budget, as APGD does."""
    del restart
    noise = _noise(problem)
    noise = noise / jnp.max(jnp.abs(noise), axis=(1, 2, 3), keepdims=True)
    return project(problem.bounds, problem.image + per_pixel(problem.eps) * noise)


def stripes(problem: Problem, restart: jax.Array) -> jax.Array:
    """Start at vertical stripes of plus or minus the whole budget, per column and channel, as Square does."""
    del restart
    _, _, width, channels = problem.image.shape
    signs = jax.vmap(lambda key: noises.sign(key, (1, width, channels)))(keys_at(problem, _STEP))
    return jnp.where(signs > 0, problem.bounds.upper, problem.bounds.lower)


def _noise(problem: Problem) -> jax.Array:
    return jax.vmap(lambda key: noises.uniform(key, problem.image.shape[1:]))(keys_at(problem, _STEP))
