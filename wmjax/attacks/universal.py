"""Universal perturbations (arXiv 1610.08401): one delta for many frames, in place of one for each."""

import jax
import jax.numpy as jnp
from flax import struct

from wmjax.agents.base import Params, Victim
from wmjax.attacks.attack import maximise, start_radius
from wmjax.attacks.attack_loss import Draw, Frame, attacker_loss
from wmjax.attacks.fab import FAB
from wmjax.attacks.linf_ball import Ball, Problem, ball, per_pixel, project
from wmjax.attacks.threat import Attack, Threat
from wmjax.core.errors import InputError
from wmjax.core.jax_settings import fixed_settings


@struct.dataclass
class Universal:
    """A perturbation and how it was found."""

    delta: jax.Array  #: [H, W, C] within the budget: `threat(..., delta=...)` and an attack without steps apply it
    loss_first: jax.Array  #: [] mean attack objective over all frames before the first step
    loss_last: jax.Array  #: [] and with `delta`


def universal(attack: Attack, victim: Victim, params: Params, frames: Frame, drawn: Draw, threat: Threat) -> Universal:
    """Return one perturbation that raises the mean loss of many frames, in the ball of the first example's budget.

    `frames` and `drawn` have leaves [M, B, ...]: M batches, one after the other in memory, such as those of M agent
    steps of B episodes (`wmjax.rollout.replay`). `threat` is that of a batch, [B]. A pure function, to be jitted with
    the first two arguments static. Raises InputError for an optimizer that looks beyond the ball, and for `rounded`:
    what can be rounded is the frame that the perturbation is shown in.
    """
    if attack.rounded:
        raise InputError("a universal perturbation is not rounded; let the attack that applies it be")
    if isinstance(attack.optimizer.method, FAB):
        raise InputError("optimizer fab looks for one frame's boundary; a universal perturbation has none")

    with fixed_settings(precision_of=frames.image):
        return _universal(attack, victim, params, frames, drawn, threat)


def _universal(attack: Attack, victim: Victim, params: Params, frames: Frame, drawn: Draw, threat: Threat) -> Universal:
    def mean_loss(delta: jax.Array) -> jax.Array:
        """Return the mean over all frames of the loss with `delta` [1, H, W, C], [1]."""

        @jax.checkpoint  # else every batch's activations are kept for the gradient
        def of(batch: tuple[Frame, Draw]) -> jax.Array:
            frame, draws = batch
            bounds = ball(frame.image, threat.eps, threat.region)
            return attacker_loss(attack, victim, params, frame, draws, threat)(project(bounds, frame.image + delta))

        return jnp.mean(jax.lax.map(of, (frames, drawn)))[None]

    one = jax.tree.map(lambda leaf: leaf[:1], threat)
    first = jax.tree.map(lambda leaf: leaf[0, :1], drawn)
    radius = jnp.broadcast_to(per_pixel(one.eps) * one.region, first.start.shape)
    start = jnp.clip(one.delta + per_pixel(start_radius(attack, one)) * first.start, -radius, radius)
    problem = Problem(jnp.zeros_like(start), Ball(-radius, radius), one.eps, start, first.keys)
    found = maximise(mean_loss, attack.optimizer, problem)
    return Universal(found.image[0], mean_loss(start)[0], mean_loss(found.image)[0])
