"""Returns of whole episodes that nobody attacks: an agent's, and those of random actions."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from wmjax import rollout
from wmjax.agents.base import Params, Victim
from wmjax.attacks.regions import region
from wmjax.attacks.threat import Attack, threat
from wmjax.core.jax_settings import fixed_settings
from wmjax.envs import dmc, make
from wmjax.envs.device import DeviceEnv, begin, go_on
from wmjax.rollout.keys import episode_keys

_UNNAMED, _RANDOM = "", "random actions"  # no study has agents of these names, and their random numbers


@fixed_settings()
def clean_returns(
    victim: Victim,
    params: Params,
    task: str,
    backend: str,
    seeds: Sequence[int],
    workers: int = 1,
    *,
    name: str = _UNNAMED,
    steps: int | None = None,
) -> np.ndarray:
    """Return the returns [S] float64 of an agent's clean episodes, one a seed; NaN where one broke.

    `backend` is "device" or "host", there with so many `workers`. For the `name` of a study's agent they are the
    study's clean episodes. An episode has the task's agent steps, or `steps`. On the device other weights of the same
    sizes, and as many other seeds, need no new program. Raises InputError for an unknown task or backend.
    """
    batch = len(seeds)
    drive: Callable[..., rollout.Rollout] = rollout.device if backend == "device" else rollout.host
    keys = episode_keys([(name, task, int(seed)) for seed in seeds])
    with _on_device(task, batch) if backend == "device" else make(task, backend, batch, workers) as env:
        return drive(
            victim,
            params,
            env,
            Attack(),  # the least to compile; a study's clean episodes share the program
            threat(["clean"] * batch, [0.0] * batch, region=region("all", victim.image_size)),
            np.zeros(env.spec.episode_steps if steps is None else steps, bool),
            seeds=seeds,
            keys=keys,
            attack_keys=keys,  # nobody draws from them
        ).returns


@fixed_settings()
def random_returns(task: str, seeds: Sequence[int], *, steps: int | None = None) -> np.ndarray:
    """Return the returns [S] float64 of actions that are uniform in [-1, 1], drawn anew every agent step.

    The episodes are those of the device and start as an agent's of the same seeds. Raises InputError for an unknown
    task.
    """
    env = _on_device(task, len(seeds))
    keys = episode_keys([(_RANDOM, task, int(seed)) for seed in seeds])
    length = env.spec.episode_steps if steps is None else steps
    reward, nan = _wander(env.world, length, dict(env.params), env.keys(seeds), keys)
    return np.where(nan, np.nan, np.asarray(reward, np.float64).sum(axis=0))


@lru_cache(maxsize=4)
def _on_device(task: str, batch: int) -> DeviceEnv:
    """Return an environment; it holds no state, takes a second to make, and a training run wants it again and again."""
    return make(task, "device", batch)


@partial(jax.jit, static_argnums=(0, 1))
def _wander(
    world: dmc.DmcEnv, steps: int, task: dmc.Params, world_keys: jax.Array, keys: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the rewards [T, B] of T = `steps` random actions, and which episodes [B] broke; keys are consumed."""

    def one(worlds: dmc.EnvState, t: jax.Array) -> tuple[dmc.EnvState, jax.Array]:
        draw = lambda key: jax.random.uniform(  # noqa: E731
            jax.random.fold_in(key, t), (world.physics.model.nu,), minval=-1.0, maxval=1.0
        )
        worlds = go_on(world, worlds, jax.vmap(draw)(keys))
        return worlds, worlds.reward

    worlds, reward = jax.lax.scan(one, begin(world, task, world_keys), jnp.arange(steps))
    return reward, worlds.nan
