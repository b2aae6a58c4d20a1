"""One agent step under attack.

It is made of a few compiled parts. Those that decide the trajectory (`sense`, `predict`, `embed`, `respond`) do the
same work in every cell, attacked or not: a zero budget gives the clean trajectory bit for bit.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from wmjax.agents.base import Belief, Embedding, Internals, Params, Prediction, Victim
from wmjax.attacks.attack import Perturbed, perturb
from wmjax.attacks.attack_loss import Draw, Frame, attacker_loss, draw
from wmjax.attacks.defenses import Defense
from wmjax.attacks.linf_ball import select_examples
from wmjax.attacks.objectives import policy_gap, value_gap
from wmjax.attacks.threat import Attack, Threat
from wmjax.attacks.timing import strike
from wmjax.core.image import LEVELS
from wmjax.core.jax_settings import fixed_settings
from wmjax.rollout.diagnostics import judge, no_diagnostics

LONGEST = 1000
"""Most agent steps of an episode: fixed, so that episodes of all lengths share a program."""


@struct.dataclass
class Witness:
    """The last attacked frame of each episode, and the loss that was noted for it: enough to compute it again."""

    belief: Belief  #: of the agent that the attack is computed on, before the frame
    action: jax.Array  #: [B, A] taken before it
    image: jax.Array  #: [B, H, W, C] uint8, what the camera saw
    attacked: jax.Array  #: [B, H, W, C] in [0, 1]
    loss: jax.Array  #: [B] attack objective on the attacked image
    t: jax.Array  #: [B] int32, -1 as long as there is none


@struct.dataclass
class AgentState:
    """What the agent, and the attacker, carry from one agent step to the next."""

    belief: Belief
    action: jax.Array  #: [B, A] the action taken last; zero before the first
    twin: Belief  #: what it would believe had it seen every frame unattacked, and taken the same actions
    source: Belief | None  #: what the attack's source believes, who sees and does the same; None without one
    steps: jax.Array  #: [] int32, T, how many agent steps the episode has
    gaps: jax.Array  #: [B, LONGEST] what an online rule of timing weighed each frame so far by
    used: jax.Array  #: [B] int32 frames attacked so far
    witness: Witness


@struct.dataclass
class Step:
    """One agent step of a batch."""

    state: AgentState
    seen: jax.Array  #: [B, H, W, C] the image that the agent saw, in [0, 1]
    attacked: jax.Array  #: [B] bool
    nan: jax.Array  #: [B] bool, the policy was not finite, and the zero action taken instead
    diagnostics: dict[str, jax.Array]  #: [B] each, see MEANS; zero where the frame was not attacked


@fixed_settings()
def initial_state(victim: Victim, batch: int, steps: int | jax.Array, source: Victim | None = None) -> AgentState:
    """Return the state before the first image of an episode of `steps` (T) agent steps; `source` is the attack's."""
    belief, action = victim.initial(batch), jnp.zeros((batch, victim.action_size))
    spied = None if source is None else source.initial(batch)
    shape = (batch, victim.image_size, victim.image_size, 3)
    return AgentState(
        belief,
        action,
        twin=belief,
        source=spied,
        steps=jnp.asarray(steps, jnp.int32),
        gaps=jnp.zeros((batch, LONGEST)),
        used=jnp.zeros(batch, jnp.int32),
        witness=Witness(
            belief if spied is None else spied,
            action,
            image=jnp.zeros(shape, jnp.uint8),
            attacked=jnp.zeros(shape),
            loss=jnp.zeros(batch),
            t=jnp.full(batch, -1, jnp.int32),
        ),
    )


@fixed_settings()
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
    source: Params | None = None,
) -> Step:
    """Perturb the frame if `attacked`, show it to the agent, and let it act with the mode of its policy.

    Where the attack has a source, whose weights are `source`, the perturbation is computed on that agent alone: it sees
    the frames that the player sees, and believes that it acts as the player does.

    `image` is uint8 [B, H, W, C]. `keys` [B] drive the agent's latent sampling and `attack_keys` [B] the attacker; both
    are an episode's, and folded with the time `t`. `attacked` is one value for all of the batch: where it is traced, it
    chooses a branch of the program, and a frame that is left alone costs no attack. An online rule (`attack.gap`)
    leaves more alone, each example for itself; such a frame costs no attack where it spares the whole batch.
    """
    frame = frame_at(attack, victim, params, state.belief, state.action, image, keys, t, threat)
    unattacked = _predict(victim, params, state.twin, state.action)
    twin, *_ = respond(victim, params, unattacked, frame.embedding, frame.noise)
    belief, _, clean, _ = respond(victim, params, frame.prediction, frame.embedding, frame.noise)
    none = jnp.zeros_like(threat.eps)

    model, weights, aimed, response = victim, params, frame, (belief, clean)  # of the agent that is attacked through
    if attack.source is not None:
        assert state.source is not None
        model, weights = attack.source, source
        aimed = frame_at(attack, model, weights, state.source, state.action, image, keys, t, threat)
        belief, _, spied, _ = respond(model, weights, aimed.prediction, aimed.embedding, aimed.noise)
        response = belief, spied
    drawn = draw_at(model, attack_keys, t)
    struck, gaps = (threat.eps >= 0) & attacked, state.gaps
    if attack.gap != "none":
        struck, gaps = _strike(attack.gap, model, weights, *response, state, t, threat, struck)
        attacked = jnp.any(struck)
    perturbed = _either(
        attacked,
        lambda: _perturb(replace(attack, gap="none"), model, weights, aimed, drawn, threat),
        lambda: Perturbed(frame.image, none, none, none),
    )
    shown = _choose(struck, perturbed.image, frame.image)
    seen = _defend(attack.defense, shown, keys, t, threat.strength)
    embedding = _embed(victim, params, seen)
    belief, action, adv, nan = respond(victim, params, frame.prediction, embedding, frame.noise)
    after = None
    if attack.source is not None:
        after, *_ = respond(model, weights, aimed.prediction, _embed(model, weights, seen), aimed.noise)

    def noted() -> tuple[dict[str, jax.Array], Witness]:
        found = judge(
            attack.knowledge, model, weights, aimed, drawn, threat, perturbed, embedding,
            clean, adv, frame.prediction.deter, unattacked, struck,
        )  # fmt: skip
        now = jnp.broadcast_to(t, state.used.shape)
        before = state.belief if state.source is None else state.source
        witness = Witness(before, state.action, image, shown, found["loss_last"], now)
        return found, _choose(struck, witness, state.witness)

    diagnostics, witness = _either(attacked, noted, lambda: (no_diagnostics(len(none)), state.witness))
    used = state.used + struck.astype(jnp.int32)
    return Step(
        AgentState(belief, action, twin, after, state.steps, gaps, used, witness), seen, struck, nan, diagnostics
    )


@fixed_settings()
def loss_again(
    victim: Victim,
    attack: Attack,
    params: Params,
    witness: Witness,
    keys: jax.Array,
    attack_keys: jax.Array,
    threat: Threat,
) -> jax.Array:
    """Return the loss [B] of the witness, computed from what is stored alone; keys are those of the episodes.

    `victim` and `params` are those that the attack was computed on.
    """
    t = witness.t
    frame = frame_at(attack, victim, params, witness.belief, witness.action, witness.image, keys, t, threat)
    return _loss(attack.knowledge, victim, params, frame, draw_at(victim, attack_keys, t), threat, witness.attacked)


def frame_at(
    attack: Attack,
    victim: Victim,
    params: Params,
    belief: Belief,
    action: jax.Array,
    image: jax.Array,
    keys: jax.Array,
    t: jax.Array,
    threat: Threat,
) -> Frame:
    """Return what an attack on the `image`, uint8 [B, H, W, C], at time `t`, [] or [B], starts from."""
    noise, clean = _sense(victim, image, keys, t)
    prediction = _predict(victim, params, belief, action)
    shown = _defend(attack.defense, clean, keys, t, threat.strength)
    return Frame(clean, _embed(victim, params, shown), prediction, noise)


def _either(condition: bool | jax.Array, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """Take one of two branches: now where the condition is known, else when the program runs."""
    if isinstance(condition, jax.core.Tracer):
        return jax.lax.cond(condition, then, otherwise)
    return then() if condition else otherwise()


def _at(keys: jax.Array, t: jax.Array) -> jax.Array:
    """Return an episode's keys [B] at time `t`, [] or [B]."""
    return jax.vmap(jax.random.fold_in)(keys, jnp.broadcast_to(t, keys.shape))


@partial(jax.jit, static_argnums=0)
def _sense(victim: Victim, image: jax.Array, keys: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the agent's Gumbel noise [B, G, K] at time `t`, and the image in [0, 1]."""
    noise = jax.vmap(lambda key: jax.random.gumbel(key, victim.latent_shape))(_at(keys, t))
    return noise, jnp.take(LEVELS, image, mode="clip")


@partial(jax.jit, static_argnums=0)
def _defend(defense: Defense, image: jax.Array, keys: jax.Array, t: jax.Array, strength: jax.Array) -> jax.Array:
    """Return what the agent is shown of `image`; a random defense draws the same for a frame, attacked or not."""
    return defense.apply(image, strength, jax.vmap(lambda key: jax.random.fold_in(key, 1))(_at(keys, t)))


@partial(jax.jit, static_argnums=0)
def _predict(victim: Victim, params: Params, belief: Belief, action: jax.Array) -> Prediction:
    return victim.predict(params, belief, action)


@partial(jax.jit, static_argnums=0)
def _embed(victim: Victim, params: Params, image: jax.Array) -> Embedding:
    return victim.embed(params, image)


@partial(jax.jit, static_argnums=0)
def respond(
    victim: Victim, params: Params, prediction: Prediction, embedding: Embedding, noise: jax.Array
) -> tuple[Belief, jax.Array, Internals, jax.Array]:
    """Return the agent's belief, its action, its internals, and whether its policy was not finite."""
    belief, internals = victim.update(params, prediction, embedding, noise)
    action = internals.policy.mode()
    nan = ~jnp.all(jnp.isfinite(action), axis=-1)
    return belief, jnp.where(nan[:, None], 0.0, action), internals, nan


@partial(jax.jit, static_argnums=0)
def draw_at(victim: Victim, keys: jax.Array, t: jax.Array) -> Draw:
    """Return the attacker's draws at time `t`, [] or [B]."""
    return draw(victim, _at(keys, t))


@partial(jax.jit, static_argnums=(0, 1))
def _strike(
    kind: str,
    victim: Victim,
    params: Params,
    belief: Belief,
    clean: Internals,
    state: AgentState,
    t: jax.Array,
    threat: Threat,
    allowed: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Return which examples the online rule attacks, [B], and the gaps so far."""
    if kind == "policy":
        gap = policy_gap(clean.policy)
    else:
        gap = value_gap(clean.policy, lambda action: victim.action_value(params, belief, action))
    struck = strike(gap, state.gaps, state.used, t, state.steps, threat.threshold, threat.most)
    return struck & allowed, state.gaps.at[:, t].set(gap)


@partial(jax.jit, static_argnums=(0, 1))
def _loss(
    attack: Attack, victim: Victim, params: Params, frame: Frame, drawn: Draw, threat: Threat, image: jax.Array
) -> jax.Array:
    return attacker_loss(attack, victim, params, frame, drawn, threat)(image)


_perturb, _choose = jax.jit(perturb, static_argnums=(0, 1)), jax.jit(select_examples)
