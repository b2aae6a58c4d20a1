"""A Dreamer-family agent as pure functions of its weights, behind the Victim contract."""

from dataclasses import dataclass
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp

from wmjax.agents.base import Belief, Embedding, Internals, Params, Prediction
from wmjax.agents.dreamer.encoder_decoder import Decoder, Encoder
from wmjax.agents.dreamer.rssm import RSSM
from wmjax.core.distributions import Bernoulli, DiagGaussian, OneHot, TwoHot
from wmjax.core.jax_settings import fixed_settings
from wmjax.core.layers import MLP

AGENTS = ("dreamer", "dreamerpro", "infonce", "r2dreamer")
"""The four members of the family: they share the inference graph and differ in how the representation is learnt."""


@dataclass(frozen=True)
class Dreamer:
    """The sizes of an agent; its weights are the `params` argument of every method.

    Field names are those of the reference configuration: `stoch` groups (G) of `discrete` classes (K), `deter` (D).
    """

    agent: str
    action_size: int
    stoch: int
    discrete: int
    deter: int
    hidden: int
    units: int
    blocks: int
    depths: tuple[int, ...]
    kernel_size: int
    minres: int
    dyn_layers: int
    img_layers: int
    obs_layers: int
    actor_layers: int
    critic_layers: int
    reward_layers: int
    cont_layers: int
    bins: int
    decoder_units: int = 0
    decoder_blocks: int = 0
    horizon: int = 333

    @property
    def discount(self) -> float:
        """Of an agent step."""
        return 1 - 1 / self.horizon

    @property
    def image_size(self) -> int:
        """H = W in pixels: every encoder stage halves it."""
        return self.minres * 2 ** len(self.depths)

    @property
    def latent_shape(self) -> tuple[int, int]:
        """(G, K)."""
        return self.stoch, self.discrete

    @property
    def feature_size(self) -> int:
        """F = G * K + D, of what the heads read."""
        return self.stoch * self.discrete + self.deter

    @property
    def embedding_size(self) -> int:
        """E."""
        return self.minres**2 * self.depths[-1]

    @property
    def stage_size(self) -> int:
        """Numbers that the encoder's convolutions make of an image, before they are pooled."""
        return sum((self.image_size >> stage) ** 2 * depth for stage, depth in enumerate(self.depths))

    @fixed_settings()
    def init(self, key: jax.Array) -> Params:
        """Return random weights of every part that inference reads; the key is consumed."""
        names = ("encoder", "rssm", "decoder", *self._heads)
        keys = dict(zip(names, jax.random.split(key, len(names)), strict=True))
        belief = self.initial(1)
        image = jnp.zeros((1, self.image_size, self.image_size, 3))
        encoder = self._encoder.init(keys["encoder"], image)
        embedding, action = self._encoder.apply(encoder, image), jnp.zeros((1, self.action_size))
        modules = {
            "encoder": encoder,
            "rssm": self._rssm.init(keys["rssm"], belief.stoch, belief.deter, action, embedding),
        } | {name: head.init(keys[name], feature(belief)) for name, head in self._heads.items()}
        if self.agent == "dreamer":
            modules["decoder"] = self._decoder.init(keys["decoder"], belief.stoch, belief.deter)
        return {name: variables["params"] for name, variables in modules.items()}

    # One agent step.

    def initial(self, batch: int) -> Belief:
        """Return the all-zero belief that precedes an episode."""
        return Belief(
            jnp.zeros((batch, self.stoch, self.discrete), jnp.float32), jnp.zeros((batch, self.deter), jnp.float32)
        )

    def predict(self, params: Params, belief: Belief, action: jax.Array) -> Prediction:
        """Advance h_t and the prior from `belief` and the `action` [B, A] taken after it; no image needed."""
        rssm, weights = self._rssm, params["rssm"]
        deter = _apply(rssm, weights, belief.stoch, belief.deter, action, method=RSSM.advance)
        return Prediction(
            deter=deter,
            prior_logits=_apply(rssm, weights, deter, method=RSSM.prior_logits),
            obs_hidden=_apply(rssm, weights, deter, method=RSSM.obs_hidden),
        )

    def embed(self, params: Params, image: jax.Array) -> Embedding:
        """Encode `image` [B, H, W, 3], float32 in [0, 1], to [B, E]."""
        return _apply(self._encoder, params["encoder"], image)

    def update(
        self, params: Params, prediction: Prediction, embedding: Embedding, noise: jax.Array | None
    ) -> tuple[Belief, Internals]:
        """Fold the image in: posterior, latent sample, policy and value; `noise` is Gumbel [B, G, K] or None (mode)."""
        hidden = prediction.obs_hidden
        post_logits = _apply(self._rssm, params["rssm"], hidden, embedding, method=RSSM.post_logits)
        belief = Belief(_draw(post_logits, noise), prediction.deter)
        internals = Internals(
            policy=self.policy(params, belief),
            value=self.value(params, belief).mean(),
            stoch=belief.stoch,
            deter=belief.deter,
            post_logits=post_logits,
            prior_logits=prediction.prior_logits,
        )
        return belief, internals

    # Heads: everything else the agent believes.

    def imagine(self, params: Params, belief: Belief, action: jax.Array, noise: jax.Array | None) -> Belief:
        """Take one step in the model alone: the latent comes from the prior, with `noise` as in `update`."""
        prediction = self.predict(params, belief, action)
        return Belief(_draw(prediction.prior_logits, noise), prediction.deter)

    def prior_logits(self, params: Params, belief: Belief) -> jax.Array:
        """Return the raw logits [B, G, K] of p(z_t | h_t)."""
        return _apply(self._rssm, params["rssm"], belief.deter, method=RSSM.prior_logits)

    def policy(self, params: Params, belief: Belief) -> DiagGaussian:
        """Return the actor's distribution over actions [B, A]."""
        return DiagGaussian.bounded(self._head(params, "actor", belief))

    def value(self, params: Params, belief: Belief) -> TwoHot:
        """Return the critic's distribution of the return."""
        return TwoHot(self._head(params, "value", belief))

    def slow_value(self, params: Params, belief: Belief) -> TwoHot:
        """Return the slow (target) critic's distribution of the return."""
        return TwoHot(self._head(params, "slow_value", belief))

    def reward(self, params: Params, belief: Belief) -> TwoHot:
        """Return the distribution of the reward on arriving at `belief`."""
        return TwoHot(self._head(params, "reward", belief))

    def cont(self, params: Params, belief: Belief) -> Bernoulli:
        """Return the chance that the episode goes on, [B]."""
        return Bernoulli(self._head(params, "cont", belief)[..., 0])

    def action_value(self, params: Params, belief: Belief, action: jax.Array) -> jax.Array:
        """Return the expected return [B] of taking `action` [B, A] in `belief`, imagined with the mode of the prior."""
        after = self.imagine(params, belief, action, None)
        later = self.cont(params, after).prob() * self.value(params, after).mean()
        return self.reward(params, after).mean() + self.discount * later

    def decode(self, params: Params, belief: Belief) -> jax.Array:
        """Return the reconstruction [B, H, W, 3] in [0, 1]; only the agent 'dreamer' has a decoder."""
        if self.agent != "dreamer":
            raise TypeError(f"agent {self.agent!r} has no decoder; only 'dreamer' reconstructs its image")
        return _apply(self._decoder, params["decoder"], belief.stoch, belief.deter)

    # The networks: cheap descriptions without weights.

    @property
    def _encoder(self) -> Encoder:
        return Encoder(self.depths, self.kernel_size)

    @property
    def _decoder(self) -> Decoder:
        return Decoder(self.depths, self.kernel_size, self.minres, self.decoder_units, self.decoder_blocks)

    @property
    def _rssm(self) -> RSSM:
        return RSSM(
            stoch=self.stoch,
            discrete=self.discrete,
            deter=self.deter,
            hidden=self.hidden,
            blocks=self.blocks,
            dyn_layers=self.dyn_layers,
            img_layers=self.img_layers,
            obs_layers=self.obs_layers,
        )

    @property
    def _heads(self) -> dict[str, MLP]:
        return {
            "actor": MLP(self.units, self.actor_layers, 2 * self.action_size),
            "value": MLP(self.units, self.critic_layers, self.bins),
            "slow_value": MLP(self.units, self.critic_layers, self.bins),
            "reward": MLP(self.units, self.reward_layers, self.bins),
            "cont": MLP(self.units, self.cont_layers, 1),
        }

    def _head(self, params: Params, name: str, belief: Belief) -> jax.Array:
        # Apart, for h does not depend on the image: its product is made once, outside of an attack's loop.
        with jax.named_scope(name):
            return _apply(self._heads[name], params[name], _flat(belief.stoch), belief.deter)


def feature(belief: Belief) -> jax.Array:
    """Return what the heads read, [B, F]."""
    return jnp.concatenate([_flat(belief.stoch), belief.deter], axis=-1)


def _flat(stoch: jax.Array) -> jax.Array:
    return stoch.reshape(*stoch.shape[:-2], -1)


def _apply(module: nn.Module, weights: Params, *inputs: jax.Array, method: Any = None) -> jax.Array:
    return cast(jax.Array, module.apply({"params": weights}, *inputs, method=method))


def _draw(logits: jax.Array, noise: jax.Array | None) -> jax.Array:
    latent = OneHot.unimix(logits)
    return latent.mode() if noise is None else latent.sample(noise)
