"""The optimizer of the reference: adaptive gradient clipping, then LaProp with a warm-up, as an optax chain.

LaProp: Ziyin et al., arXiv 2002.04839. Clipping by the norm of the weight: Brock et al., arXiv 2102.06171, here with
one norm for a whole tensor.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict, unflatten_dict

from wmjax.agents.base import Params
from wmjax.agents.dreamer import Dreamer
from wmjax.agents.dreamer.torch_layout import weights
from wmjax.train.recipe import Recipe

Schedule = Callable[[jax.Array], jax.Array]


class LaPropState(NamedTuple):
    """What LaProp carries from update to update."""

    step: jax.Array  #: [] int32, updates done
    mu: optax.Updates  #: averages of the normalised gradient times the learning rate
    nu: optax.Updates  #: averages of the squared gradient
    lr_1: jax.Array  #: [] the average of the learning rate, which corrects `mu`
    lr_2: jax.Array  #: [] the average of one, which corrects `nu`


def optimizer(victim: Dreamer, recipe: Recipe) -> optax.GradientTransformation:
    """Return the chain that trains `victim`; it takes the trained parts of the weights."""
    return optax.chain(
        clip_by_weight(recipe.agc, recipe.pmin, {weight.path: weight.key for weight in weights(victim)}),
        laprop(warm_up(recipe.lr, recipe.warmup), recipe.beta1, recipe.beta2, recipe.eps),
    )


def warm_up(lr: float, updates: int) -> Schedule:
    """Return the schedule that reaches `lr` in so many updates, linearly, and stays there."""
    return lambda count: jnp.minimum(1.0, (count + 1) / max(updates, 1)) * lr


def clip_by_weight(most: float, smallest: float, tensors: Mapping[str, str]) -> optax.GradientTransformation:
    """Scale each tensor's gradient down to `most` times the norm of its weight, which counts as `smallest` at least.

    `tensors` gives the tensor that each weight, by its path, belongs to: some are pieces of one.
    """

    def update(
        updates: optax.Updates, state: optax.EmptyState, params: Params | None = None
    ) -> tuple[optax.Updates, optax.EmptyState]:
        squares: dict[str, dict[str, jax.Array]] = {}
        flat = flatten_dict(updates, sep="/")
        for name, tree in (("gradient", flat), ("weight", flatten_dict(params, sep="/"))):
            sums: dict[str, jax.Array] = defaultdict(lambda: jnp.zeros(()))
            for path in flat:
                sums[tensors[path]] += jnp.sum(tree[path] ** 2)
            squares[name] = sums
        scale = {}
        for tensor, square in squares["gradient"].items():
            limit = most * jnp.maximum(jnp.sqrt(squares["weight"][tensor]), smallest)
            scale[tensor] = 1 / jnp.maximum(1.0, jnp.sqrt(square) / limit)
        return unflatten_dict({path: g * scale[tensors[path]] for path, g in flat.items()}, sep="/"), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def laprop(schedule: Schedule, beta1: float, beta2: float, eps: float) -> optax.GradientTransformation:
    """Normalise the gradient by its own size first, and average the result: the reverse of Adam."""

    def init(params: Params) -> LaPropState:
        # Not the same zeros twice: a program that reuses the memory of its input could not take them.
        mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return LaPropState(jnp.zeros((), jnp.int32), mu, nu, jnp.zeros(()), jnp.zeros(()))

    def update(
        updates: optax.Updates, state: LaPropState, params: Params | None = None
    ) -> tuple[optax.Updates, LaPropState]:
        lr = schedule(state.step)
        average = lambda beta, old, new: beta * old + (1 - beta) * new  # noqa: E731
        lr_1, lr_2 = average(beta1, state.lr_1, lr), average(beta2, state.lr_2, 1.0)
        nu = jax.tree.map(lambda old, g: average(beta2, old, g**2), state.nu, updates)
        mu = jax.tree.map(
            lambda old, g, v: average(beta1, old, lr * g / (jnp.sqrt(v / lr_2) + eps)), state.mu, updates, nu
        )
        step = jax.tree.map(lambda m: -m * (lr / lr_1), mu)
        return step, LaPropState(state.step + 1, mu, nu, lr_1, lr_2)

    return optax.GradientTransformation(init, update)
