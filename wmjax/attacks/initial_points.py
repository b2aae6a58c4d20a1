"""Initial points of attacks, `(problem, restart) -> image` [B, H, W, C] in the ball with `restart` counted from 0, and
the noise that they, and the baselines without gradients, draw.

Noise is `(key, shape) -> noise`, float32 of that shape, in units of the budget; the projection clips what is beyond it.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from wmjax.attacks.linf_ball import Problem, keys_at, per_pixel, project

Noise = Callable[[jax.Array, tuple[int, ...]], jax.Array]
Start = Callable[[Problem, jax.Array], jax.Array]

_STEP = 2**31  # a number that no step has: the key of a start is not one of a step


def uniform_noise(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return noise uniform in [-1, 1], per pixel and channel."""
    return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0)


def sign_noise(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return noise of -1 or 1, per pixel and channel: a corner of the ball."""
    return jax.random.rademacher(key, shape, "float32")


def gaussian_noise(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return normal noise of standard deviation 1 / 2: the ball clips 4.6 % of it."""
    return 0.5 * jax.random.normal(key, shape)


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
    signs = jax.vmap(lambda key: sign_noise(key, (1, width, channels)))(keys_at(problem, _STEP))
    return jnp.where(signs > 0, problem.bounds.upper, problem.bounds.lower)


def _noise(problem: Problem) -> jax.Array:
    return jax.vmap(lambda key: uniform_noise(key, problem.image.shape[1:]))(keys_at(problem, _STEP))
