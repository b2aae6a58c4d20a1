"""Convolution and pooling for image encoders, with derivatives that stay fast inside compiled loops on CPUs.

Stride 1, same size, NHWC, float32. On CPUs a wide convolution runs with 0.4 of its products, after Winograd (1980) and
Lavin & Gray (arXiv 1509.09308); elsewhere the platform's own algorithm runs.
"""

import math
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

FRAMES = 4
"""Frames of a batch that a kernel's gradient takes at a time."""

SAME = 2.0**-16
"""Patches whose random projections differ by less are equal but for rounding, where values are of order 1."""


@jax.custom_vjp
def conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolve `x` [B, H, W, I] with `kernel` [k, k, I, O], zeros around: [B, H, W, O].

    An even kernel reaches one pixel further down and right than up and left, as PyTorch's padding="same".

    The derivatives are written out, because those that JAX makes run many times slower inside lax.while, scan and fori
    on CPUs. With y[p] = sum_u x[p + u - lo] K[u] along each side:

        dx[q] = sum_u dy[q - u + lo] K[u]^T     a convolution with the flipped kernel, channels swapped
        dK[u] = sum_p x[p + u - lo]^T dy[p]     see `_kernel_gradient`
    """
    return _correlate(x, kernel, (kernel.shape[0] - 1) // 2)


def _conv_fwd(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return conv(x, kernel), (x, kernel)


def _conv_bwd(residuals: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = residuals
    dx = _correlate(dy, jnp.swapaxes(kernel[::-1, ::-1], 2, 3), kernel.shape[0] // 2)
    size = kernel.shape[0]
    by_frames, direct = partial(_kernel_gradient, size=size), partial(_direct_kernel_gradient, size=size)
    return dx, lax.platform_dependent(x, dy, cpu=by_frames, default=direct)


conv.defvjp(_conv_fwd, _conv_bwd)


def _correlate(x: jax.Array, kernel: jax.Array, lo: int) -> jax.Array:
    """Convolve with `lo` zeros before the first row and column, and so many after the last that the size stays."""
    direct = partial(_direct, lo=lo)
    if _goes_by_tiles(x, kernel):
        return lax.platform_dependent(x, kernel, cpu=partial(_by_tiles, lo=lo), default=direct)
    if _goes_by_columns(kernel):
        return lax.platform_dependent(x, kernel, cpu=partial(_by_columns, lo=lo), default=direct)
    return direct(x, kernel)


def _goes_by_tiles(x: jax.Array, kernel: jax.Array) -> bool:
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


def _kernel_gradient(x: jax.Array, dy: jax.Array, *, size: int) -> jax.Array:
    """Return dK as one matrix product of rows of `x` and columns of `dy`, a few frames at a time.

        dK[u, v] = sum_(p, q) x[p + u - lo, q]^T dy[p, q - v + lo]

    All u side by side make x `size` times as wide, all v dy: then both sides of the product are wide enough, and what
    so few frames take is still in the cache when it is multiplied.
    """
    batch, height, width, inputs = x.shape
    outputs = dy.shape[3]
    few = math.gcd(batch, FRAMES)

    def add(total: jax.Array, frames: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        sides = ((size - 1) // 2, size // 2)
        x = jnp.pad(frames[0], [(0, 0), sides, sides, (0, 0)])
        rows = jnp.concatenate([x[:, u : u + height] for u in range(size)], axis=3)
        shifts = [[(0, 0), (0, 0), (v, size - 1 - v), (0, 0)] for v in range(size)]
        columns = jnp.concatenate([jnp.pad(frames[1], shift) for shift in shifts], axis=3)
        contract = (((0, 1, 2), (0, 1, 2)), ((), ()))
        return total + lax.dot_general(rows, columns, contract, precision=EXACT), None

    frames = (x.reshape(-1, few, height, width, inputs), dy.reshape(-1, few, height, width, outputs))
    total, _ = lax.scan(add, jnp.zeros((size * inputs, size * outputs), x.dtype), frames)
    return jnp.swapaxes(total.reshape(size, inputs, size, outputs), 1, 2)


def _direct_kernel_gradient(x: jax.Array, dy: jax.Array, *, size: int) -> jax.Array:
    """Return dK by the platform's own algorithm."""
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
        _direct(_combine(for_rows, rows), _combine(for_taps, list(kernel))[None], lo=lo)
        for for_rows, for_taps in zip(from_rows, from_taps, strict=True)
    ]
    tiles = jnp.stack([_combine(weights, products) for weights in to_rows], axis=2)
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


def _combine(weights: np.ndarray, arrays: list[jax.Array]) -> jax.Array:
    """Return the weighted sum of `arrays`, without the zeros."""
    terms = [array * float(weight) for weight, array in zip(weights, arrays, strict=True) if weight]
    return sum(terms[1:], start=terms[0])


def conv_pool(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Convolve, add `bias` [O] and pool: [B, H, W, I] -> [B, H // 2, W // 2, O].

    Equal patches of `x`, whose outputs a tiled convolution leaves equal only up to rounding, tie as in `max_pool`.
    """
    y = conv(x, kernel) + lax.expand_dims(bias, range(3))
    if not _goes_by_tiles(x, kernel):
        return max_pool(y)
    return max_pool(y, _repeated_patches(lax.stop_gradient(x), kernel.shape[0]))


@jax.named_scope("pool")
def max_pool(x: jax.Array, repeated: jax.Array | None = None) -> jax.Array:
    """Return the maximum of every 2x2 window of `x` [B, H, W, C]: [B, H // 2, W // 2, C].

    The whole gradient goes to a window's first maximum, row by row, as in PyTorch: flat regions of an image do tie.
    `repeated` [3, B, H // 2, W // 2] keeps the second, third and fourth pixel of a window out where it is set.
    """
    return _max_pool(x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2], repeated)


@jax.custom_vjp
def _max_pool(x: jax.Array, repeated: jax.Array | None) -> jax.Array:
    return _max_pool_fwd(x, repeated)[0]


def _max_pool_fwd(x: jax.Array, repeated: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    best, *rivals = _corners(x)
    winner = jnp.zeros(best.shape, jnp.int8)
    for index, rival in enumerate(rivals):
        wins = rival > best
        if repeated is not None:
            wins &= ~repeated[index, ..., None]
        best, winner = jnp.where(wins, rival, best), jnp.where(wins, jnp.int8(index + 1), winner)
    return best, winner


def _max_pool_bwd(winner: jax.Array, dy: jax.Array) -> tuple[jax.Array, None]:
    batch, height, width, channels = dy.shape
    position = jnp.arange(4, dtype=jnp.int8).reshape(1, 1, 2, 1, 2, 1)
    dx = jnp.where(winner[:, :, None, :, None] == position, dy[:, :, None, :, None], 0.0)
    return dx.reshape(batch, 2 * height, 2 * width, channels), None


_max_pool.defvjp(_max_pool_fwd, _max_pool_bwd)


def _corners(x: jax.Array) -> list[jax.Array]:
    """Return the four pixels of every 2x2 window of `x` [B, H, W, ...], row by row."""
    return [x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]


@jax.named_scope("pool")
def _repeated_patches(x: jax.Array, size: int) -> jax.Array:
    """Return which patches (under a kernel of `size`) are one met before in their window: bool [3, B, H // 2, W // 2].

    Patches of `x` [B, H, W, C] are told apart by two random projections.
    """
    height, width, channels = x.shape[1:]
    rng = np.random.default_rng(0)
    unit = lambda *shape: rng.choice([-1.0, 1.0], shape) * rng.uniform(0.5, 1.0, shape) / shape[0] ** 0.5  # noqa: E731
    marks = lax.dot_general(x, unit(channels, 2).astype(np.float32), (((3,), (0,)), ((), ())), precision=EXACT)
    marks = jnp.pad(marks, [(0, 0), *[((size - 1) // 2, size // 2)] * 2, (0, 0)])
    marks = _combine(unit(size), [marks[:, u : u + height] for u in range(size)])
    marks = _combine(unit(size), [marks[:, :, v : v + width] for v in range(size)])
    first, second = (_corners(marks[:, : height // 2 * 2, : width // 2 * 2, m]) for m in (0, 1))
    same = lambda i, j: (jnp.abs(first[i] - first[j]) < SAME) & (jnp.abs(second[i] - second[j]) < SAME)  # noqa: E731
    return jnp.stack([same(0, 1), same(0, 2) | same(1, 2), same(0, 3) | same(1, 3) | same(2, 3)])
