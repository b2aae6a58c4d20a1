"""Textures as Mesa's software driver filters them: mip levels, bilinear texels, and a sharpened blend of levels."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct


@struct.dataclass
class Texture:
    """All levels of a repeating texture, each texel stored with its three neighbours to be read at once."""

    shape: tuple[int, int] = struct.field(pytree_node=False)
    """Height and width of the first level."""
    texels: jax.Array
    """[texels of all levels, 12]: the colours, in [0, 1], of a texel and of those right, below, and right below."""


def levels(image: jax.Array) -> list[jax.Array]:
    """Return the mip levels of `image` [H, W, C], in [0, 1], each about half the size of the one before.

    The driver keeps 8 bits and rounds halves up, which lightens; gradients pass as if it did not round.
    """
    chain = [image]
    while min(chain[-1].shape[:2]) > 1:
        chain.append(_halved(_halved(chain[-1], 1), 0))
    return chain


def _halved(image: jax.Array, axis: int) -> jax.Array:
    size = image.shape[axis]
    center = (np.arange(size // 2) + 0.5) * size / (size // 2) - 0.5
    low = np.floor(center).astype(np.int32)
    part = jnp.expand_dims(jnp.asarray(center - low, jnp.float32), [k for k in range(3) if k != axis])
    pair = [jnp.take(image, np.minimum(low + k, size - 1), axis=axis) for k in range(2)]
    mixed = (1 - part) * pair[0] + part * pair[1]
    return mixed + jax.lax.stop_gradient(jnp.floor(255 * mixed + 0.5001) / 255 - mixed)


def texture(image: jax.Array) -> Texture:
    """Return the texture of `image` [H, W, 3], in [0, 1]. Differentiable."""
    tables = []
    for level in levels(image):
        right, below = jnp.roll(level, -1, axis=1), jnp.roll(level, -1, axis=0)
        quad = jnp.concatenate([level, right, below, jnp.roll(right, -1, axis=0)], axis=-1)
        tables.append(quad.reshape(-1, 12))
    return Texture((image.shape[0], image.shape[1]), jnp.concatenate(tables))


def blend(stretch: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Return the finer of the two mip levels to blend, of `count`, and the weight of the coarser one.

    `stretch` [N] is the number of texels from one pixel to the next. The driver saves time ("brilinear" filtering):
    between powers of two it blends twice as steeply, and over half the range.
    """
    scaled = jnp.maximum(stretch, 1e-6) * ((2 * 2 - 0.5) / (2**0.5 * 2))
    mantissa, exponent = jnp.frexp(scaled)
    level = exponent - 1
    weight = jnp.clip(4 * mantissa - 3, 0, 1)
    weight = jnp.where((level < 0) | (level >= count - 1), 0.0, weight)
    return jnp.clip(level, 0, count - 1), weight


def stretch(s: jax.Array, t: jax.Array, size: tuple[int, int]) -> jax.Array:
    """Return the texels from pixel to pixel [H, W] for coordinates `s`, `t` [H, W] in a texture of `size`.

    One value for each block of 2 x 2 pixels, from the differences that meet in its lower left pixel.
    """
    height, width = s.shape
    differences = []
    for values, texels in ((s, size[1]), (t, size[0])):
        block = values.reshape(height // 2, 2, width // 2, 2)
        corner = block[:, 1, :, 0]
        differences += [texels * jnp.abs(block[:, 1, :, 1] - corner), texels * jnp.abs(block[:, 0, :, 0] - corner)]
    most = jnp.maximum(jnp.maximum(differences[0], differences[1]), jnp.maximum(differences[2], differences[3]))
    return jnp.broadcast_to(most[:, None, :, None], (height // 2, 2, width // 2, 2)).reshape(height, width)


def sample(texture: Texture, s: jax.Array, t: jax.Array, steps: jax.Array) -> jax.Array:
    """Return the colours [3, N] at the coordinates `s`, `t` [N], given `steps` [N], the texels from pixel to pixel."""
    height, width = texture.shape
    count = min(height, width).bit_length()
    sizes = np.array([(height >> k, width >> k) for k in range(count)], np.int32)
    starts = np.concatenate([[0], np.cumsum(sizes[:, 0] * sizes[:, 1])[:-1]]).astype(np.int32)
    level, weight = blend(jax.lax.stop_gradient(steps), count)

    def bilinear(level: jax.Array) -> jax.Array:
        rows, columns = jnp.right_shift(height, level), jnp.right_shift(width, level)
        x, y = s * columns.astype(s.dtype) - 0.5, t * rows.astype(t.dtype) - 0.5
        left, top = jnp.floor(x), jnp.floor(y)
        at = jnp.mod(top.astype(jnp.int32), rows) * columns + jnp.mod(left.astype(jnp.int32), columns)
        quad = texture.texels[jnp.asarray(starts)[level] + at].T
        u, v = x - left, y - top
        upper = (1 - u)[None] * quad[0:3] + u[None] * quad[3:6]
        return (1 - v)[None] * upper + v[None] * ((1 - u)[None] * quad[6:9] + u[None] * quad[9:12])

    fine, coarse = bilinear(level), bilinear(jnp.minimum(level + 1, count - 1))
    return fine + weight[None] * (coarse - fine)
