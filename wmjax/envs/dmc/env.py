"""An episode of a dm_control task as a pure function of arrays: one world, to be batched with `jax.vmap`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from mujoco import mjx

from wmjax.core.errors import InputError
from wmjax.envs.base import EnvSpec
from wmjax.envs.dmc import physics
from wmjax.envs.dmc.physics import Geometry, Motion, Physics

Params = Mapping[str, Any]
"""What tells a domain's tasks apart, by name: scalars, which programs take as arrays."""

_LIMIT = 1e10  # mjMAXVAL: above, C MuJoCo reports an unstable simulation


@struct.dataclass
class Data:
    """What observers of a world read. The names and meanings are MuJoCo's; all poses belong to this very qpos."""

    motion: Motion
    xpos: jax.Array  #: [nbody, 3]
    xmat: jax.Array  #: [nbody, 3, 3]
    subtree_com: jax.Array  #: [nbody, 3]
    geom_xpos: jax.Array  #: [ngeom, 3]
    geom_xmat: jax.Array  #: [ngeom, 3, 3]
    site_xpos: jax.Array  #: [nsite, 3]
    site_xmat: jax.Array  #: [nsite, 3, 3]
    cam_xpos: jax.Array  #: [ncam, 3]
    cam_xmat: jax.Array  #: [ncam, 3, 3]
    light_xpos: jax.Array  #: [nlight, 3]
    light_xdir: jax.Array  #: [nlight, 3]

    @property
    def qpos(self) -> jax.Array:
        """[nq]."""
        return self.motion.qpos

    @property
    def qvel(self) -> jax.Array:
        """[nv]."""
        return self.motion.qvel


@struct.dataclass
class EnvState:
    """Where an episode stands."""

    data: Data
    geometry: Geometry
    params: Params
    reward: jax.Array  #: [] of the last agent step, summed over the action repeat; 0 after a reset and once diverged
    t: jax.Array  #: [] int32, agent steps done
    nan: jax.Array  #: [] bool, the physics diverged, or an action was not finite: the world is frozen


@dataclass(frozen=True)
class DmcEnv:
    """A domain of dm_control: static, and the same for all its tasks, which differ in `params`.

    Every method is for one world and may be jitted with the environment static, and vmapped.
    """

    domain: str
    substeps: int
    """Physics steps in one of dm_control's environment steps."""
    start: Callable[[Physics, Params, jax.Array], tuple[jax.Array, jax.Array, Geometry]]
    """Draws (qpos, qvel, geometry) from a key."""
    reward: Callable[[Physics, Geometry, Params, mjx.Data], jax.Array]
    """Gives the reward of one environment step from where it ended, and from the controls in `data.ctrl`."""
    untouched: tuple[str, ...] = ()
    """Geoms that nothing reaches, left out of collisions: MJX pays for each pair that might touch, in every step."""

    @property
    def physics(self) -> Physics:
        """The domain's model."""
        return physics.load(self.domain, self.substeps, self.untouched)

    def reset(self, params: Params, key: jax.Array) -> EnvState:
        """Start an episode, drawn as dm_control draws it; `key` is consumed."""
        return self._begin(params, *self.start(self.physics, params, key))

    def state_at(
        self,
        params: Params,
        qpos: Any,
        qvel: Any,
        geom_size: Any = None,
        geom_pos: Any = None,
        site_size: Any = None,
        site_pos: Any = None,
    ) -> EnvState:
        """Start an episode in a given physics state, qpos [nq] and qvel [nv].

        The geometry, [ngeom, 3] or [nsite, 3], replaces that of the task's model file (reacher's target is a geom,
        finger's a site). Unlike `step`, this may be differentiated.
        """
        given = {"geom_size": geom_size, "geom_pos": geom_pos, "site_size": site_size, "site_pos": site_pos}
        geometry = self.physics.geometry
        shapes = {"qpos": (self.physics.model.nq,), "qvel": (self.physics.model.nv,)}
        shapes |= {name: getattr(geometry, name).shape for name in given}
        arrays = {"qpos": qpos, "qvel": qvel} | {name: value for name, value in given.items() if value is not None}
        arrays = {name: jnp.asarray(value, float) for name, value in arrays.items()}
        for name, value in arrays.items():
            if value.shape != shapes[name]:
                raise InputError(f"{name} of {self.domain} must have shape {shapes[name]}, not {value.shape}")
        qpos, qvel = arrays.pop("qpos"), arrays.pop("qvel")
        return self._begin(params, qpos, qvel, replace(geometry, **arrays))

    def step(self, state: EnvState, action: jax.Array) -> EnvState:
        """Apply `action` [A], in [-1, 1], for the action repeat of 2 environment steps.

        Raises NotImplementedError when it is differentiated: see `_step`.
        """
        if jnp.shape(action) != (self.physics.model.nu,):
            wanted = (self.physics.model.nu,)
            raise InputError(f"action of {self.domain} must have shape {wanted}, not {jnp.shape(action)}")
        return _step(self, state, jnp.asarray(action))

    def _begin(self, params: Params, qpos: jax.Array, qvel: jax.Array, geometry: Geometry) -> EnvState:
        motion = Motion(qpos, qvel, jnp.zeros_like(qvel))
        data = _seen(self.physics, motion, physics.observe(self.physics, geometry, motion))
        params = {name: jnp.asarray(value) for name, value in params.items()}
        reward = jnp.zeros((), qpos.dtype)
        return EnvState(data, geometry, params, reward, t=jnp.zeros((), jnp.int32), nan=jnp.zeros((), bool))


def _seen(world: Physics, motion: Motion, data: mjx.Data) -> Data:
    light_xpos, light_xdir = physics.lights(world, data)
    names = {field.name for field in fields(Data)} - {"motion", "light_xpos", "light_xdir"}
    poses = {name: getattr(data, name) for name in names}
    return Data(motion=motion, light_xpos=light_xpos, light_xdir=light_xdir, **poses)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _step(env: DmcEnv, state: EnvState, action: jax.Array) -> EnvState:
    world, geometry = env.physics, state.geometry

    def environment_step(data: Data, _: None) -> tuple[Data, jax.Array]:
        motion = physics.advance(world, geometry, data.motion, action)
        seen = physics.observe(world, geometry, motion)
        reward = env.reward(world, geometry, state.params, seen.replace(ctrl=action))
        return _seen(world, motion, seen), reward

    data, rewards = jax.lax.scan(environment_step, state.data, length=EnvSpec.action_repeat)
    reward = rewards.sum()
    values = jnp.concatenate([data.qpos, data.qvel, data.motion.qacc_warmstart, reward[None]])
    sound = jnp.all(jnp.abs(values) < _LIMIT) & jnp.all(jnp.isfinite(action))  # false for NaN too
    nan = state.nan | ~sound
    data = jax.tree.map(lambda old, new: jnp.where(nan, old, new), state.data, data)
    return replace(state, data=data, reward=jnp.where(nan, 0.0, reward), t=state.t + 1, nan=nan)


@_step.defjvp
def _step_has_no_gradient(env: DmcEnv, primals: Any, tangents: Any) -> Any:
    raise NotImplementedError(
        f"the physics of {env.domain} is not differentiated: it jumps at contacts, and its solver, which stops when "
        "near enough, has no gradient. An attack's gradient ends at the observation: put the state and the action "
        "through jax.lax.stop_gradient before `step`."
    )
