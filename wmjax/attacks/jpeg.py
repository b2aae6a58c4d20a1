"""JPEG compression and decompression as a pure function, in the integers of libjpeg (ITU-T T.81, 4:2:0 chroma).

Nothing here depends on the entropy coding, which loses nothing. All else is libjpeg's default (what PIL saves and
loads): accurate integer DCT, chroma halved by averages and restored by a triangle filter ("fancy upsampling").
"""

import jax
import jax.numpy as jnp
import numpy as np

from wmjax.core.image import LEVELS

_STEPS_LUMA = np.array(
    [
        [16, 11, 10, 16, 24, 40, 51, 61],
        [12, 12, 14, 19, 26, 58, 60, 55],
        [14, 13, 16, 24, 40, 57, 69, 56],
        [14, 17, 22, 29, 51, 87, 80, 62],
        [18, 22, 37, 56, 68, 109, 103, 77],
        [24, 35, 55, 64, 81, 104, 113, 92],
        [49, 64, 78, 87, 103, 121, 120, 101],
        [72, 92, 95, 98, 112, 100, 103, 99],
    ],
    np.int32,
)
_STEPS_CHROMA = np.full((8, 8), 99, np.int32)
_STEPS_CHROMA[:4, :4] = [[17, 18, 24, 47], [18, 21, 26, 66], [24, 26, 56, 99], [47, 66, 99, 99]]
"""Steps of the quantiser at quality 50, by vertical and horizontal frequency (T.81, tables K.1 and K.2)."""

# The one-dimensional DCT times sqrt(8) * 2**13. libjpeg adds up products of a few rounded constants instead, so some
# entries differ by 1 from the rounded cosine; in integers its sums are exact, and this matrix gives the same ones.
_DCT = np.array(
    [
        [8192, 8192, 8192, 8192, 8192, 8192, 8192, 8192],
        [11363, 9633, 6437, 2260, -2260, -6437, -9633, -11363],
        [10703, 4433, -4433, -10703, -10703, -4433, 4433, 10703],
        [9633, -2259, -11362, -6436, 6436, 11362, 2259, -9633],
        [8192, -8192, -8192, 8192, 8192, -8192, -8192, 8192],
        [6437, -11362, 2261, 9633, -9633, -2261, 11362, -6437],
        [4433, -10704, 10704, -4433, -4433, 10704, -10704, 4433],
        [2260, -6436, 9633, -11363, 11363, -9633, 6436, -2260],
    ],
    np.int32,
)

# Colour, in 16 fractional bits: (y, cb, cr) from (r, g, b), and what (cb, cr) add to y in each of (r, g, b).
_TO_YCC = np.array([[19595, 38470, 7471], [-11059, -21709, 32768], [32768, -27439, -5329]], np.int32)
_YCC_OFFSET = np.array([32768, (128 << 16) + 32767, (128 << 16) + 32767], np.int32)[None, :, None, None]
_TO_RGB = np.array([[0, 91881], [-22554, -46802], [116130, 0]], np.int32)


def compress(image: jax.Array, quality: jax.Array) -> jax.Array:
    """Return what JPEG of `quality` [B], whole numbers in 1..100, leaves of `image` [B, H, W, 3].

    The image, float32 in [0, 1], is rounded to grey levels first; so is the result: float32 k / 255, k in 0..255.
    Any height, any width from 5. The derivative is zero everywhere.
    """
    height, width = image.shape[1:3]
    levels = jnp.round(image * 255).astype(jnp.int32)
    ycc = (jnp.einsum("bhwc,kc->bkhw", levels, _TO_YCC) + _YCC_OFFSET) >> 16
    luma = _coded(ycc[:, :1], _steps(_STEPS_LUMA, quality))
    chroma = _coded(_halved(ycc[:, 1:]), _steps(_STEPS_CHROMA, quality))
    # Decoding starts from the file's own size: what was padded is not seen by the filter.
    chroma = _doubled(chroma[..., : (width + 1) // 2])[..., :height, :width]
    added = (jnp.einsum("bkhw,ck->bhwc", chroma - 128, _TO_RGB) + 32768) >> 16
    return jnp.asarray(LEVELS)[jnp.clip(luma[:, 0, ..., None] + added, 0, 255)]


def _steps(table: np.ndarray, quality: jax.Array) -> jax.Array:
    """Return the quantiser's steps [B, 8, 8] for `quality` [B]; the table is that of quality 50."""
    quality = jnp.round(quality).astype(jnp.int32)
    percent = jnp.where(quality < 50, 5000 // quality, 200 - 2 * quality)
    return jnp.clip((percent[:, None, None] * table[None] + 50) // 100, 1, 255)


def _coded(planes: jax.Array, steps: jax.Array) -> jax.Array:
    """Return `planes` [B, P, H, W], in 0..255, once encoded and decoded with the quantiser's `steps` [B, 8, 8]."""
    *outer, height, width = planes.shape
    padded = _padded(planes, height=8, width=8)
    rows, columns = (size // 8 for size in padded.shape[2:])
    blocks = padded.reshape(*outer, rows, 8, columns, 8) - 128
    steps = steps[:, None, None, :, None, :]
    # The order of the passes and the bits kept in between (2) are libjpeg's; the coefficients are times 8.
    dct = _descaled(jnp.einsum("bpyvxh,uh->bpyvxu", blocks, _DCT), 11)
    dct = _descaled(jnp.einsum("bpyvxu,wv->bpywxu", dct, _DCT), 15)
    quantised = jnp.sign(dct) * ((jnp.abs(dct) + 4 * steps) // (8 * steps))
    image = _descaled(jnp.einsum("bpywxu,wv->bpyvxu", quantised * steps, _DCT), 11)
    image = _descaled(jnp.einsum("bpyvxu,uh->bpyvxh", image, _DCT), 18)
    return jnp.clip(image + 128, 0, 255).reshape(padded.shape)[..., :height, :width]


def _halved(planes: jax.Array) -> jax.Array:
    """Return `planes` [B, P, H, W] at half the size, the odd row or column repeated; the width is padded to blocks."""
    planes = _padded(planes, height=2, width=16)
    *outer, height, width = planes.shape
    total = jnp.sum(planes.reshape(*outer, height // 2, 2, width // 2, 2), axis=(-3, -1))
    # A half is rounded down and up in turn, so that an image does not get brighter.
    return (total + np.tile(np.array([1, 2], np.int32), width // 4)[None, None, None]) >> 2


def _doubled(planes: jax.Array) -> jax.Array:
    """Return `planes` [B, P, H, W] at twice the size: each is 3/4 of the nearest one and 1/4 of the next, each way."""
    planes = _interpolated(_interpolated(planes, axis=2), axis=3)
    return (planes + np.tile(np.array([8, 7], np.int32), planes.shape[3] // 2)[None, None, None]) >> 4


def _interpolated(planes: jax.Array, axis: int) -> jax.Array:
    """Return `planes` with twice the length along `axis`, times 4."""
    size = planes.shape[axis]
    around = jnp.pad(planes, [(int(axis == i),) * 2 for i in range(4)], mode="edge")
    before, after = (jax.lax.slice_in_dim(around, start, start + size, axis=axis) for start in (0, 2))
    pairs = jnp.stack([3 * planes + before, 3 * planes + after], axis=axis + 1)
    return pairs.reshape(*planes.shape[:axis], 2 * size, *planes.shape[axis + 1 :])


def _padded(planes: jax.Array, height: int, width: int) -> jax.Array:
    """Return `planes` [B, P, H, W] with the last row and column repeated up to multiples of `height` and `width`."""
    missing = -planes.shape[2] % height, -planes.shape[3] % width
    return jnp.pad(planes, [(0, 0), (0, 0), (0, missing[0]), (0, missing[1])], mode="edge")


def _descaled(x: jax.Array, bits: int) -> jax.Array:
    """Return x / 2**bits, halves rounded up."""
    return (x + (1 << (bits - 1))) >> bits
