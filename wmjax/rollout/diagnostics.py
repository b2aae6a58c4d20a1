"""What is measured on every attacked frame: how the attack went, and what it did to the agent."""

from functools import partial

import jax
import jax.numpy as jnp

from wmjax.agents.base import Embedding, Internals, Params, Prediction, Victim
from wmjax.attacks.attack import Perturbed
from wmjax.attacks.attack_loss import Draw, Frame, attacker_aim, attacker_loss
from wmjax.attacks.objectives import drift
from wmjax.attacks.threat import Attack, Threat
from wmjax.core.distributions import OneHot

FLIP = 0.1
"""L1 change of an action, whose components lie in [-1, 1], from which on it counts as another one (**our choice**)."""

MEANS = (
    "action_change",
    "flip",
    "policy_kl",
    "entropy_clean",
    "entropy_adv",
    "value_clean",
    "value_adv",
    "drift_z",
    "drift_h",
    "post_prior_kl",
    "loss_first",
    "loss_last",
    "zero_grad",
    "restart_gap",
    "saturated",
)
"""Diagnostics of an attacked frame that an episode averages; `max_delta` is their only maximum. See study/schema.py."""


_ROUNDING = 1e-6
"""Excess over a budget that is none: grey levels k / 255 are not exact in float32, nor are their differences."""


def no_diagnostics(batch: int) -> dict[str, jax.Array]:
    """Return the diagnostics [B] of frames that were not attacked."""
    return dict.fromkeys((*MEANS, "max_delta"), jnp.zeros(batch))


@partial(jax.jit, static_argnums=(0, 1))
def judge(
    attack: Attack,
    model: Victim,
    params: Params,
    frame: Frame,
    drawn: Draw,
    threat: Threat,
    perturbed: Perturbed,
    embedding: Embedding,
    clean: Internals,
    adv: Internals,
    deter: jax.Array,
    unattacked: Prediction,
    struck: jax.Array,
) -> dict[str, jax.Array]:
    """Return the diagnostics [B] of a frame, zero where it was not `struck` [B].

    `model`, `params`, `frame` and `drawn` are what the attack was computed on. The rest is the agent's own: its two
    responses, `clean` to the frame as it was and `adv` to what it saw, `embedding`; its recurrent state `deter` [B, D];
    and the prediction of its twin, `unattacked`.
    """
    image = frame.image
    if attack.defense.name == "none" and attack.source is None:
        loss_last = attacker_aim(attack, model, params, frame, drawn, threat)(embedding)
    else:  # what the attacker takes the agent to see, or to be, is not what it is
        loss_last = attacker_loss(attack, model, params, frame, drawn, threat)(perturbed.image)
    drift_z, _ = drift(clean, adv)
    inside = (image > 0) & (image < 1)
    edge = (perturbed.image <= 0) | (perturbed.image >= 1)
    posterior, prior = OneHot.unimix(adv.post_logits), OneHot.unimix(adv.prior_logits)
    change = jnp.sum(jnp.abs(adv.policy.mode() - clean.policy.mode()), axis=-1)
    found = {
        "action_change": change,
        "flip": (change > FLIP).astype(jnp.float32),
        "policy_kl": clean.policy.kl(adv.policy),
        "entropy_clean": clean.policy.entropy(),
        "entropy_adv": adv.policy.entropy(),
        "value_clean": clean.value,
        "value_adv": adv.value,
        "drift_z": drift_z,
        "drift_h": jnp.sum((deter - unattacked.deter) ** 2, axis=-1),
        "post_prior_kl": jnp.sum(posterior.kl(prior), axis=-1),
        "loss_first": perturbed.loss_first,
        "loss_last": loss_last,
        "zero_grad": perturbed.zero_grad,
        "restart_gap": perturbed.restart_gap,
        "saturated": jnp.mean((inside & edge).astype(jnp.float32), axis=(1, 2, 3)),
        "max_delta": _within(jnp.max(jnp.abs(perturbed.image - image), axis=(1, 2, 3)), threat.eps),
    }
    return {name: jnp.where(struck, value, 0.0) for name, value in found.items()}


def _within(size: jax.Array, eps: jax.Array) -> jax.Array:
    """Return the sizes [B] of perturbations, without an excess over their budgets `eps` [B] that is rounding alone."""
    return jnp.where(size > eps + _ROUNDING, size, jnp.minimum(size, eps))
