"""Image encoder and decoder of the Dreamer family."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from wmjax.core.layers import MLP, BlockLinear, ConvStage, Linear, RMSNorm, UpStage


class Encoder(nn.Module):
    """Convolution stages that halve the image down to minres x minres, then a flat embedding."""

    depths: tuple[int, ...]
    kernel_size: int

    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        """Encode `image` [B, H, W, 3] in [0, 1] to [B, E], flattened channels first as in PyTorch."""
        x = image - 0.5
        for i, depth in enumerate(self.depths):
            x = ConvStage(depth, self.kernel_size, name=f"stage{i}")(x)
        return jnp.moveaxis(x, -1, 1).reshape(x.shape[0], -1)


class Decoder(nn.Module):
    """The reconstruction agent's image from its latent state."""

    depths: tuple[int, ...]
    kernel_size: int
    minres: int
    units: int
    blocks: int

    @nn.compact
    def __call__(self, stoch: jax.Array, deter: jax.Array) -> jax.Array:
        """Decode `stoch` [B, G, K] and `deter` [B, D] to an image [B, H, W, 3] in [0, 1]."""
        batch, res, channels = deter.shape[0], self.minres, self.depths[-1]
        from_deter = BlockLinear(res * res * channels, self.blocks, name="from_deter")(deter)
        from_deter = from_deter.reshape(batch, self.blocks, res, res, channels // self.blocks)
        from_deter = jnp.moveaxis(from_deter, 1, 3).reshape(batch, res, res, channels)
        hidden = MLP(self.units, 1, name="from_stoch")(stoch.reshape(batch, -1))
        from_stoch = Linear(res * res * channels, name="from_hidden")(hidden).reshape(batch, res, res, channels)
        x = nn.silu(RMSNorm(name="norm")(from_deter + from_stoch))
        for i, depth in enumerate(reversed(self.depths[:-1])):
            x = UpStage(depth, kernel_size=self.kernel_size, name=f"stage{i}")(x)
        x = UpStage(3, norm=False, kernel_size=self.kernel_size, name=f"stage{len(self.depths) - 1}")(x)
        return nn.sigmoid(x)
