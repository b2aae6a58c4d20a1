"""One agent step under attack.

It is made of a few compiled parts. Those that decide the trajectory (`sense`, `predict`, `embed`, `respond`) do the
same work in every cell, attacked or not: a zero budget gives the clean trajectory bit for bit.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from wmjax.attacks.attack import Attack, Draw, Frame, Perturbed, Threat, attacker_aim, attacker_loss, draw, perturb
from wmjax.attacks.defenses import Defense
from wmjax.attacks.objectives import drift
from wmjax.core.distributions import OneHot
from wmjax.core.grey import LEVELS
from wmjax.victims.base import Belief, Embedding, Internals, Params, Prediction, Victim

MEANS = (
    "action_change",
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
    "saturated",
)
"""Diagnostics of an attacked frame that an episode averages; `max_delta` is their only maximum. See grid/rows.py."""


@struct.dataclass
class AgentState:
    """What the agent carries from one agent step to the next."""

    belief: Belief
    action: jax.Array  #: [B, A] the action taken last; zero before the first
    twin: Belief  #: what it would believe had it seen every frame unattacked, and taken the same actions


@struct.dataclass
class Step:
    """One agent step of a batch."""

    state: AgentState
    seen: jax.Array  #: [B, H, W, C] the image that the agent saw, in [0, 1]
    nan: jax.Array  #: [B] the policy was not finite, and the zero action taken instead
    diagnostics: dict[str, jax.Array]  #: [B] each, see MEANS; zero where the frame was not attacked


def initial_state(victim: Victim, batch: int) -> AgentState:
    """Return the state before an episode's first image."""
    belief = victim.initial(batch)
    return AgentState(belief, jnp.zeros((batch, victim.action_size)), belief)


def no_diagnostics(batch: int) -> dict[str, jax.Array]:
    """Return the diagnostics [B] of frames that were not attacked."""
    return dict.fromkeys((*MEANS, "max_delta"), jnp.zeros(batch))


def agent_step(
    victim: Victim,
    attack: Attack,
    params: Params,
    state: AgentState,
    image: jax.Array,
    keys: jax.Array,
    attack_keys: jax.Array,
    threat: Threat,
    t: jax.Array,
    *,
    attacked: bool | jax.Array,
) -> Step:
    """Perturb the frame if `attacked`, show it to the agent, and let it act with the mode of its policy.

    `image` is uint8 [B, H, W, C]. `keys` [B] drive the agent's latent sampling and `attack_keys` [B] the attacker; both
    are an episode's, and folded with the time `t`. `attacked` is one value for all of the batch: where it is traced, it
    chooses a branch of the program, and a frame that is left alone costs no attack.
    """
    noise, image = _sense(victim, image, keys, t)
    prediction = _predict(victim, params, state.belief, state.action)
    unattacked = _predict(victim, params, state.twin, state.action)
    shown = _defend(attack.defense, image, keys, t, threat.strength)
    frame = Frame(image, _embed(victim, params, shown), prediction, noise)
    twin, *_ = _respond(victim, params, unattacked, frame.embedding, noise)
    drawn = _draw(victim, attack_keys, t)
    none = jnp.zeros_like(threat.eps)
    perturbed = _either(
        attacked,
        lambda: _perturb(attack, victim, params, frame, drawn, threat),
        lambda: Perturbed(image, none, none),
    )
    seen = _defend(attack.defense, perturbed.image, keys, t, threat.strength)
    embedding = _embed(victim, params, seen)
    belief, action, adv, nan = _respond(victim, params, prediction, embedding, noise)
    _, _, clean, _ = _respond(victim, params, prediction, frame.embedding, noise)

    def judged() -> dict[str, jax.Array]:
        found = _judge(attack, victim, params, frame, drawn, threat, perturbed, embedding, clean, adv)
        return found | {"drift_h": _distance(prediction.deter, unattacked.deter)}

    diagnostics = _either(attacked, judged, lambda: no_diagnostics(len(none)))
    return Step(AgentState(belief, action, twin), seen, nan, diagnostics)


def _either(condition: bool | jax.Array, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """Take one of two branches: now where the condition is known, else when the program runs."""
    if isinstance(condition, bool):
        return then() if condition else otherwise()
    return jax.lax.cond(condition, then, otherwise)


@partial(jax.jit, static_argnums=0)
def _sense(victim: Victim, image: jax.Array, keys: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the agent's Gumbel noise [B, G, K] at time `t`, and the image in [0, 1]."""
    noise = jax.vmap(lambda key: jax.random.gumbel(jax.random.fold_in(key, t), victim.latent_shape))(keys)
    return noise, jnp.take(LEVELS, image, mode="clip")


@partial(jax.jit, static_argnums=0)
def _defend(defense: Defense, image: jax.Array, keys: jax.Array, t: jax.Array, strength: jax.Array) -> jax.Array:
    """Return what the agent is shown of `image`; a random defense draws the same for a frame, attacked or not."""
    at = lambda key: jax.random.fold_in(jax.random.fold_in(key, t), 1)  # noqa: E731
    return defense.apply(image, strength, jax.vmap(at)(keys))


@partial(jax.jit, static_argnums=0)
def _predict(victim: Victim, params: Params, belief: Belief, action: jax.Array) -> Prediction:
    return victim.predict(params, belief, action)


@partial(jax.jit, static_argnums=0)
def _embed(victim: Victim, params: Params, image: jax.Array) -> Embedding:
    return victim.embed(params, image)


@partial(jax.jit, static_argnums=0)
def _respond(
    victim: Victim, params: Params, prediction: Prediction, embedding: Embedding, noise: jax.Array
) -> tuple[Belief, jax.Array, Internals, jax.Array]:
    """Return the agent's belief, its action, its internals, and whether its policy was not finite."""
    belief, internals = victim.update(params, prediction, embedding, noise)
    action = internals.policy.mode()
    nan = ~jnp.all(jnp.isfinite(action), axis=-1)
    return belief, jnp.where(nan[:, None], 0.0, action), internals, nan


@partial(jax.jit, static_argnums=0)
def _draw(victim: Victim, keys: jax.Array, t: jax.Array) -> Draw:
    return draw(victim, jax.vmap(lambda key: jax.random.fold_in(key, t))(keys))


_perturb = jax.jit(perturb, static_argnums=(0, 1))


@jax.jit
def _distance(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.sum((a - b) ** 2, axis=-1)


@partial(jax.jit, static_argnums=(0, 1))
def _judge(
    attack: Attack,
    victim: Victim,
    params: Params,
    frame: Frame,
    drawn: Draw,
    threat: Threat,
    perturbed: Perturbed,
    embedding: Embedding,
    clean: Internals,
    adv: Internals,
) -> dict[str, jax.Array]:
    """Return the diagnostics [B] of an attacked frame: `clean` and `adv` are the agent's own two responses to it."""
    image = frame.image
    if attack.defense.name == "none":
        loss_last = attacker_aim(attack, victim, params, frame, drawn, threat)(embedding)
    else:  # what the attacker takes the agent to see is not what it sees
        loss_last = attacker_loss(attack, victim, params, frame, drawn, threat)(perturbed.image)
    drift_z, _ = drift(clean, adv)
    inside = (image > 0) & (image < 1)
    edge = (perturbed.image <= 0) | (perturbed.image >= 1)
    posterior, prior = OneHot.unimix(adv.post_logits), OneHot.unimix(adv.prior_logits)
    return {
        "action_change": jnp.sum(jnp.abs(adv.policy.mode() - clean.policy.mode()), axis=-1),
        "policy_kl": clean.policy.kl(adv.policy),
        "entropy_clean": clean.policy.entropy(),
        "entropy_adv": adv.policy.entropy(),
        "value_clean": clean.value,
        "value_adv": adv.value,
        "drift_z": drift_z,
        "post_prior_kl": jnp.sum(posterior.kl(prior), axis=-1),
        "loss_first": perturbed.loss_first,
        "loss_last": loss_last,
        "zero_grad": perturbed.zero_grad,
        "saturated": jnp.mean((inside & edge).astype(jnp.float32), axis=(1, 2, 3)),
        "max_delta": jnp.max(jnp.abs(perturbed.image - image), axis=(1, 2, 3)),
    }
