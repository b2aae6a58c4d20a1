"""Vectors as component-first arrays [3, ...]: what XLA fuses best on a CPU, and gradients that stay finite."""

import jax
import jax.numpy as jnp

TINY = 1e-12


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the scalar product over the first axis; the other axes must be equal, or absent in one of the two."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def times(scale: jax.Array, a: jax.Array) -> jax.Array:
    """Return `scale` [...] times `a` [3] or [3, ...]."""
    return jnp.stack([scale * a[0], scale * a[1], scale * a[2]])


def plus(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the sum of two vectors [3, ...], of which one may be a lone vector [3]."""
    return jnp.stack([a[0] + b[0], a[1] + b[1], a[2] + b[2]])


def root(x: jax.Array) -> jax.Array:
    """Return the square root of `x`, and for values below 1e-12 that of 1e-12, with gradient 0."""
    return jnp.sqrt(jnp.maximum(x, TINY))


def normalise(a: jax.Array) -> jax.Array:
    """Return `a` [3, ...] scaled to length 1; a zero vector stays zero, with a finite gradient."""
    return times(1 / root(dot(a, a)), a)


def apart_from_zero(x: jax.Array) -> jax.Array:
    """Return `x` with magnitudes below 1e-12 raised to it, to divide by."""
    return jnp.where(jnp.abs(x) < TINY, TINY, x)
