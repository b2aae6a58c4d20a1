"""dm_control's cartpole: balance a pole on a cart that moves along a rail, or swing it up first."""

import jax
import jax.numpy as jnp
import numpy as np
from mujoco import mjx

from wmjax.envs.dmc.env import DmcEnv, Params
from wmjax.envs.dmc.physics import Geometry, Physics
from wmjax.envs.dmc.rewards import tolerance

TASKS: dict[str, Params] = {"balance": {"swing_up": np.bool_(False)}, "swingup": {"swing_up": np.bool_(True)}}


def _start(physics: Physics, params: Params, key: jax.Array) -> tuple[jax.Array, jax.Array, Geometry]:
    """Draw a pole that is nearly upright, or nearly hangs."""
    near, down, velocity = jax.random.split(key, 3)
    upright = jax.random.uniform(near, (2,), minval=jnp.array([-0.1, -0.034]), maxval=jnp.array([0.1, 0.034]))
    hanging = jnp.array([0.0, np.pi]) + 0.01 * jax.random.normal(down, (2,))
    qpos = jnp.where(params["swing_up"], hanging, upright)
    return qpos, 0.01 * jax.random.normal(velocity, (2,)), physics.geometry


def _reward(physics: Physics, geometry: Geometry, params: Params, data: mjx.Data) -> jax.Array:
    """Reward an upright pole on a centred cart, moved with small forces."""
    upright = (data.xmat[physics.model.body("pole_1").id, 2, 2] + 1) / 2
    centered = (1 + tolerance(data.qpos[0], margin=2)) / 2
    small_control = (4 + tolerance(data.ctrl[0], margin=1, value_at_margin=0, sigmoid="quadratic")) / 5
    small_velocity = (1 + tolerance(data.qvel[1], margin=5)) / 2
    return upright * small_control * small_velocity * centered


ENV = DmcEnv("cartpole", 1, _start, _reward)
