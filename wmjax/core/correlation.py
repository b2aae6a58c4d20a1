"""The algorithms of stride-1 correlation, NHWC and float32: what the layers' convolutions and derivatives run on.

On CPUs a wide one runs with 0.4 of its products, after Winograd (1980) and Lavin & Gray (arXiv 1509.09308); elsewhere
the platform's own algorithm runs.
"""

from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

EXACT = lax.Precision.HIGHEST
"""All products are of whole float32: by default accelerators shorten the factors to 10 bits or fewer."""

TILE = 4
"""Rows of a tile of the fast convolution, m in F(m, r)."""

POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)
"""Where F(m, r) evaluates its polynomials, and at infinity: enough for tile + taps = 9."""


def correlate(x: jax.Array, kernel: jax.Array, lo: int) -> jax.Array:
    """Convolve with `lo` zeros before the first row and column, and so many after the last that the size stays."""
    direct = partial(_direct, lo=lo)
    if goes_by_tiles(x, kernel):
        return lax.platform_dependent(x, kernel, cpu=partial(_by_tiles, lo=lo), default=direct)
    if _goes_by_columns(kernel):
        return lax.platform_dependent(x, kernel, cpu=partial(_by_columns, lo=lo), default=direct)
    return direct(x, kernel)


def kernel_gradient(x: jax.Array, dy: jax.Array, size: int) -> jax.Array:
    """Return the gradient [size, size, I, O] of the kernel, from `x` [B, H, W, I] and that of the outputs, `dy`."""
    by_taps, direct = partial(_by_taps, size=size), partial(_directly, size=size)
    return lax.platform_dependent(x, dy, cpu=by_taps, default=direct)


def goes_by_tiles(x: jax.Array, kernel: jax.Array) -> bool:
    """Whether the fast convolution applies and pays."""
    taps, _, inputs, outputs = kernel.shape
    return x.shape[1] % TILE == 0 and 3 <= taps <= len(POINTS) + 2 - TILE and min(inputs, outputs) >= 16


def _goes_by_columns(kernel: jax.Array) -> bool:
    """Whether the outputs of all columns of the kernel fit a vector of 16, of which its own few would fill little."""
    taps, _, inputs, outputs = kernel.shape
    return taps > 1 and inputs >= 16 and 12 <= taps * outputs <= 16


def _direct(x: jax.Array, kernel: jax.Array, *, lo: int) -> jax.Array:
    inputs, outputs = kernel.shape[2:]
    wide_in, wide_out = _fast_channels(inputs, outputs)
    kernel = jnp.pad(kernel, [(0, 0), (0, 0), (0, wide_in - inputs), (0, wide_out - outputs)])
    # Any channels do where the kernel is zero, and copies cost less than XLA's padding.
    x = jnp.concatenate([x] * -(-wide_in // inputs), axis=3)[..., :wide_in]
    padding = [(lo, size - 1 - lo) if size > 1 else (0, 0) for size in kernel.shape[:2]]
    layout = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=layout, precision=EXACT)
    return y[..., :outputs]


def _by_taps(x: jax.Array, dy: jax.Array, *, size: int) -> jax.Array:
    """Return the kernel's gradient as one product of matrices, of which the left one has x under every tap.

    dK[u, v] = sum_(p, q) x[p + u - lo, q + v - lo]^T dy[p, q]
    """
    _, height, width, inputs = x.shape
    sides = ((size - 1) // 2, size // 2)
    # The pixels last on the left: then nothing is left to transpose.
    x = jnp.pad(jnp.moveaxis(x, 3, 0), [(0, 0), (0, 0), sides, sides])
    # Columns, then rows: most of what is copied lies in long runs.
    x = jnp.concatenate([x[..., v : v + width] for v in range(size)])
    x = jnp.concatenate([x[:, :, u : u + height] for u in range(size)])
    product = lax.dot_general(x, dy, (((1, 2, 3), (0, 1, 2)), ((), ())), precision=EXACT)
    return product.reshape(size, size, inputs, -1)


def _directly(x: jax.Array, dy: jax.Array, *, size: int) -> jax.Array:
    """Return the kernel's gradient by the platform's own algorithm."""
    kernel = jax.ShapeDtypeStruct((size, size, x.shape[3], dy.shape[3]), x.dtype)
    (gradient,) = jax.linear_transpose(partial(_direct, x, lo=(size - 1) // 2), kernel)(dy)
    return gradient


def _fast_channels(inputs: int, outputs: int) -> tuple[int, int]:
    """Return the channels, no fewer than given, with which XLA's CPU convolution is fastest.

    It wants inputs in fours, and more than 16 channels on either side; else it runs at a quarter of its speed.
    """
    fours = inputs + -inputs % 4
    if max(fours, outputs) > 16:
        return fours, outputs
    return (20, outputs) if inputs > outputs else (fours, 20)


def _by_tiles(x: jax.Array, kernel: jax.Array, *, lo: int) -> jax.Array:
    """Convolve four rows at a time, by F(4, r) along H: 4 + r - 1 products where 4 r are direct.

    Four output rows y = A' ((G k) * (B' x)) come from 4 + r - 1 input rows x and r kernel rows k: B' and G evaluate
    both as polynomials at the same points, where the product of polynomials is pointwise; A' reads off the result.
    Every point has its own small convolution along W.
    """
    batch, height, width, _ = x.shape
    taps = kernel.shape[0]
    from_rows, from_taps, to_rows = _toom_cook(TILE, taps)
    padded = jnp.pad(x, [(0, 0), (lo, taps - 1 - lo), (0, 0), (0, 0)])
    rows = [padded[:, i : i + height - TILE + 1 : TILE] for i in range(TILE + taps - 1)]
    products = [
        _direct(combine(for_rows, rows), combine(for_taps, list(kernel))[None], lo=lo)
        for for_rows, for_taps in zip(from_rows, from_taps, strict=True)
    ]
    tiles = jnp.stack([combine(weights, products) for weights in to_rows], axis=2)
    return tiles.reshape(batch, height, width, -1)


def _by_columns(x: jax.Array, kernel: jax.Array, *, lo: int) -> jax.Array:
    """Convolve with all columns of the kernel at once, along H alone, and add up their results, shifted along W."""
    width = x.shape[2]
    taps, _, inputs, outputs = kernel.shape
    columns = jnp.swapaxes(kernel, 1, 2).reshape(taps, 1, inputs, taps * outputs)
    columns = jnp.pad(columns, [(0, 0), (0, 0), (0, 0), (0, 16 - taps * outputs)])
    y = jnp.pad(_direct(x, columns, lo=lo), [(0, 0), (0, 0), (lo, taps - 1 - lo), (0, 0)])
    parts = [y[:, :, v : v + width, v * outputs : (v + 1) * outputs] for v in range(taps)]
    return sum(parts[1:], start=parts[0])


@lru_cache
def _toom_cook(tile: int, taps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (B', G, A') of F(tile, taps): float64 [n, n], [n, taps], [tile, n] with n = tile + taps - 1."""
    points = np.array(POINTS[: tile + taps - 2])
    others = [np.delete(points, i) for i in range(len(points))]
    scale = np.array([np.prod(point - rest) for point, rest in zip(points, others, strict=True)])
    at_infinity = lambda size: np.eye(size)[-1:]  # noqa: E731
    from_rows = [np.append(np.poly(rest)[::-1], 0.0) for rest in others] + [np.poly(points)[::-1]]
    from_taps = np.vander(points, taps, increasing=True) / scale[:, None]
    to_rows = np.vander(points, tile, increasing=True)
    return (
        np.stack(from_rows),
        np.concatenate([from_taps, at_infinity(taps)]),
        np.concatenate([to_rows, at_infinity(tile)]).T,
    )


def combine(weights: np.ndarray, arrays: list[jax.Array]) -> jax.Array:
    """Return the weighted sum of `arrays`, without the zeros."""
    terms = [array * float(weight) for weight, array in zip(weights, arrays, strict=True) if weight]
    return sum(terms[1:], start=terms[0])
