"""The recurrent state-space model: a block-diagonal gated core, a prior, and a posterior that sees the image."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from wmjax.core.layers import MLP, BlockLinear, Linear, RMSNorm


class RSSM(nn.Module):
    """h_t = f(h_{t-1}, z_{t-1}, a_{t-1}); prior p(z_t | h_t); posterior q(z_t | h_t, e_t)."""

    stoch: int
    discrete: int
    deter: int
    hidden: int
    blocks: int
    dyn_layers: int
    img_layers: int
    obs_layers: int

    def setup(self) -> None:
        """Name the parts; the names are those of the weight file."""
        latent = self.stoch * self.discrete
        self.in_deter, self.in_stoch, self.in_action = (MLP(self.hidden, 1) for _ in range(3))
        self.core = [BlockLinear(self.deter, self.blocks) for _ in range(self.dyn_layers)]
        self.core_norm = [RMSNorm() for _ in range(self.dyn_layers)]
        self.gates = BlockLinear(3 * self.deter, self.blocks)
        self.prior = MLP(self.hidden, self.img_layers, out=latent)
        # The posterior's first product, split: the share of h_t does not depend on the image.
        self.obs_deter = Linear(self.hidden, use_bias=False)
        self.obs_embed = Linear(self.hidden)
        self.obs_norm = RMSNorm()
        self.obs_tail = MLP(self.hidden, self.obs_layers - 1, out=latent)

    def __call__(self, stoch: jax.Array, deter: jax.Array, action: jax.Array, embedding: jax.Array) -> tuple:
        """Return (h_t, prior logits, posterior logits) of one whole step; initialisation runs it."""
        deter = self.advance(stoch, deter, action)
        return deter, self.prior_logits(deter), self.post_logits(self.obs_hidden(deter), embedding)

    def advance(self, stoch: jax.Array, deter: jax.Array, action: jax.Array) -> jax.Array:
        """Return h_t [B, D] from z [B, G, K], h [B, D] and the action [B, A] taken there (scaled into [-1, 1])."""
        batch = deter.shape[0]
        blockwise = lambda x: x.reshape(batch, self.blocks, -1)  # noqa: E731
        action = action / jnp.maximum(jnp.abs(action), 1.0)
        inputs = [self.in_deter(deter), self.in_stoch(stoch.reshape(batch, -1)), self.in_action(action)]
        shared = jnp.concatenate(inputs, axis=-1)[:, None]
        shared = jnp.broadcast_to(shared, (batch, self.blocks, shared.shape[-1]))
        x = jnp.concatenate([blockwise(deter), shared], axis=-1).reshape(batch, -1)
        for linear, norm in zip(self.core, self.core_norm, strict=True):
            x = nn.silu(norm(linear(x)))
        gates = jnp.split(blockwise(self.gates(x)), 3, axis=-1)
        # Block by block, a copy: fused with what follows, as a reshape is, it costs many times more on CPUs.
        reset, candidate, update = (jnp.concatenate(jnp.split(g, self.blocks, axis=1), axis=-1)[:, 0] for g in gates)
        candidate = jnp.tanh(nn.sigmoid(reset) * candidate)
        update = nn.sigmoid(update - 1.0)
        return update * candidate + (1.0 - update) * deter

    def prior_logits(self, deter: jax.Array) -> jax.Array:
        """Return the raw prior logits [B, G, K] of h_t [B, D]."""
        return self._latent(self.prior(deter))

    def obs_hidden(self, deter: jax.Array) -> jax.Array:
        """Return the image-independent share [B, hidden] of the posterior net's first product."""
        return self.obs_deter(deter)

    def post_logits(self, obs_hidden: jax.Array, embedding: jax.Array) -> jax.Array:
        """Return the raw posterior logits [B, G, K] of the hidden share [B, hidden] and the embedding [B, E]."""
        x = nn.silu(self.obs_norm(obs_hidden + self.obs_embed(embedding)))
        return self._latent(self.obs_tail(x))

    def _latent(self, logits: jax.Array) -> jax.Array:
        return logits.reshape(*logits.shape[:-1], self.stoch, self.discrete)
