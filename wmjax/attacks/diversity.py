"""Input diversity (DI, arXiv 1803.06978): the gradient is taken on a copy that is at times smaller and moved."""

import jax
import jax.numpy as jnp

PROBABILITY = 0.5
"""How often a copy is not the image itself."""

RATE = 0.9
"""The smallest size that the image is shrunk to, of its own."""


def diverse(keys: jax.Array, image: jax.Array) -> jax.Array:
    """Return copies of `image` [B, H, W, C], H = W, by a key an example [B]; half of them are the image itself.

    The others are shrunk bilinearly, to a side from `RATE` H to H - 1, and put anywhere on black. As in the published
    code a copy leaves at least one row below it and one column to its right black.
    """
    return jax.vmap(_diverse)(keys, image)


def _diverse(key: jax.Array, image: jax.Array) -> jax.Array:
    chance, size, place = jax.random.split(key, 3)
    side = jax.random.randint(size, (), max(int(RATE * len(image)), 1), len(image))
    corner = jax.random.randint(place, (2,), 0, len(image) - side).astype(image.dtype)
    scale = jnp.full(2, side.astype(image.dtype) / len(image))
    shrunk = jax.image.scale_and_translate(image, image.shape, (0, 1), scale, corner, "linear", antialias=False)
    return jnp.where(jax.random.bernoulli(chance, PROBABILITY), shrunk, image)
