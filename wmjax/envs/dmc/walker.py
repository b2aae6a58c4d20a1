"""dm_control's walker: a planar biped that is to stand, walk or run."""

import jax
import jax.numpy as jnp
import numpy as np
from mujoco import mjx

from wmjax.envs.dmc import initial_states
from wmjax.envs.dmc.env import DmcEnv, Params
from wmjax.envs.dmc.physics import Geometry, Physics
from wmjax.envs.dmc.rewards import tolerance

TASKS: dict[str, Params] = {
    "stand": {"move_speed": np.float32(0)},
    "walk": {"move_speed": np.float32(1)},
    "run": {"move_speed": np.float32(8)},
}

_STAND_HEIGHT = 1.2


def _start(physics: Physics, params: Params, key: jax.Array) -> tuple[jax.Array, jax.Array, Geometry]:
    """Draw all joints, with the torso at its height, whatever it penetrates."""
    return initial_states.joints(physics, key), jnp.zeros(physics.model.nv), physics.geometry


def _reward(physics: Physics, geometry: Geometry, params: Params, data: mjx.Data) -> jax.Array:
    """Reward a high and upright torso and, unless the speed that is wanted is 0, the body's speed."""
    torso = physics.model.body("torso").id
    standing = tolerance(data.xpos[torso, 2], _STAND_HEIGHT, np.inf, margin=_STAND_HEIGHT / 2)
    upright = (1 + data.xmat[torso, 2, 2]) / 2
    stand = (3 * standing + upright) / 4
    wanted = params["move_speed"]
    speed = data._impl.subtree_linvel[torso, 0]
    margin = jnp.where(wanted > 0, wanted, 1.0) / 2
    moving = tolerance(speed, wanted, np.inf, margin=margin, value_at_margin=0.5, sigmoid="linear")
    return jnp.where(wanted == 0, stand, stand * (5 * moving + 1) / 6)


ENV = DmcEnv("walker", 10, _start, _reward)
