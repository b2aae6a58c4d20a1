"""Actor and critic, which learn in imagination: lambda returns, their normalisation, and the losses.

DreamerV3 (arXiv 2301.04104), as the reference computes it. I = imag_horizon + 1 imagined states start at N = B * T
replayed ones.
"""

import jax
import jax.numpy as jnp
from flax import struct

from wmjax.agents.base import Belief, Params
from wmjax.agents.dreamer import Dreamer
from wmjax.core.distributions import TwoHot
from wmjax.train.batch import Batch, Noise
from wmjax.train.recipe import Recipe
from wmjax.train.world_model_losses import Losses

QUANTILES = (0.05, 0.95)
"""Of the returns: their distance is the scale of advantages."""

QUANTILE_RATE = 0.01
"""Share of an update's own quantiles in the running ones."""


@struct.dataclass
class Imagined:
    """What the agent imagines from N states; nothing here carries gradients."""

    belief: Belief  #: [I, N]
    action: jax.Array  #: [I, N, A]
    value: jax.Array  #: [I, N]
    slow_value: jax.Array  #: [I, N]
    returns: jax.Array  #: [I - 1, N] lambda returns
    weight: jax.Array  #: [I, N] discounted chance that the episode has gone on
    reward: jax.Array  #: [I, N]


def imagine(victim: Dreamer, recipe: Recipe, params: Params, start: Belief, noise: Noise) -> Imagined:
    """Follow the policy in the model alone, from `start` [N]."""
    params, start = jax.lax.stop_gradient((params, start))

    def step(belief: Belief, drawn: tuple[jax.Array, jax.Array]) -> tuple[Belief, tuple]:
        normal, gumbel = drawn
        action = victim.policy(params, belief).sample(normal)
        # Read here, and not at once in the end: the belief still lies in the cache.
        read = [head(params, belief).mean() for head in (victim.value, victim.slow_value, victim.reward)]
        goes_on = victim.cont(params, belief).prob()
        return victim.imagine(params, belief, action, gumbel), (belief, action, goes_on, *read)

    _, (belief, action, goes_on, value, slow_value, reward) = jax.lax.scan(step, start, (noise.action, noise.prior))
    live, on = goes_on * recipe.discount, jnp.full_like(value, recipe.lamb)
    return Imagined(
        belief=belief,
        action=action,
        value=value,
        slow_value=slow_value,
        returns=lambda_returns(reward, live, on, value),
        weight=jnp.cumprod(live, axis=0),
        reward=reward,
    )


def lambda_returns(reward: jax.Array, live: jax.Array, on: jax.Array, bootstrap: jax.Array) -> jax.Array:
    """Return R_t = r_{t+1} + live_{t+1} ((1 - on_{t+1}) b_{t+1} + on_{t+1} R_{t+1}) for all t but the last.

    Time comes first: [T, ...] each, [T - 1, ...] out. `live` is the discount, 0 behind a terminal state; `on` is
    lambda, 0 behind the last state of an episode; the last R is the last `bootstrap`.
    """
    direct = reward + (1.0 - on) * live * bootstrap

    def step(after: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        first, share = now
        here = first + share * after
        return here, here

    return jax.lax.scan(step, bootstrap[-1], (direct[1:], (live * on)[1:]), reverse=True)[1]


def moved(quantiles: jax.Array, returns: jax.Array) -> jax.Array:
    """Return the running 5 % and 95 % quantiles [2] of returns, after those of this update."""
    new = jnp.quantile(returns, jnp.asarray(QUANTILES, returns.dtype))
    return (1 - QUANTILE_RATE) * quantiles + QUANTILE_RATE * new


def imagined_losses(
    victim: Dreamer, recipe: Recipe, params: Params, imagined: Imagined, quantiles: jax.Array
) -> Losses:
    """Return the losses of actor (`policy`: REINFORCE, entropy) and critic (`value`), given the moved quantiles [2]."""
    weight = imagined.weight[:-1]
    scale = jnp.maximum(1.0, quantiles[1] - quantiles[0])
    advantage = (imagined.returns - imagined.value[:-1]) / scale
    # Of all states, though the last has no return: to leave it out first would copy the beliefs.
    policy, value = (
        jax.tree.map(lambda x: x[:-1], head(params, imagined.belief)) for head in (victim.policy, victim.value)
    )
    gain = policy.log_prob(imagined.action[:-1]) * advantage + recipe.act_entropy * policy.entropy()
    unlike = _unlike(value, imagined.returns, imagined.slow_value[:-1])
    return {"policy": -jnp.mean(weight * gain), "value": jnp.mean(weight * unlike)}


def replayed_loss(
    victim: Dreamer, recipe: Recipe, params: Params, batch: Batch, belief: Belief, imagined: Imagined
) -> Losses:
    """Return the critic's loss on the replayed states themselves, through which the world model learns too."""
    shape, in_time = batch.reward.shape, lambda x: jnp.swapaxes(x, 0, 1)
    ended, terminal = (in_time(x).astype(jnp.float32) for x in (batch.is_last, batch.is_terminal))
    bootstrap = in_time(imagined.returns[0].reshape(shape))
    live, on = (1.0 - terminal) * recipe.discount, (1.0 - ended) * recipe.lamb
    returns = lambda_returns(in_time(batch.reward), live, on, bootstrap)
    slow = in_time(imagined.slow_value[0].reshape(shape))  # the first imagined state is the replayed one
    belief = jax.tree.map(lambda x: in_time(x)[:-1], belief)
    unlike = _unlike(victim.value(params, belief), returns, slow[:-1])
    return {"repval": jnp.mean((1.0 - ended[:-1]) * unlike)}


def _unlike(value: TwoHot, returns: jax.Array, slow: jax.Array) -> jax.Array:
    """Return how unlikely the critic finds both the returns and the slow critic's values."""
    return -value.log_prob(returns) - value.log_prob(slow)
