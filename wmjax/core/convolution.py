"""The convolutions of image encoders and decoders: stride 1, same size, NHWC, float32.

Their derivatives are written out, because those that JAX makes run many times slower inside lax.while, scan and fori on
CPUs. There they also go through a batch a few frames at a time, so that what is between lies in the cache.
"""

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from wmjax.core.correlation import EXACT, combine, correlate, goes_by_tiles, kernel_gradient

__all__ = ["EXACT", "MANY", "conv", "conv_pool", "max_pool", "up_conv"]

FRAMES = 8
"""Frames of a batch that CPUs take at a time."""

MANY = 64
"""Frames from which a stage is arranged for learning: batches under attack are smaller."""

SAME = 2.0**-16
"""Patches whose random projections differ by less are equal but for rounding, where values are of order 1."""


@jax.custom_vjp
def conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolve `x` [B, H, W, I] with `kernel` [k, k, I, O], zeros around, all frames at once: [B, H, W, O].

    An even kernel reaches one pixel further down and right than up and left, as PyTorch's padding="same". With
    y[p] = sum_u x[p + u - lo] K[u] along each side:

        dx[q] = sum_u dy[q - u + lo] K[u]^T     a convolution with the flipped kernel, channels swapped
        dK[u] = sum_p x[p + u - lo]^T dy[p]
    """
    return correlate(x, kernel, (kernel.shape[0] - 1) // 2)


def _conv_bwd(residuals: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = residuals
    dx = correlate(dy, jnp.swapaxes(kernel[::-1, ::-1], 2, 3), kernel.shape[0] // 2)
    return dx, kernel_gradient(x, dy, kernel.shape[0])


conv.defvjp(lambda x, kernel: (conv(x, kernel), (x, kernel)), _conv_bwd)


def _up(x: jax.Array, kernel: jax.Array) -> jax.Array:
    batch, height, width, _ = x.shape
    y = conv(x, _phases(kernel).sum((2, 3)))
    y = y.reshape(batch, height, width, 2, 2, -1)
    return jnp.swapaxes(y, 2, 3).reshape(batch, 2 * height, 2 * width, -1)


def up_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Repeat every pixel of `x` [B, H, W, I] in a 2x2 square, and convolve: [B, 2 H, 2 W, O].

    Each of the four outputs of a square sees every pixel under several taps: their sum is a smaller kernel's tap.
    """
    return _bilinear(_up, x, kernel)


def _phases(kernel: jax.Array) -> jax.Array:
    """Lay `kernel` [k, k, I, O] out in 2x2 squares of pixels, for each output of a square: [n, n, 2, 2, I, 4 O]."""
    size, _, inputs, outputs = kernel.shape
    front = (size - 1) // 2 % 2
    blocks = (front + size + 2) // 2
    space = 2 * blocks - front - size
    sides = [(front, space), (front + 1, space - 1)]
    parts = [jnp.pad(kernel, [rows, columns, (0, 0), (0, 0)]) for rows in sides for columns in sides]
    wide = jnp.stack(parts, axis=3).reshape(blocks, 2, blocks, 2, inputs, 4 * outputs)
    return jnp.swapaxes(wide, 1, 2)


Frames = Any
"""Arrays that have frames first, or are totals of them."""
Product = Callable[[jax.Array, jax.Array], jax.Array]


def _by_frames(function: Callable[..., tuple[Frames, Frames]], *frames: jax.Array) -> tuple[Frames, Frames]:
    """Return `function(*frames)`: what it has of every frame, and totals of all frames."""

    def few_at_a_time(*frames: jax.Array) -> tuple[Frames, Frames]:
        few = math.gcd(len(frames[0]), FRAMES)
        parts = [array.reshape(-1, few, *array.shape[1:]) for array in frames]
        zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(function, *(part[0] for part in parts))[1])

        def add(totals: Frames, part: list[jax.Array]) -> tuple[Frames, Frames]:
            each, more = function(*part)
            return jax.tree.map(jnp.add, totals, more), each

        totals, each = lax.scan(add, zeros, parts)
        return jax.tree.map(lambda array: array.reshape(-1, *array.shape[2:]), each), totals

    return lax.platform_dependent(*frames, cpu=few_at_a_time, default=function)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _bilinear(product: Product, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return `product(x, kernel)`, a few frames at a time; the derivatives likewise."""
    return _by_frames(lambda x: (product(x, kernel), ()), x)[0]


def _bilinear_bwd(product: Product, residuals: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[Frames, Frames]:
    x, kernel = residuals
    return _by_frames(lambda x, dy: jax.vjp(product, x, kernel)[1](dy), x, dy)


_bilinear.defvjp(lambda product, x, kernel: (_bilinear(product, x, kernel), (x, kernel)), _bilinear_bwd)


def conv_pool(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Convolve, add `bias` [O] and pool: [B, H, W, I] -> [B, H // 2, W // 2, O].

    Equal patches of `x`, whose outputs a fast convolution leaves equal only up to rounding, tie as in `max_pool`.
    """
    if len(x) >= MANY:
        return _conv_pool_by_frames(x, kernel, bias)
    y = conv(x, kernel) + lax.expand_dims(bias, range(3))
    if not goes_by_tiles(x, kernel):
        return max_pool(y)
    return max_pool(y, _repeated(lax.stop_gradient(x), kernel.shape[0]))


@jax.custom_vjp
def _conv_pool_by_frames(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    return _conv_pool_fwd(x, kernel, bias)[0]


Residuals = tuple[jax.Array, jax.Array, jax.Array]


def _conv_pool_fwd(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> tuple[jax.Array, Residuals]:
    def pooled(x: jax.Array) -> tuple[Frames, Frames]:
        windows = _windows_of_conv(x, kernel) + lax.expand_dims(bias, range(4))
        return _first_maximum([windows[..., pixel, :] for pixel in range(4)]), ()

    (y, winner), _ = _by_frames(pooled, x)
    return y, (x, kernel, winner)


def _conv_pool_bwd(residuals: Residuals, dy: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, kernel, winner = residuals

    def pulled_back(x: jax.Array, winner: jax.Array, dy: jax.Array) -> tuple[Frames, Frames]:
        _, pull = jax.vjp(_windows_of_conv, x, kernel)
        _, dkernel = pull(_to_winners(winner, dy))
        if _goes_by_windows(x, kernel) or goes_by_tiles(x, kernel):
            # To the kernel equal patches mean the same: where no gradient of x is asked for, this costs nothing.
            winner = _first_alike(winner, x, kernel.shape[0])
        dx, _ = pull(_to_winners(winner, dy))
        return dx, (dkernel, jnp.sum(dy, (0, 1, 2)))

    dx, (dkernel, dbias) = _by_frames(pulled_back, x, winner, dy)
    return dx, dkernel, dbias


_conv_pool_by_frames.defvjp(_conv_pool_fwd, _conv_pool_bwd)


def _goes_by_windows(x: jax.Array, kernel: jax.Array) -> bool:
    """Whether the channels are so few that four times as many, of a whole window, are worth 1.4 times the products."""
    return x.shape[1] % 2 == x.shape[2] % 2 == 0 and kernel.shape[2] < 16 and kernel.shape[3] <= 16


def _windows_of_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolve, and put the pixels of every 2x2 window together: [B, H // 2, W // 2, 4, O]."""
    if not _goes_by_windows(x, kernel):
        return _windows(conv(x, kernel))
    x = _windows(x)
    *pixels, inputs = x.shape
    x, kernel = x.reshape(*pixels[:3], 4 * inputs), _phases(kernel)
    y = conv(x, kernel.reshape(*kernel.shape[:2], 4 * inputs, -1))
    return y.reshape(*pixels, -1)


def _windows(x: jax.Array) -> jax.Array:
    """Return the four pixels of every 2x2 window of `x` [B, H, W, C], row by row: [B, H // 2, W // 2, 4, C]."""
    batch, height, width, channels = x.shape
    height, width = height // 2, width // 2
    x = x[:, : 2 * height, : 2 * width].reshape(batch, height, 2, width, 2, channels)
    return jnp.swapaxes(x, 2, 3).reshape(batch, height, width, 4, channels)


@jax.named_scope("pool")
def _to_winners(winner: jax.Array, dy: jax.Array) -> jax.Array:
    """Return `dy` [..., C] where the winner is, and zeros at the three others: [..., 4, C]."""
    position = lax.expand_dims(jnp.arange(4, dtype=jnp.int8)[:, None], range(dy.ndim - 1))
    return jnp.where(winner[..., None, :] == position, dy[..., None, :], 0.0)


@jax.named_scope("pool")
def _first_alike(winner: jax.Array, x: jax.Array, size: int) -> jax.Array:
    """Return the first pixel of its window whose patch of `x`, under a kernel of `size`, is equal to the winner's."""
    marks = _corners(_marks(x, size))
    pairs = [(first, second) for second in range(1, 4) for first in range(second)]
    bits = [(jnp.abs(marks[i] - marks[j]) < SAME).astype(jnp.uint8) << n for n, (i, j) in enumerate(pairs)]
    # A reduction, where `&` would do: XLA's CPU backend computes its result once, not once a channel.
    alike = jnp.bitwise_and.reduce(reduce(jnp.bitwise_or, bits), axis=3, keepdims=True)
    for n, (i, j) in enumerate(pairs):
        winner = jnp.where((winner == j) & (alike & (1 << n) != 0), jnp.int8(i), winner)
    return winner


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
    return _first_maximum(_corners(x), repeated)


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
def _repeated(x: jax.Array, size: int) -> jax.Array:
    """Return which patches, under a kernel of `size`, are one met before in their window, as `max_pool` takes it."""
    marks = _marks(x, size)
    first, second = (_corners(marks[..., m]) for m in (0, 1))
    same = lambda i, j: (jnp.abs(first[i] - first[j]) < SAME) & (jnp.abs(second[i] - second[j]) < SAME)  # noqa: E731
    return jnp.stack([same(0, 1), same(0, 2) | same(1, 2), same(0, 3) | same(1, 3) | same(2, 3)])


def _first_maximum(pixels: list[jax.Array], repeated: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """Return the maximum of four `pixels` [B, H, W, C], and which is the first of that size: int8.

    `repeated` [3, B, H, W] keeps the second, third and fourth out where it is set.
    """
    best, *rivals = pixels
    winner = jnp.zeros(best.shape, jnp.int8)
    for index, rival in enumerate(rivals):
        wins = rival > best
        if repeated is not None:
            wins &= ~repeated[index, ..., None]
        best, winner = jnp.where(wins, rival, best), jnp.where(wins, jnp.int8(index + 1), winner)
    return best, winner


def _marks(x: jax.Array, size: int) -> jax.Array:
    """Return two random projections [B, 2 (H // 2), 2 (W // 2), 2] of every patch of `x` [B, H, W, C].

    By them the patches, which are those under a kernel of `size`, are told apart.
    """
    height, width, channels = x.shape[1:]
    rng = np.random.default_rng(0)
    unit = lambda *shape: rng.choice([-1.0, 1.0], shape) * rng.uniform(0.5, 1.0, shape) / shape[0] ** 0.5  # noqa: E731
    marks = lax.dot_general(x, unit(channels, 2).astype(np.float32), (((3,), (0,)), ((), ())), precision=EXACT)
    marks = jnp.pad(marks, [(0, 0), *[((size - 1) // 2, size // 2)] * 2, (0, 0)])
    marks = combine(unit(size), [marks[:, u : u + height] for u in range(size)])
    marks = combine(unit(size), [marks[:, :, v : v + width] for v in range(size)])
    return marks[:, : height // 2 * 2, : width // 2 * 2]
