"""dm_control's soft indicator function in JAX: rewards are made of it (arXiv 1801.00690, section 2)."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

Sigmoid = Literal["gaussian", "linear", "quadratic"]

Scalar = float | jax.Array


def _gaussian(distance: jax.Array, value_at_1: float) -> jax.Array:
    scale = float(np.sqrt(-2 * np.log(value_at_1)))
    return jnp.exp(-0.5 * (distance * scale) ** 2)


def _linear(distance: jax.Array, value_at_1: float) -> jax.Array:
    return jnp.maximum(1 - distance * (1 - value_at_1), 0.0)


def _quadratic(distance: jax.Array, value_at_1: float) -> jax.Array:
    return jnp.maximum(1 - distance**2 * (1 - value_at_1), 0.0)


_SIGMOIDS: dict[str, Callable[[jax.Array, float], jax.Array]] = {
    "gaussian": _gaussian,
    "linear": _linear,
    "quadratic": _quadratic,
}


def inside(x: jax.Array, lower: Scalar, upper: Scalar) -> jax.Array:
    """Return 1 where `x` lies in [lower, upper] and 0 elsewhere, in the shape and dtype of `x`."""
    return ((lower <= x) & (x <= upper)).astype(x.dtype)


def tolerance(
    x: jax.Array,
    lower: Scalar = 0.0,
    upper: Scalar = 0.0,
    *,
    margin: Scalar,
    sigmoid: Sigmoid = "gaussian",
    value_at_margin: float = 0.1,
) -> jax.Array:
    """Return 1 where `x` lies in [lower, upper], falling to `value_at_margin` at a distance of `margin` > 0 from it.

    The bounds and the margin may be traced; they broadcast against `x`, whose dtype the result has.
    """
    distance = jnp.where(x < lower, lower - x, x - upper) / margin
    return jnp.where((lower <= x) & (x <= upper), 1.0, _SIGMOIDS[sigmoid](distance, value_at_margin))
