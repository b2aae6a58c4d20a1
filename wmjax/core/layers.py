"""The layers of Dreamer-family networks, NHWC and float32.

Parameters are called `kernel`, `bias` and `scale`; these names are the file format of converted agents.
"""

from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax

from wmjax.core.convolution import EXACT, MANY, conv_pool, up_conv

RMS_EPS = 1e-4
"""Added to the mean square under RMSNorm's root."""

FEW = 16
"""Channels; of many frames, the mean along fewer is several times faster as a product of matrices, on CPUs."""


def linear(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return `x` [..., I] times `kernel` [I, O]: [..., O]."""
    return _product(x.reshape(-1, x.shape[-1]), kernel).reshape(*x.shape[:-1], kernel.shape[1])


@jax.custom_vjp
def _product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Multiply two matrices; the kernel's gradient is in the form that is fastest on CPUs, which JAX's own is not."""
    return jnp.dot(x, kernel, precision=EXACT)


def _product_bwd(residuals: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = residuals
    return jnp.dot(dy, kernel.T, precision=EXACT), jnp.dot(x.T, dy, precision=EXACT)


_product.defvjp(lambda x, kernel: (_product(x, kernel), (x, kernel)), _product_bwd)


def block_linear(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return each block of `x` [..., blocks * I] times its own matrix of `kernel` [blocks, I, O]: [..., blocks * O]."""
    blocks, rows, outputs = kernel.shape
    parts = jnp.moveaxis(x.reshape(*x.shape[:-1], blocks, rows), -2, 0)
    # Blocks first on every side: a slice of the kernel would be a copy of it, each time.
    y = jnp.einsum("g...i,gio->g...o", parts, kernel, precision=EXACT)
    return jnp.moveaxis(y, 0, -2).reshape(*x.shape[:-1], blocks * outputs)


def rms_norm(x: jax.Array, scale: jax.Array, eps: float = RMS_EPS) -> jax.Array:
    """Return `x` [..., C] over the root of its mean square along C, times `scale` [C]."""
    return x * lax.rsqrt(_mean(x**2) + eps) * _like(scale, x)


def _mean(x: jax.Array) -> jax.Array:
    """Return the mean of `x` [..., C] along C, as [..., 1] or for each channel anew, [..., C]."""
    channels = x.shape[-1]
    if channels >= FEW or len(x) < MANY:
        return jnp.mean(x, axis=-1, keepdims=True)
    return linear(x, jnp.full((channels, channels), 1 / channels, x.dtype))


class Linear(nn.Module):
    """A dense layer on the last axis: [..., I] -> [..., features]."""

    features: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, *inputs: jax.Array) -> jax.Array:
        """Apply the layer to its inputs, [..., I1], [..., I2] and so on, laid end to end.

        Each has a product of its own, so that one which stays the same in a loop is multiplied outside of it.
        """
        ends = np.cumsum([x.shape[-1] for x in inputs])
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (int(ends[-1]), self.features))
        products = map(linear, inputs, jnp.split(kernel, ends[:-1]))
        y = reduce(jnp.add, products)
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
    """A square convolution with bias, stride 1, and 2x2 maxima of it: [B, H, W, I] -> [B, H // 2, W // 2, features].

    With `up`, a convolution alone, of every pixel repeated in a 2x2 square: [B, 2 H, 2 W, features].
    """

    features: int
    kernel_size: int = 5
    up: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply the layer."""
        shape = (self.kernel_size, self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return up_conv(x, kernel) + _like(bias, x) if self.up else conv_pool(x, kernel, bias)


class MLP(nn.Module):
    """`layers` times (Linear, RMSNorm, SiLU) of width `units`, then a plain Linear to `out` if it is given."""

    units: int
    layers: int
    out: int | None = None

    @nn.compact
    def __call__(self, *inputs: jax.Array) -> jax.Array:
        """Apply the network to its inputs, laid end to end: [..., I] -> [..., out or units]."""
        for index in range(self.layers):
            x = Linear(self.units, name=f"linear{index}")(*inputs)
            inputs = (nn.silu(RMSNorm(name=f"norm{index}")(x)),)
        return inputs[0] if self.out is None else Linear(self.out, name="out")(*inputs)


class ConvStage(nn.Module):
    """One encoder stage, convolution, 2x2 max pool, RMSNorm, SiLU: [B, H, W, I] -> [B, H // 2, W // 2, features]."""

    features: int
    kernel_size: int = 5

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply the stage."""
        x = Conv(self.features, self.kernel_size, name="conv")(x)
        return nn.silu(RMSNorm(name="norm")(x))


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
        x = Conv(self.features, self.kernel_size, up=True, name="conv")(x)
        return nn.silu(RMSNorm(name="norm")(x)) if self.norm else x


def _like(vector: jax.Array, x: jax.Array) -> jax.Array:
    """Give `vector` [C] the rank of `x` [..., C]."""
    return lax.expand_dims(vector, range(x.ndim - 1))
