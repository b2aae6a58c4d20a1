"""The contract between a world-model agent and everything that attacks it: one environment step in three calls."""

from typing import Any, Protocol, TypeAlias

import jax
from flax import struct

from wmjax.core.distributions import DiagGaussian, OneHot

Params: TypeAlias = Any
"""Pytree of float32 weights; always an argument, so that it stacks under `jax.vmap`."""

Embedding: TypeAlias = jax.Array
"""What the encoder makes of an image: float32 [B, E]."""

Policy: TypeAlias = DiagGaussian | OneHot
"""A distribution over actions: `mean`, `std` [B, A] of a continuous actor, or `log_probs` [B, A] of A classes."""


@struct.dataclass
class Belief:
    """What the agent carries from one agent step to the next."""

    stoch: jax.Array  #: [B, G, K] one-hot latent sample z_t
    deter: jax.Array  #: [B, D] recurrent state h_t


@struct.dataclass
class Prediction:
    """All of an agent step that does not depend on the new image; computed once, outside any attack loop."""

    deter: jax.Array  #: [B, D] recurrent state h_t
    prior_logits: jax.Array  #: [B, G, K] raw logits (before unimix) of p(z_t | h_t)
    obs_hidden: jax.Array  #: [B, hidden] the share of h_t in the posterior net's first product


@struct.dataclass
class Internals:
    """What attack objectives and diagnostics read."""

    policy: Policy  #: over actions [B, A]
    value: jax.Array  #: [B] expected return, in reward units
    stoch: jax.Array  #: [B, G, K] latent sample z_t
    deter: jax.Array  #: [B, D] recurrent state h_t
    post_logits: jax.Array  #: [B, G, K] raw logits (before unimix) of q(z_t | h_t, x_t)
    prior_logits: jax.Array  #: [B, G, K] raw logits (before unimix) of p(z_t | h_t)


class Victim(Protocol):
    """A frozen, hashable dataclass of static sizes; it holds no weights.

    One agent step is `update(params, predict(params, belief, action), embed(params, image), noise)`.
    Only `embed` sees the image: an attack differentiates `update . embed` and nothing else.
    """

    @property
    def action_size(self) -> int:
        """A, the number of action dimensions."""

    @property
    def image_size(self) -> int:
        """H = W of the square RGB image, in pixels."""

    @property
    def latent_shape(self) -> tuple[int, int]:
        """(G, K): number of latent groups and classes in each."""

    def initial(self, batch: int) -> Belief:
        """Return the belief before the first image of an episode; the action that goes with it is zero."""

    def predict(self, params: Params, belief: Belief, action: jax.Array) -> Prediction:
        """Advance h_t and the prior from the previous belief and the action [B, A] taken after it."""

    def embed(self, params: Params, image: jax.Array) -> Embedding:
        """Encode `image` [B, H, W, C], float32 in [0, 1]; the victim owns its preprocessing."""

    def update(
        self, params: Params, prediction: Prediction, embedding: Embedding, noise: jax.Array | None
    ) -> tuple[Belief, Internals]:
        """Fold the image in. `noise` is standard Gumbel [B, G, K] for the posterior sample, None for its mode."""

    def action_value(self, params: Params, belief: Belief, action: jax.Array) -> jax.Array:
        """Return the return [B] that the agent expects of taking `action` [B, A] in `belief`, in reward units.

        It is imagined: one step in the model, to the mode of its prior, and the reward and the value there.
        """
