"""One update: move the slow copies, sum the losses, follow their gradient. All else is when and on what."""

import jax
import jax.numpy as jnp
import optax
from flax import struct

from wmjax.agents.base import Belief, Params
from wmjax.agents.dreamer import Dreamer
from wmjax.train.actor_critic import imagine, imagined_losses, moved, replayed_loss
from wmjax.train.batch import Batch, Noise, draw, flat
from wmjax.train.optimizer import optimizer
from wmjax.train.recipe import SCALES, Recipe
from wmjax.train.representation import LOSSES, grey, on_sphere, own_weights
from wmjax.train.world_model_losses import Losses, observe, world_losses

FOLLOWERS = {"slow_value": "value", "ema_encoder": "encoder", "ema_obs_proj": "obs_proj"}
"""Parts that are no weights of the optimizer: they follow others slowly."""

Metrics = dict[str, jax.Array]


@struct.dataclass
class Learner:
    """An agent in training."""

    params: Params  #: all weights, as in a weight file
    opt_state: optax.OptState
    updates: jax.Array  #: [] int32, done so far


def init(victim: Dreamer, recipe: Recipe, key: jax.Array) -> Learner:
    """Return an untrained agent; the key is consumed.

    Weights are drawn with a variance of 1 / inputs. The last layers of critic and reward start at zero, the actor's
    at a hundredth: the first returns and actions are 0 or nearly so.
    """
    of_agent, of_representation = jax.random.split(key)
    params = victim.init(of_agent)
    for head, scale in (("reward", 0.0), ("value", 0.0), ("actor", 0.01)):
        params[head]["out"] = jax.tree.map(lambda x, scale=scale: x * scale, params[head]["out"])
    params |= own_weights(victim, recipe, params["encoder"], of_representation)
    params |= {"slow_value": params["value"], "return_ema": {"quantiles": jnp.zeros(2)}}
    trained, _ = split(params)
    return Learner(params, optimizer(victim, recipe).init(trained), jnp.zeros((), jnp.int32))


def update(
    victim: Dreamer, recipe: Recipe, learner: Learner, batch: Batch, key: jax.Array
) -> tuple[Learner, Belief, Metrics]:
    """Return the agent after one update, what it believes now of the batch's frames [B, T], and the loss terms.

    The key is consumed.
    """
    size, length = batch.reward.shape
    noise = draw(victim, recipe, size, length, key)
    params = follow(recipe, learner.params, learner.updates)
    grads, (belief, quantiles, metrics) = gradient(victim, recipe, params, batch, noise)
    trained, rest = split(params)
    if "prototypes" in grads:
        free = learner.updates + 1 >= recipe.freeze_prototypes_iters
        grads["prototypes"] = jax.tree.map(lambda g: jnp.where(free, g, 0.0), grads["prototypes"])
    steps, opt_state = optimizer(victim, recipe).update(grads, learner.opt_state, trained)
    params = optax.apply_updates(trained, steps) | rest | {"return_ema": {"quantiles": quantiles}}
    return Learner(params, opt_state, learner.updates + 1), belief, metrics


def split(params: Params) -> tuple[Params, Params]:
    """Return the parts that the optimizer trains, and the others."""
    fixed = {"return_ema", *FOLLOWERS}
    return (
        {part: weights for part, weights in params.items() if part not in fixed},
        {part: weights for part, weights in params.items() if part in fixed},
    )


def follow(recipe: Recipe, params: Params, updates: jax.Array) -> Params:
    """Move the slow copies a step towards what they copy, and the prototypes onto the unit sphere.

    Before the first update the copies for dreamerpro's targets go all the way.
    """
    rates = {
        "slow_value": recipe.slow_target_fraction,
        "ema_encoder": (rate := jnp.where(updates > 0, recipe.ema_update_fraction, 1.0)),
        "ema_obs_proj": rate,
    }
    params = dict(params)
    # In one order, always: another would be another program, with other last bits.
    for part in filter(params.__contains__, FOLLOWERS):
        mix = lambda slow, fast, rate=rates[part]: rate * fast + (1 - rate) * slow  # noqa: E731
        params[part] = jax.tree.map(mix, params[part], params[FOLLOWERS[part]])
    if "prototypes" in params:
        centres, _ = on_sphere(params["prototypes"]["kernel"].T)
        params["prototypes"] = {"kernel": centres.T}
    return params


def gradient(
    victim: Dreamer, recipe: Recipe, params: Params, batch: Batch, noise: Noise
) -> tuple[Params, tuple[Belief, jax.Array, Metrics]]:
    """Return the gradient of the weighted sum of losses by the trained parts.

    And with it the beliefs [B, T], the moved quantiles of returns [2], and all terms, unweighted, by name.
    """
    trained, rest = split(params)

    def loss(trained: Params) -> tuple[jax.Array, tuple[Belief, jax.Array, Metrics]]:
        terms, belief, quantiles, metrics = losses(victim, recipe, trained | rest, batch, noise)
        total = sum((SCALES[name] * term for name, term in terms.items()), start=jnp.zeros(()))
        logged = {f"loss/{name}": term for name, term in terms.items()} | {"opt/loss": total} | metrics
        return total, (belief, quantiles, logged)

    return jax.grad(loss, has_aux=True)(trained)


def losses(
    victim: Dreamer, recipe: Recipe, params: Params, batch: Batch, noise: Noise
) -> tuple[Losses, Belief, jax.Array, Metrics]:
    """Return all loss terms, the beliefs [B, T], the moved quantiles of returns [2], and what else is logged."""
    seen = observe(victim, params, grey(batch.image), batch, batch.initial, noise.post)
    terms = LOSSES[victim.agent](victim, recipe, params, batch, noise, seen)
    terms |= world_losses(victim, recipe, params, batch, seen)
    imagined = imagine(victim, recipe, params, flat(seen.belief), noise)
    quantiles = moved(params["return_ema"]["quantiles"], imagined.returns)
    terms |= imagined_losses(victim, recipe, params, imagined, quantiles)
    terms |= replayed_loss(victim, recipe, params, batch, seen.belief, imagined)
    metrics = {
        "imagined/reward": jnp.mean(imagined.reward),
        "imagined/value": jnp.mean(imagined.value),
        "imagined/return": jnp.mean(imagined.returns),
        "imagined/entropy": jnp.mean(victim.policy(params, imagined.belief).entropy()),
    }
    return terms, seen.belief, quantiles, jax.lax.stop_gradient(metrics)
