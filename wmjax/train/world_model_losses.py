"""What the world model learns from replayed sequences: beliefs about them, and the losses that all agents share."""

import jax
import jax.numpy as jnp
from flax import struct

from wmjax.agents.base import Belief, Embedding, Params
from wmjax.agents.dreamer import Dreamer
from wmjax.core.distributions import OneHot
from wmjax.train.batch import Batch, flat
from wmjax.train.recipe import Recipe

Losses = dict[str, jax.Array]
"""Terms by the reference's names, [] each, not yet weighted."""


@struct.dataclass
class Observed:
    """What the agent makes of B sequences of T frames."""

    embedding: Embedding  #: [B, T, E]
    belief: Belief  #: [B, T]
    post_logits: jax.Array  #: [B, T, G, K] raw, of q(z_t | h_t, x_t)
    prior_logits: jax.Array  #: [B, T, G, K] raw, of p(z_t | h_t)


def embed(victim: Dreamer, params: Params, image: jax.Array) -> Embedding:
    """Encode `image` [B, T, H, W, C], float32 in [0, 1], to [B, T, E]."""
    return victim.embed(params, flat(image)).reshape(*image.shape[:2], -1)


def observe(
    victim: Dreamer, params: Params, image: jax.Array, batch: Batch, initial: Belief, noise: jax.Array
) -> Observed:
    """Follow the frames `image` [B, T, H, W, C], in [0, 1], from `initial` [B]; `noise` [T, B, G, K] is Gumbel.

    A first frame is met with the all-zero belief, and no action before it.
    """

    def step(before: Belief, inputs: tuple[jax.Array, ...]) -> tuple[Belief, tuple[Belief, jax.Array]]:
        embedding, action, first, gumbel = inputs
        kept = lambda x: jnp.where(first.reshape(-1, *[1] * (x.ndim - 1)), jnp.zeros_like(x), x)  # noqa: E731
        prediction = victim.predict(params, jax.tree.map(kept, before), kept(action))
        belief, internals = victim.update(params, prediction, embedding, gumbel)
        return belief, (belief, internals.post_logits)

    embedding = embed(victim, params, image)
    in_time = lambda x: jnp.swapaxes(x, 0, 1)  # noqa: E731
    inputs = (in_time(embedding), in_time(batch.action), in_time(batch.is_first), noise)
    _, (belief, post_logits) = jax.lax.scan(step, initial, inputs)
    belief, post_logits = jax.tree.map(in_time, (belief, post_logits))
    return Observed(embedding, belief, post_logits, victim.prior_logits(params, belief))


def world_losses(victim: Dreamer, recipe: Recipe, params: Params, batch: Batch, seen: Observed) -> Losses:
    """Return how badly the model foresees latents (`dyn`, `rep`), rewards (`rew`) and ends (`con`).

    The KL of posterior and prior, without unimix, has each side learn with the other held (arXiv 2301.04104, eq. 5);
    below `kl_free` nats a frame there is nothing to learn.
    """
    held = jax.lax.stop_gradient
    kl = lambda post, prior: OneHot.raw(post).kl(OneHot.raw(prior)).sum(-1)  # noqa: E731
    free = lambda nats: jnp.mean(jnp.maximum(nats, recipe.kl_free))  # noqa: E731
    goes_on = 1.0 - batch.is_terminal.astype(jnp.float32)
    return {
        "dyn": free(kl(held(seen.post_logits), seen.prior_logits)),
        "rep": free(kl(seen.post_logits, held(seen.prior_logits))),
        "rew": -jnp.mean(victim.reward(params, seen.belief).log_prob(batch.reward)),
        "con": -jnp.mean(victim.cont(params, seen.belief).log_prob(goes_on)),
    }
