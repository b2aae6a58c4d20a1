"""dm_control's hopper: a planar one-legged body that is to stand."""

import jax
import jax.numpy as jnp
from mujoco import mjx

from wmjax.envs.dmc import initial_states
from wmjax.envs.dmc.env import DmcEnv, Params
from wmjax.envs.dmc.physics import Geometry, Physics
from wmjax.envs.dmc.rewards import inside, tolerance

TASKS: dict[str, Params] = {"stand": {}}

_STAND_HEIGHT = 0.6


def _start(physics: Physics, params: Params, key: jax.Array) -> tuple[jax.Array, jax.Array, Geometry]:
    """Draw all joints, with the torso at its height, whatever it penetrates."""
    return initial_states.joints(physics, key), jnp.zeros(physics.model.nv), physics.geometry


def _reward(physics: Physics, geometry: Geometry, params: Params, data: mjx.Data) -> jax.Array:
    """Reward a torso that is high above the foot, kept there with small forces."""
    torso, foot = (physics.model.body(name).id for name in ("torso", "foot"))
    standing = inside(data.xipos[torso, 2] - data.xipos[foot, 2], _STAND_HEIGHT, 2)
    small_control = tolerance(data.ctrl, margin=1, value_at_margin=0, sigmoid="quadratic").mean()
    return standing * (small_control + 4) / 5


ENV = DmcEnv("hopper", 4, _start, _reward)
