"""Environments on the device: batches of dm_control episodes on MJX, seen through the renderer in JAX."""

from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wmjax.core.errors import InputError
from wmjax.core.jax_settings import fixed_settings
from wmjax.core.numbers import whole
from wmjax.envs import dmc
from wmjax.envs.base import EnvSpec, episode_seeds, physics_states
from wmjax.render.frame import frame
from wmjax.render.scene import Scene, poses, scene

__all__ = ["DeviceEnv", "DeviceState", "begin", "go_on", "look"]


@fixed_settings()
def begin(world: dmc.DmcEnv, params: dmc.Params, keys: jax.Array) -> dmc.EnvState:
    """Start B episodes, one a key [B]; the keys are consumed."""
    return jax.vmap(partial(world.reset, params))(keys)


@fixed_settings()
def look(scene: Scene, worlds: dmc.EnvState) -> jax.Array:
    """Return what the cameras of B worlds see, uint8 [B, H, W, 3]."""
    return jax.vmap(lambda world: frame(scene, poses(world.data, world.geometry)))(worlds)


@fixed_settings()
def go_on(world: dmc.DmcEnv, worlds: dmc.EnvState, action: jax.Array) -> dmc.EnvState:
    """Apply `action` [B, A], in [-1, 1], to B worlds for the action repeat."""
    return jax.vmap(world.step)(worlds, action)


@struct.dataclass
class DeviceState:
    """Where B episodes stand, and all that is needed to go on from here."""

    worlds: dmc.EnvState  #: [B, ...]
    image: jax.Array  #: [B, H, W, 3] uint8

    @property
    def reward(self) -> np.ndarray:
        """[B], float64: of the last agent step, summed over the action repeat; 0 after a reset and once diverged."""
        return np.asarray(self.worlds.reward, np.float64)

    @property
    def nan(self) -> np.ndarray:
        """[B], bool: the physics diverged, or an action was not finite; the episode is frozen."""
        return np.asarray(self.worlds.nan)


class DeviceEnv:
    """B episodes of one task as two compiled programs; sibling tasks share them.

    States are values: any of them can be stepped again. Frames match MuJoCo's up to a grey level or two and single
    pixels of outlines; resets are drawn from dm_control's distributions, but by JAX: a seed gives another episode than
    on the host.

    `world` (static), `params` and `scene` are what the pure functions of this module take.
    """

    @fixed_settings()
    def __init__(self, spec: EnvSpec, batch: int) -> None:
        """Load the task's model."""
        self.spec, self.batch = spec, whole("batch", batch, 1)
        self.world, self.params = dmc.load(spec.task)
        self.scene = scene(self.world.physics.model, size=spec.image_size, camera=spec.camera)

    @fixed_settings()
    def reset(self, seeds: Any) -> DeviceState:
        """Start an episode a seed: `seeds` [B], integers in [0, 2**32)."""
        return _reset(self.world, self.params, self.scene, self.keys(seeds))

    @fixed_settings()
    def keys(self, seeds: Any) -> jax.Array:
        """Return the keys [B] from which `begin` starts the episodes of `seeds` [B], integers in [0, 2**32)."""
        return jax.vmap(jax.random.key)(episode_seeds(seeds, self.batch).astype(np.uint32))

    @fixed_settings()
    def state_at(
        self,
        qpos: Any,
        qvel: Any,
        geom_size: Any = None,
        geom_pos: Any = None,
        site_size: Any = None,
        site_pos: Any = None,
    ) -> DeviceState:
        """Start episodes in given physics states, qpos [B, nq] and qvel [B, nv]; see `DmcEnv.state_at`."""
        geometry = dict(geom_size=geom_size, geom_pos=geom_pos, site_size=site_size, site_pos=site_pos)
        arrays = physics_states(self.batch, jax.dtypes.canonicalize_dtype(float), qpos=qpos, qvel=qvel, **geometry)
        return _place(self.world, self.params, self.scene, arrays)

    @fixed_settings()
    def step(self, state: DeviceState, action: Any) -> DeviceState:
        """Apply `action` [B, A], in [-1, 1], for the task's action repeat."""
        if np.shape(action) != (self.batch, self.spec.action_size):
            raise InputError(f"action must have shape {(self.batch, self.spec.action_size)}, not {np.shape(action)}")
        return _step(self.world, self.scene, state, jnp.asarray(action, float))

    def image(self, state: DeviceState) -> np.ndarray:
        """Return the frames [B, H, W, 3], uint8."""
        return np.asarray(state.image)

    def close(self) -> None:
        """Do nothing: there is nothing to end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@partial(jax.jit, static_argnums=0)
def _reset(world: dmc.DmcEnv, params: dmc.Params, scene: Scene, keys: jax.Array) -> DeviceState:
    worlds = begin(world, params, keys)
    return DeviceState(worlds, look(scene, worlds))


@partial(jax.jit, static_argnums=0)
def _place(world: dmc.DmcEnv, params: dmc.Params, scene: Scene, given: dict[str, jax.Array]) -> DeviceState:
    worlds = jax.vmap(lambda one: world.state_at(params, **one))(given)
    return DeviceState(worlds, look(scene, worlds))


@partial(jax.jit, static_argnums=0)
def _step(world: dmc.DmcEnv, scene: Scene, state: DeviceState, action: jax.Array) -> DeviceState:
    worlds = go_on(world, state.worlds, action)
    return DeviceState(worlds, look(scene, worlds))
