"""Random perturbations of one image: what the gradient-free baselines try, and where attacks may start.

Each is `(key, shape) -> noise`, float32 of that shape, in units of the budget; the projection clips what is beyond it.
"""

from collections.abc import Callable

import jax

Noise = Callable[[jax.Array, tuple[int, ...]], jax.Array]


def uniform(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return noise uniform in [-1, 1], per pixel and channel."""
    return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0)


def sign(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return noise of -1 or 1, per pixel and channel: a corner of the ball."""
    return jax.random.rademacher(key, shape, "float32")


def gaussian(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return normal noise of standard deviation 1 / 2: the ball clips 4.6 % of it."""
    return 0.5 * jax.random.normal(key, shape)
