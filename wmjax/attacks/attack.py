"""One attacked frame: what is maximised, by which optimizer, within which budget."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wmjax.agents.base import Params, Victim
from wmjax.attacks.attack_loss import Draw, Frame, attacker_loss
from wmjax.attacks.linf_ball import (
    Incumbent,
    Loss,
    Problem,
    ball,
    keys_at,
    no_incumbent,
    per_pixel,
    project,
    quantize,
    update_best,
)
from wmjax.attacks.objectives import NAMES, NEEDS_DISTANCE
from wmjax.attacks.optimizers import Optimizer
from wmjax.attacks.threat import Attack, Threat
from wmjax.core.errors import InputError
from wmjax.core.jax_settings import fixed_settings


@struct.dataclass
class Perturbed:
    """An attacked frame and how the attack went."""

    image: jax.Array  #: [B, H, W, C] in the ball and in [0, 1]
    loss_first: jax.Array  #: [B] objective at the first point evaluated, of the first start; 0 without steps
    zero_grad: jax.Array  #: [B] fraction of the steps whose gradient was exactly zero everywhere, or not a number
    restart_gap: jax.Array  #: [B] how much higher the best of all starts ended than the first; 0 for one start


def perturb(attack: Attack, victim: Victim, params: Params, frame: Frame, drawn: Draw, threat: Threat) -> Perturbed:
    """Return the attacked version of the frame's image; no example depends on the others of its batch.

    Unless the optimizer has a start of its own, it starts at the clean image plus `threat.delta`; where that gives
    nothing to climb (`start_radius`), at a random point of the ball. It computes in the image's precision.
    """
    if not jnp.issubdtype(frame.image.dtype, jnp.floating):
        raise InputError(f"image has dtype {frame.image.dtype}; expected floats in [0, 1]: grey levels / 255")
    with fixed_settings(precision_of=frame.image):
        image, region = frame.image, threat.region
        everywhere = attacker_loss(attack, victim, params, frame, drawn, threat)
        bounds = ball(image, threat.eps, region)
        start = image + threat.delta + per_pixel(start_radius(attack, threat)) * region * drawn.start
        problem = Problem(image, bounds, threat.eps, project(bounds, start), drawn.keys)
        # Outside of the region nothing has a gradient: methods that look at all of it, or ahead, must not see any.
        found = maximise(lambda x: everywhere(jnp.where(region > 0, x, image)), attack.optimizer, problem)
        return replace(found, image=quantize(found.image, image, threat.eps, region)) if attack.rounded else found


def start_radius(attack: Attack, threat: Threat) -> jax.Array:
    """Return how far from the clean image an attack starts, [B]: 0, or eps.

    Random noise has no other step; and PDA and LDA have no gradient at the clean image where the attacker's two passes
    share their latent noise.
    """
    away = jnp.all(threat.weights == 0, axis=-1)
    if attack.noise != "fresh":
        blind = np.isin(NAMES, list(NEEDS_DISTANCE))
        away |= jnp.any(threat.weights[:, blind] != 0, axis=-1)
    return jnp.where(away, threat.eps, 0.0)


def maximise(loss: Loss, optimizer: Optimizer, problem: Problem) -> Perturbed:
    """Maximise a per-example `loss` inside the ball; restarts keep the image of the best loss."""
    if not optimizer.steps:
        zeros = jnp.zeros_like(problem.eps)
        return Perturbed(problem.start, zeros, zeros, zeros)
    if optimizer.restarts == 1:
        return _run(loss, optimizer, problem, jnp.zeros((), jnp.int32))[0]

    def again(best: Incumbent, restart: jax.Array) -> tuple[Incumbent, tuple[jax.Array, ...]]:
        found, value = _run(loss, optimizer, replace(problem, keys=keys_at(problem, restart)), restart)
        return update_best(best, found.image, value), (value, found.loss_first, found.zero_grad)

    best, (value, first, zero) = jax.lax.scan(again, no_incumbent(problem.image), jnp.arange(optimizer.restarts))
    return Perturbed(best.image, first[0], jnp.mean(zero, axis=0), best.value - value[0])


def _run(loss: Loss, optimizer: Optimizer, problem: Problem, restart: jax.Array) -> tuple[Perturbed, jax.Array]:
    """Return what one start leads to, and its loss [B]; where that is not used, compiled code does not compute it."""
    method, steps = optimizer.method, optimizer.steps
    state = method.init(problem, optimizer.start(problem, restart))

    def step(state: Any, t: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        return method.step(loss, problem, state, t, steps)

    state, (values, zero) = jax.lax.scan(step, state, jnp.arange(steps))
    best = method.best(loss, problem, state)
    zero_grad = jnp.mean(zero.astype(values.dtype), axis=0)
    return Perturbed(best.image, values[0], zero_grad, jnp.zeros_like(zero_grad)), best.value
