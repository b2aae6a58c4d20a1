"""The two loops around an agent step: over environments on the host, and as one program on the device."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wmjax.agents.base import Params, Victim
from wmjax.attacks.threat import Attack, Threat
from wmjax.core.errors import InputError
from wmjax.core.jax_settings import fixed_settings
from wmjax.envs import dmc
from wmjax.envs.device import DeviceEnv, begin, go_on, look
from wmjax.envs.host import HostEnv
from wmjax.render.scene import Scene
from wmjax.rollout.check import check
from wmjax.rollout.diagnostics import no_diagnostics
from wmjax.rollout.results import Rollout, Trace, outcome, traces
from wmjax.rollout.step import AgentState, agent_step, initial_state, loss_again

_STEPS = 50
"""Most agent steps in one call of a device's program: between calls a study tells its progress, and can be stopped."""

_FRAMES = 12_800
"""Most frames that a call returns, of 25 kB each: as the camera and as the agent saw it."""


@fixed_settings()
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
    source: Params | None = None,
    record: Sequence[int] = (),
    on_step: Callable[[int], None] = lambda t: None,
) -> Rollout:
    """Run one episode a seed in `env`, on the device that holds `params`, attacking where `mask` [T] is set.

    `source` are the weights of `attack.source`, where there is one: the agent that the perturbations are computed on.
    `keys` and `attack_keys` [B] are consumed. Episodes at the positions `record` come back frame by frame. `on_step` is
    called before every agent step, and may raise to stop. Raises InputError for arguments that do not fit together.
    """
    batch = len(seeds)
    check(victim, env, attack, source, threat, mask, batch, keys, attack_keys, record)
    params, place = _placed(params)
    source = place(source)
    state, totals = place((initial_state(victim, batch, len(mask), attack.source), no_diagnostics(batch)))
    keys, attack_keys, threat = place((keys, attack_keys, threat))
    kept, frames, rewards, nan = list(record), [], [], np.zeros(batch, bool)

    env_state = env.reset(seeds)
    for t, attacked in enumerate(mask):
        on_step(t)
        frame = env.image(env_state)
        image, now = place((frame, np.int32(t)))
        step = agent_step(
            victim, attack, params, state, image, keys, attack_keys, threat, now,
            attacked=bool(attacked), source=source,
        )  # fmt: skip
        state = step.state
        action = np.asarray(state.action)
        env_state = env.step(env_state, action)
        rewards.append(env_state.reward)
        nan |= np.asarray(step.nan) | env_state.nan
        totals = _accumulate(totals, step.diagnostics)
        if kept:
            seen = _grey_levels(step.seen)
            parts = (frame, seen, env_state.reward, action, step.attacked, step.diagnostics)
            frames.append(Trace(*jax.tree.map(lambda part: np.asarray(part)[kept], parts)))
    error = _loss_error(victim, attack, params, source, state, keys, attack_keys, threat)
    whole = traces(frames, kept, np.stack)
    return outcome(np.stack(rewards), nan, totals | {"loss_error": error}, state.used, whole)


@struct.dataclass
class Loop:
    """Where B episodes on a device stand."""

    worlds: dmc.EnvState  #: [B, ...]
    agent: AgentState
    totals: dict[str, jax.Array]  #: [B] each, the diagnostics so far
    t: jax.Array  #: [] int32, agent steps done


@struct.dataclass
class Past:
    """What happened in T agent steps of B episodes."""

    frame: jax.Array  #: [T, B, H, W, C] uint8, what the camera saw
    seen: jax.Array  #: [T, B, H, W, C] uint8, what the agent saw, rounded
    reward: jax.Array  #: [T, B]
    action: jax.Array  #: [T, B, A]
    attacked: jax.Array  #: [T, B] bool
    nan: jax.Array  #: [T, B] bool, the physics has diverged, or the policy was not finite at this step
    diagnostics: dict[str, jax.Array]  #: [T, B] each, of a frame; zero where it was not attacked


@fixed_settings()
def start(victim: Victim, worlds: dmc.EnvState, steps: int | jax.Array, source: Victim | None = None) -> Loop:
    """Return where B episodes of `steps` agent steps stand that start in `worlds` [B]; `source` is the attack's."""
    batch = len(worlds.t)
    return Loop(worlds, initial_state(victim, batch, steps, source), no_diagnostics(batch), jnp.int32(0))


@fixed_settings()
def scan(
    victim: Victim,
    attack: Attack,
    world: dmc.DmcEnv,
    params: Params,
    scene: Scene,
    loop: Loop,
    threat: Threat,
    mask: jax.Array,
    keys: jax.Array,
    attack_keys: jax.Array,
    source: Params | None = None,
) -> tuple[Loop, Past]:
    """Run an agent step for each entry of `mask` [T], attacking where it is set: physics, pixels, attack and agent.

    A pure function, to be jitted with the first three arguments static. `keys` and `attack_keys` [B] are an episode's,
    the same in every call. `source` are the weights of `attack.source`, where there is one.
    """

    def one(loop: Loop, attacked: jax.Array) -> tuple[Loop, Past]:
        image = look(scene, loop.worlds)
        step = agent_step(
            victim, attack, params, loop.agent, image, keys, attack_keys, threat, loop.t,
            attacked=attacked, source=source,
        )  # fmt: skip
        worlds = go_on(world, loop.worlds, step.state.action)
        seen, nan = _grey_levels(step.seen), worlds.nan | step.nan
        past = Past(image, seen, worlds.reward, step.state.action, step.attacked, nan, step.diagnostics)
        return Loop(worlds, step.state, _accumulate(loop.totals, step.diagnostics), loop.t + 1), past

    return jax.lax.scan(one, loop, mask)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _start(
    victim: Victim, source: Victim | None, world: dmc.DmcEnv, task: dmc.Params, keys: jax.Array, steps: jax.Array
) -> Loop:
    return start(victim, begin(world, task, keys), steps, source)


_scan = jax.jit(scan, static_argnums=(0, 1, 2), donate_argnums=5)


@fixed_settings()
def device(
    victim: Victim,
    params: Params,
    env: DeviceEnv,
    attack: Attack,
    threat: Threat,
    mask: np.ndarray,
    *,
    seeds: Sequence[int],
    keys: jax.Array,
    attack_keys: jax.Array,
    source: Params | None = None,
    record: Sequence[int] = (),
    on_step: Callable[[int], None] = lambda t: None,
) -> Rollout:
    """Run one episode a seed as `host` does, but wholly on the device that holds `params`.

    One compiled program serves all seeds, budgets, objectives, masks, weights and sibling tasks. It is called for some
    agent steps at a time; `on_step` is called before each call.
    """
    if not isinstance(env, DeviceEnv):
        raise InputError(f'env is a {type(env).__name__}; expected one of wmjax.envs.make(task, backend="device")')
    check(victim, env, attack, source, threat, mask, len(seeds), keys, attack_keys, record)
    params, place = _placed(params)
    source = place(source)
    scene, task = place((env.scene, dict(env.params)))
    world_keys, keys, attack_keys, threat = place((env.keys(seeds), keys, attack_keys, threat))
    kept, frames, rewards, nan = list(record), [], [], np.zeros(len(seeds), bool)

    loop = _start(victim, attack.source, env.world, task, world_keys, place(np.int32(len(mask))))
    length = call_length(len(mask), len(seeds))
    for t in range(0, len(mask), length):
        on_step(t)
        now = place(mask[t : t + length])
        loop, past = _scan(victim, attack, env.world, params, scene, loop, threat, now, keys, attack_keys, source)
        reward = np.asarray(past.reward, np.float64)
        rewards.append(reward)
        nan |= np.asarray(past.nan).any(axis=0)
        if kept:
            parts = (past.frame, past.seen, reward, past.action, past.attacked, past.diagnostics)
            frames.append(Trace(*jax.tree.map(lambda part: np.asarray(part)[:, kept], parts)))
    error = _loss_error(victim, attack, params, source, loop.agent, keys, attack_keys, threat)
    whole = traces(frames, kept, np.concatenate)
    return outcome(np.concatenate(rewards), nan, loop.totals | {"loss_error": error}, loop.agent.used, whole)


def call_length(steps: int, batch: int) -> int:
    """Return how many of an episode's agent steps a call makes: the same in each, so that one program serves."""
    most = min(_STEPS, max(1, _FRAMES // batch))
    return next(n for n in range(most, 0, -1) if steps % n == 0)


def _placed(params: Params) -> tuple[Params, Callable[[Any], Any]]:
    """Return the weights as arrays, and what puts others on their device."""
    params = jax.tree.map(jnp.asarray, params)
    (device,) = jax.tree.leaves(params)[0].devices()
    place = partial(jax.device_put, device=device)
    return place(params), place  # weights that nobody has placed yet would need another program


def _loss_error(
    victim: Victim,
    attack: Attack,
    params: Params,
    source: Params | None,
    state: AgentState,
    keys: jax.Array,
    attack_keys: jax.Array,
    threat: Threat,
) -> jax.Array:
    """Return by how much the loss of each last attacked frame, [B], is off when computed again: over 1 + its size."""
    loss = state.witness.loss
    if not np.any(state.used):
        return jnp.zeros_like(loss)
    model, weights = (victim, params) if attack.source is None else (attack.source, source)
    again = loss_again(model, attack, weights, state.witness, keys, attack_keys, threat)
    return jnp.abs(again - loss) / (1 + jnp.abs(loss))


@jax.jit
def _grey_levels(image: jax.Array) -> jax.Array:
    return jnp.round(image * 255).astype(jnp.uint8)


@jax.jit
def _accumulate(totals: dict[str, jax.Array], new: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {
        name: jnp.maximum(total, new[name]) if name == "max_delta" else total + new[name]
        for name, total in totals.items()
    }
