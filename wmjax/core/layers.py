"""The layers of Dreamer-family networks, NHWC and float32, with convolutions that stay fast inside compiled loops.

Parameters are called `kernel`, `bias` and `scale`; these names are the file format of converted agents.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

RMS_EPS = 1e-4
"""Added to the mean square under RMSNorm's root."""


def linear(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return `x` [..., I] times `kernel` [I, O]: [..., O]."""
    return lax.dot_general(x, kernel, (((x.ndim - 1,), (0,)), ((), ())))


def block_linear(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return each block of `x` [..., blocks * I] times its own matrix of `kernel` [blocks, I, O]: [..., blocks * O]."""
    blocks, inputs, outputs = kernel.shape
    y = jnp.einsum("...gi,gio->...go", x.reshape(*x.shape[:-1], blocks, inputs), kernel)
    return y.reshape(*x.shape[:-1], blocks * outputs)


def rms_norm(x: jax.Array, scale: jax.Array, eps: float = RMS_EPS) -> jax.Array:
    """Return `x` [..., C] over the root of its mean square along C, times `scale` [C]."""
    return x * lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + eps) * _like(scale, x)


@jax.custom_vjp
def conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolve `x` [B, H, W, I] with `kernel` [k, k, I, O], stride 1, zeros around: [B, H, W, O].

    An even kernel reaches one pixel further down and right than up and left, as PyTorch's padding="same".

    The derivatives are written out, because those that JAX makes run many times slower inside lax.while, scan and fori
    on CPUs. With y[p] = sum_u x[p + u - lo] K[u] along each side:

        dx[q] = sum_u dy[q - u + lo] K[u]^T     a convolution with the flipped kernel, channels swapped
        dK[u] = sum_p x[p + u - lo]^T dy[p]     one matrix product per tap
    """
    return _conv(x, kernel, _padding(kernel))


def _conv_fwd(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return conv(x, kernel), (x, kernel)


def _conv_bwd(residuals: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = residuals
    height, width = dy.shape[1:3]
    rows, columns = _padding(kernel)
    dx = _conv(dy, jnp.swapaxes(kernel[::-1, ::-1], 2, 3), [rows[::-1], columns[::-1]])
    padded = jnp.pad(x, [(0, 0), rows, columns, (0, 0)])
    taps = [
        jnp.einsum("bhwi,bhwo->io", padded[:, u : u + height, v : v + width], dy)
        for u in range(kernel.shape[0])
        for v in range(kernel.shape[1])
    ]
    return dx, jnp.stack(taps).reshape(kernel.shape)


conv.defvjp(_conv_fwd, _conv_bwd)


def max_pool(x: jax.Array) -> jax.Array:
    """Return the maximum of every 2x2 window of `x` [B, H, W, C]: [B, H // 2, W // 2, C].

    The whole gradient goes to a window's first maximum, row by row, as in PyTorch; flat regions of an image do tie.
    """
    return _max_pool(x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2])


@jax.custom_vjp
def _max_pool(x: jax.Array) -> jax.Array:
    return _max_pool_fwd(x)[0]


def _max_pool_fwd(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    best = x[:, ::2, ::2]
    winner = jnp.zeros(best.shape, jnp.int8)
    for index, (i, j) in enumerate([(0, 1), (1, 0), (1, 1)], start=1):
        rival = x[:, i::2, j::2]
        winner = jnp.where(rival > best, jnp.int8(index), winner)
        best = jnp.maximum(best, rival)
    return best, winner


def _max_pool_bwd(winner: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    batch, height, width, channels = dy.shape
    position = jnp.arange(4, dtype=jnp.int8).reshape(1, 1, 2, 1, 2, 1)
    dx = jnp.where(winner[:, :, None, :, None] == position, dy[:, :, None, :, None], 0.0)
    return (dx.reshape(batch, 2 * height, 2 * width, channels),)


_max_pool.defvjp(_max_pool_fwd, _max_pool_bwd)


def upsample(x: jax.Array) -> jax.Array:
    """Repeat every pixel of `x` [B, H, W, C] in a 2x2 square: [B, 2 H, 2 W, C]."""
    batch, height, width, channels = x.shape
    x = jnp.broadcast_to(x[:, :, None, :, None], (batch, height, 2, width, 2, channels))
    return x.reshape(batch, 2 * height, 2 * width, channels)


class Linear(nn.Module):
    """A dense layer on the last axis: [..., I] -> [..., features]."""

    features: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply the layer."""
        y = linear(x, self.param("kernel", nn.initializers.lecun_normal(), (x.shape[-1], self.features)))
        if self.use_bias:
            y = y + _like(self.param("bias", nn.initializers.zeros, (self.features,)), y)
        return y


class BlockLinear(nn.Module):
    """A block-diagonal dense layer on the last axis: [..., I] -> [..., features], both block-major."""

    features: int
    blocks: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply the layer; both sizes must be multiples of `blocks`."""
        shape = (self.blocks, x.shape[-1] // self.blocks, self.features // self.blocks)
        y = block_linear(x, self.param("kernel", nn.initializers.lecun_normal(batch_axis=0), shape))
        return y + _like(self.param("bias", nn.initializers.zeros, (self.features,)), y)


class RMSNorm(nn.Module):
    """Root-mean-square normalisation of the last axis, with a learned scale and no bias."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply the layer."""
        return rms_norm(x, self.param("scale", nn.initializers.ones, (x.shape[-1],)))


class Conv(nn.Module):
    """A square convolution with bias, stride 1, same size: [B, H, W, I] -> [B, H, W, features]."""

    features: int
    kernel_size: int = 5

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply the layer."""
        shape = (self.kernel_size, self.kernel_size, x.shape[-1], self.features)
        y = conv(x, self.param("kernel", nn.initializers.lecun_normal(), shape))
        return y + _like(self.param("bias", nn.initializers.zeros, (self.features,)), y)


class MLP(nn.Module):
    """`layers` times (Linear, RMSNorm, SiLU) of width `units`, then a plain Linear to `out` if it is given."""

    units: int
    layers: int
    out: int | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply the network: [..., I] -> [..., out or units]."""
        for index in range(self.layers):
            x = Linear(self.units, name=f"linear{index}")(x)
            x = nn.silu(RMSNorm(name=f"norm{index}")(x))
        return x if self.out is None else Linear(self.out, name="out")(x)


class ConvStage(nn.Module):
    """One encoder stage, convolution, 2x2 max pool, RMSNorm, SiLU: [B, H, W, I] -> [B, H // 2, W // 2, features]."""

    features: int
    kernel_size: int = 5

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply the stage."""
        return nn.silu(RMSNorm(name="norm")(max_pool(Conv(self.features, self.kernel_size, name="conv")(x))))


class UpStage(nn.Module):
    """One decoder stage, nearest x2, convolution, then RMSNorm and SiLU if `norm`.

    [B, H, W, I] -> [B, 2 H, 2 W, features].
    """

    features: int
    norm: bool = True
    kernel_size: int = 5

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply the stage."""
        x = Conv(self.features, self.kernel_size, name="conv")(upsample(x))
        return nn.silu(RMSNorm(name="norm")(x)) if self.norm else x


def _conv(x: jax.Array, kernel: jax.Array, padding: list[tuple[int, int]]) -> jax.Array:
    # XLA's CPU convolution reads channels in packets of 4: three channels, padded, run four times faster.
    channels = [(0, 0), (0, -x.shape[3] % 4)]
    x, kernel = jnp.pad(x, [(0, 0), (0, 0), *channels]), jnp.pad(kernel, [(0, 0), (0, 0), channels[1], (0, 0)])
    return lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _padding(kernel: jax.Array) -> list[tuple[int, int]]:
    return [((size - 1) // 2, size // 2) for size in kernel.shape[:2]]


def _like(vector: jax.Array, x: jax.Array) -> jax.Array:
    """Give `vector` [C] the rank of `x` [..., C]."""
    return lax.expand_dims(vector, range(x.ndim - 1))
