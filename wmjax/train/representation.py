"""Where the four agents differ: how the latent state learns what is in the image."""

import math
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp

from wmjax.agents.base import Params
from wmjax.agents.dreamer import Dreamer
from wmjax.agents.dreamer.agent import feature
from wmjax.core.layers import linear
from wmjax.train.batch import Batch, Noise, flat
from wmjax.train.recipe import Recipe
from wmjax.train.world_model_losses import Losses, Observed, embed, observe

Representation = Callable[[Dreamer, Recipe, Params, Batch, Noise, Observed], Losses]


def grey(image: jax.Array) -> jax.Array:
    """Return uint8 frames as float32 in [0, 1]."""
    return image.astype(jnp.float32) / 255


def reconstruction(
    victim: Dreamer, recipe: Recipe, params: Params, batch: Batch, noise: Noise, seen: Observed
) -> Losses:
    """DreamerV3 (arXiv 2301.04104): decode the image; the squared error, summed over a frame."""
    error = victim.decode(params, flat(seen.belief)) - flat(grey(batch.image))
    return {"recon": jnp.mean(jnp.sum(error**2, axis=(1, 2, 3)))}


def redundancy_reduction(
    victim: Dreamer, recipe: Recipe, params: Params, batch: Batch, noise: Noise, seen: Observed
) -> Losses:
    """R2-Dreamer: the projected state correlates with the embedding, entry by entry (Barlow Twins, arXiv 2103.03230).

    The correlation over all B * T frames shall be the identity; what is off its diagonal weighs `lambd`.
    """
    ours, theirs = (_standardised(x) for x in _paired(params, seen))
    correlation = linear(ours.T, theirs) / len(ours)
    diagonal = jnp.diagonal(correlation)
    invariance = jnp.sum((diagonal - 1.0) ** 2)
    return {"barlow": invariance + recipe.lambd * (jnp.sum(correlation**2) - jnp.sum(diagonal**2))}


def contrast(victim: Dreamer, recipe: Recipe, params: Params, batch: Batch, noise: Noise, seen: Observed) -> Losses:
    """InfoNCE (arXiv 1807.03748): the projected state picks its own frame's embedding out of all B * T."""
    ours, theirs = _paired(params, seen)
    log_probs = jax.nn.log_softmax(linear(ours, theirs.T), axis=1)
    return {"infonce": -jnp.mean(jnp.diagonal(log_probs))}


def prototypes(victim: Dreamer, recipe: Recipe, params: Params, batch: Batch, noise: Noise, seen: Observed) -> Losses:
    """DreamerPro (arXiv 2110.14565): image and state are assigned to the same prototypes as a shifted copy's image.

    `swav`: the image's assignment foretells that of the other copy; `temp`: the state's that of its own; `norm`: all
    projections stay near the unit sphere. The targets come from slowly moving copies of encoder and projection.
    """
    if noise.shift is None or noise.augmented is None:
        raise TypeError("dreamerpro needs the noise of its augmentation")
    twice = lambda tree: jax.tree.map(lambda x: jnp.concatenate([x, x]), tree)  # noqa: E731
    doubled = twice(replace(batch, image=grey(batch.image)))
    image = translate(doubled.image, noise.shift, recipe.max_delta)
    slow = embed(victim, {"encoder": params["ema_encoder"]}, image)
    target, _ = on_sphere(_affine(params["ema_obs_proj"], slow))
    shifted = observe(victim, params, image, doubled, doubled.initial, noise.augmented)
    seen_at, seen_norm = on_sphere(_affine(params["obs_proj"], shifted.embedding))
    state_at, state_norm = on_sphere(_affine(params["feat_proj"], feature(shifted.belief)))

    centres, _ = on_sphere(params["prototypes"]["kernel"].T)  # [P, proto_dim]
    scores = lambda x: linear(x[:, recipe.warm_up :], centres.T)  # noqa: E731  [2 B, T - warm_up, P]
    log_probs = lambda x: jax.nn.log_softmax(scores(x) / recipe.temperature, axis=-1)  # noqa: E731
    copies = jnp.split(scores(jax.lax.stop_gradient(target)), 2)
    first, second = (
        jax.lax.stop_gradient(sinkhorn(copy, recipe.sinkhorn_eps, recipe.sinkhorn_iters)) for copy in copies
    )
    fit = lambda targets, x: -jnp.mean(jnp.sum(targets * x, axis=-1))  # noqa: E731
    return {
        "swav": fit(jnp.concatenate([second, first]), log_probs(seen_at)),
        "temp": fit(jnp.concatenate([first, second]), log_probs(state_at)),
        "norm": jnp.mean((seen_norm - 1.0) ** 2) + jnp.mean((state_norm - 1.0) ** 2),
    }


LOSSES: dict[str, Representation] = {
    "dreamer": reconstruction,
    "r2dreamer": redundancy_reduction,
    "infonce": contrast,
    "dreamerpro": prototypes,
}
"""The representation loss of each agent."""


def own_weights(victim: Dreamer, recipe: Recipe, encoder: Params, key: jax.Array) -> Params:
    """Return the weights that only the representation loss reads, drawn at random; the key is consumed.

    Those of `dreamer`'s decoder are not among them: they belong to the agent.
    """
    keys = jax.random.split(key, 3)
    features, embed = victim.feature_size, victim.embedding_size
    kernel = lambda key, *shape: {"kernel": jax.nn.initializers.lecun_normal()(key, shape)}  # noqa: E731
    match victim.agent:
        case "r2dreamer" | "infonce":
            return {"projector": kernel(keys[0], features, embed)}
        case "dreamerpro":
            bias = {"bias": jnp.zeros(recipe.proto_dim)}
            obs_proj = kernel(keys[0], embed, recipe.proto_dim) | bias
            return {
                "prototypes": {"kernel": jax.random.normal(keys[2], (recipe.proto_dim, recipe.num_prototypes))},
                "obs_proj": obs_proj,
                "feat_proj": kernel(keys[1], features, recipe.proto_dim) | bias,
                "ema_encoder": encoder,
                "ema_obs_proj": obs_proj,
            }
    return {}


def sinkhorn(scores: jax.Array, eps: float, iterations: int) -> jax.Array:
    """Return soft assignments [..., P] of `scores` [..., P] that use all P prototypes about equally (arXiv 1306.0895).

    Rows sum to 1 after the last iteration.
    """
    log_q = scores.reshape(-1, scores.shape[-1]) / eps
    samples, centres = log_q.shape
    log_q = log_q - jax.scipy.special.logsumexp(log_q)
    for _ in range(iterations):
        log_q = log_q - jax.scipy.special.logsumexp(log_q, axis=0, keepdims=True) - math.log(centres)
        log_q = log_q - jax.scipy.special.logsumexp(log_q, axis=1, keepdims=True) - math.log(samples)
    return (jnp.exp(log_q + math.log(samples))).reshape(scores.shape)


def translate(image: jax.Array, shift: jax.Array, most: int) -> jax.Array:
    """Shift sequences `image` [B, T, H, W, C] by `shift` - `most` pixels, [B, 2] along W and H; the border repeats."""
    height, width = image.shape[2:4]
    pad = [(0, 0), (0, 0), (most, most), (most, most), (0, 0)]
    padded = jnp.pad(image, pad, mode="edge")
    window = lambda one, by: jax.lax.dynamic_slice(  # noqa: E731
        one, (0, by[1], by[0], 0), (one.shape[0], height, width, one.shape[3])
    )
    return jax.vmap(window)(padded, shift)


def _paired(params: Params, seen: Observed) -> tuple[jax.Array, jax.Array]:
    """Return the projected state and the embedding of all frames, [B * T, E] each; only the former learns."""
    ours = linear(flat(feature(seen.belief)), params["projector"]["kernel"])
    return ours, jax.lax.stop_gradient(flat(seen.embedding))


def _standardised(x: jax.Array) -> jax.Array:
    return (x - x.mean(axis=0, keepdims=True)) / (x.std(axis=0, ddof=1, keepdims=True) + 1e-8)


def _affine(part: Params, x: jax.Array) -> jax.Array:
    y = linear(x, part["kernel"])
    return y + jnp.expand_dims(part["bias"], range(y.ndim - 1))


def on_sphere(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return `x` [..., C] over its norm, and the norm [...]."""
    norm = jnp.sqrt(jnp.sum(x**2, axis=-1))
    return x / jnp.maximum(norm, 1e-12)[..., None], norm
