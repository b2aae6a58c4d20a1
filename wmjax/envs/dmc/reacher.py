"""dm_control's reacher: a two-link arm that is to touch a target with its finger."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from mujoco import mjx

from wmjax.envs.dmc import initial_states
from wmjax.envs.dmc.env import DmcEnv, Params
from wmjax.envs.dmc.physics import Geometry, Physics
from wmjax.envs.dmc.rewards import inside

TASKS: dict[str, Params] = {"easy": {"target_size": np.float32(0.05)}, "hard": {"target_size": np.float32(0.015)}}


def _start(physics: Physics, params: Params, key: jax.Array) -> tuple[jax.Array, jax.Array, Geometry]:
    """Draw the arm's pose, and the target's place in a ring around the arm's root."""
    pose, turn, distance = jax.random.split(key, 3)
    angle = jax.random.uniform(turn, maxval=2 * np.pi)
    radius = jax.random.uniform(distance, minval=0.05, maxval=0.2)
    place = radius * jnp.stack([jnp.sin(angle), jnp.cos(angle)])
    target, model = physics.model.geom("target").id, physics.geometry
    geometry = replace(
        model,
        geom_size=model.geom_size.at[target, 0].set(params["target_size"]),
        geom_pos=model.geom_pos.at[target, :2].set(place),
    )
    return initial_states.joints(physics, pose), jnp.zeros(physics.model.nv), geometry


def _reward(physics: Physics, geometry: Geometry, params: Params, data: mjx.Data) -> jax.Array:
    """Reward a finger that touches the target."""
    target, finger = (physics.model.geom(name).id for name in ("target", "finger"))
    distance = jnp.linalg.norm((data.geom_xpos[target] - data.geom_xpos[finger])[:2])
    return inside(distance, 0, geometry.geom_size[target, 0] + geometry.geom_size[finger, 0])


ENV = DmcEnv("reacher", 1, _start, _reward)
