"""The closed loop: one agent step under attack, and the driver that steps environments on the host around it.

An agent step is made of a few compiled parts. Those that decide the trajectory (`sense`, `predict`, `embed`, `respond`)
are the same executables in every cell of one batch size, attacked or not: a zero budget gives the clean trajectory bit
for bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wmjax.attacks.attack import Attack, Draw, Frame, Perturbed, Threat, attacker_noise, draw, perturb
from wmjax.attacks.objectives import drift, losses
from wmjax.core.distributions import OneHot
from wmjax.core.errors import InputError
from wmjax.envs.host import HostEnv
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

# The grey levels in [0, 1]. Compiled, a division by 255 becomes a product, and is off by a rounding error.
_LEVELS = np.arange(256, dtype=np.float32) / np.float32(255)


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
    diagnostics: dict[str, jax.Array] | None  #: [B] each, see MEANS; None where the frame was not attacked


def initial_state(victim: Victim, batch: int) -> AgentState:
    """Return the state before an episode's first image."""
    belief = victim.initial(batch)
    return AgentState(belief, jnp.zeros((batch, victim.action_size)), belief)


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
    attacked: bool,
) -> Step:
    """Perturb the frame if `attacked`, show it to the agent, and let it act with the mode of its policy.

    `image` is uint8 [B, H, W, C]. `keys` [B] drive the agent's latent sampling and `attack_keys` [B] the attacker; both
    are an episode's, and folded with the time `t`.
    """
    noise, image = _sense(victim, image, keys, t)
    prediction = _predict(victim, params, state.belief, state.action)
    unattacked = _predict(victim, params, state.twin, state.action)
    frame = Frame(image, _embed(victim, params, image), prediction, noise)
    belief, action, clean, nan = _respond(victim, params, prediction, frame.embedding, noise)
    twin, *_ = _respond(victim, params, unattacked, frame.embedding, noise)
    if not attacked:
        return Step(AgentState(belief, action, twin), image, nan, None)
    drawn = _draw(victim, attack_keys, t)
    perturbed = _perturb(attack, victim, params, frame, drawn, threat)
    embedding = _embed(victim, params, perturbed.image)
    belief, action, adv, nan = _respond(victim, params, prediction, embedding, noise)
    diagnostics = _judge(attack, victim, params, frame, drawn, threat, perturbed, embedding, clean, adv)
    diagnostics["drift_h"] = _distance(prediction.deter, unattacked.deter)
    return Step(AgentState(belief, action, twin), perturbed.image, nan, diagnostics)


@partial(jax.jit, static_argnums=0)
def _sense(victim: Victim, image: jax.Array, keys: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the agent's Gumbel noise [B, G, K] at time `t`, and the image in [0, 1]."""
    noise = jax.vmap(lambda key: jax.random.gumbel(jax.random.fold_in(key, t), victim.latent_shape))(keys)
    return noise, jnp.take(_LEVELS, image, mode="clip")


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
    clean_noise, adv_noise = attacker_noise(attack, frame.noise, drawn)
    _, aimed_from = victim.update(params, frame.prediction, frame.embedding, clean_noise)
    _, aimed_at = victim.update(params, frame.prediction, embedding, adv_noise)
    image = frame.image
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
        "loss_last": jnp.sum(threat.weights * losses(aimed_from, aimed_at), axis=-1),
        "zero_grad": perturbed.zero_grad,
        "saturated": jnp.mean((inside & edge).astype(jnp.float32), axis=(1, 2, 3)),
        "max_delta": jnp.max(jnp.abs(perturbed.image - image), axis=(1, 2, 3)),
    }


@dataclass
class Trace:
    """One episode frame by frame, for videos and inspection."""

    frames: np.ndarray  #: uint8 [T, H, W, C], what the camera saw
    seen: np.ndarray  #: uint8 [T, H, W, C], what the agent saw, rounded
    reward: np.ndarray  #: float64 [T]
    action: np.ndarray  #: float32 [T, A]


@dataclass
class Rollout:
    """The outcome of a batch of episodes."""

    returns: np.ndarray  #: float64 [B], NaN where `nan`
    nan: np.ndarray  #: bool [B], a non-finite action or physics state appeared
    diagnostics: dict[str, np.ndarray]  #: float32 [B] each: means over attacked frames, NaN without any
    traces: dict[int, Trace] = field(default_factory=dict)  #: by position in the batch


def host(
    victim: Victim,
    params: Params,
    env: HostEnv,
    attack: Attack,
    threat: Threat,
    mask: np.ndarray,
    *,
    seeds: Sequence[int],
    keys: jax.Array,
    attack_keys: jax.Array,
    record: Sequence[int] = (),
    on_step: Callable[[int], None] = lambda t: None,
) -> Rollout:
    """Run one episode a seed in `env`, on the device that holds `params`, attacking where `mask` [T] is set.

    `keys` and `attack_keys` [B] are consumed. Episodes at the positions `record` come back frame by frame. `on_step` is
    called before every agent step, and may raise to stop. Raises InputError for arguments that do not fit together.
    """
    batch = len(seeds)
    _check(threat, mask, batch, keys, attack_keys, record)
    params = jax.tree.map(jnp.asarray, params)
    (device,) = jax.tree.leaves(params)[0].devices()
    place = partial(jax.device_put, device=device)
    state, keys, attack_keys, threat = place((initial_state(victim, batch), keys, attack_keys, threat))
    totals: dict[str, jax.Array] = {}
    kept, frames = list(record), []
    returns, nan = np.zeros(batch), np.zeros(batch, bool)

    env_state = env.reset(seeds)
    for t, attacked in enumerate(mask):
        on_step(t)
        frame = env.image(env_state)
        image, now = place((frame, np.int32(t)))
        step = agent_step(victim, attack, params, state, image, keys, attack_keys, threat, now, attacked=bool(attacked))
        state = step.state
        action = np.asarray(state.action)
        env_state = env.step(env_state, action)
        returns += env_state.reward
        nan |= np.asarray(step.nan) | env_state.nan
        if step.diagnostics is not None:
            totals = _accumulate(totals, step.diagnostics) if totals else step.diagnostics
        if kept:
            seen = np.asarray(jnp.round(step.seen * 255).astype(jnp.uint8))
            frames.append([part[kept] for part in (frame, seen, env_state.reward, action)])

    attacks = int(np.sum(mask))
    diagnostics = {name: np.full(batch, np.nan, np.float32) for name in (*MEANS, "max_delta")}
    for name, total in totals.items():
        diagnostics[name] = np.asarray(total if name == "max_delta" else total / attacks, np.float32)
    return Rollout(
        returns=np.where(nan, np.nan, returns),
        nan=nan,
        diagnostics=diagnostics,
        traces={i: Trace(*(np.stack(parts)[:, n] for parts in zip(*frames, strict=True))) for n, i in enumerate(kept)},
    )


@jax.jit
def _accumulate(totals: dict[str, jax.Array], new: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {
        name: jnp.maximum(total, new[name]) if name == "max_delta" else total + new[name]
        for name, total in totals.items()
    }


def _check(
    threat: Threat, mask: np.ndarray, batch: int, keys: jax.Array, attack_keys: jax.Array, record: Sequence[int]
) -> None:
    shapes = {"keys": keys.shape, "attack_keys": attack_keys.shape, "threat.eps": threat.eps.shape}
    for name, shape in shapes.items():
        if shape != (batch,):
            raise InputError(f"{name} has shape {shape}; expected ({batch},), one for each of the {batch} seeds")
    if not isinstance(mask, np.ndarray) or mask.dtype != bool or mask.ndim != 1:
        raise InputError(f"mask is {mask!r:.80}; expected a bool array, one entry an agent step: wmjax.attacks.mask")
    if any(i not in range(batch) for i in record):
        raise InputError(f"record is {list(record)!r:.80}; positions in the batch are 0 to {batch - 1}")
