"""dm_control's finger: turn a hinged body until its tip lies in a target."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from mujoco import mjx

from wmjax.envs.dmc import initial_states
from wmjax.envs.dmc.env import DmcEnv, Params
from wmjax.envs.dmc.physics import Geometry, Physics
from wmjax.envs.dmc.rewards import inside

TASKS: dict[str, Params] = {"turn_easy": {"target_size": np.float32(0.07)}}


def _start(physics: Physics, params: Params, key: jax.Array) -> tuple[jax.Array, jax.Array, Geometry]:
    """Draw the target's place on the circle of the body's tip, and joints in which nothing touches."""
    turn, pose = jax.random.split(key)
    angle = jax.random.uniform(turn, minval=-np.pi, maxval=np.pi)
    names, model = physics.model, physics.geometry
    target = names.site("target").id
    hinge = names.body("spinner").pos  # the joint is at the body's origin
    radius = model.geom_size[names.geom("cap1").id].sum()
    x, z = hinge[0] + radius * jnp.sin(angle), hinge[2] + radius * jnp.cos(angle)
    geometry = replace(
        model,
        site_size=model.site_size.at[target, 0].set(params["target_size"]),
        site_pos=model.site_pos.at[target, 0].set(x).at[target, 2].set(z),
    )
    qpos = initial_states.without_contact(physics, geometry, lambda key: initial_states.joints(physics, key), pose)
    return qpos, jnp.zeros(names.nv), geometry


def _reward(physics: Physics, geometry: Geometry, params: Params, data: mjx.Data) -> jax.Array:
    """Reward a tip that lies in the target."""
    target, tip = (physics.model.site(name).id for name in ("target", "tip"))
    apart = (data.site_xpos[target] - data.site_xpos[tip])[jnp.array([0, 2])]
    return inside(jnp.linalg.norm(apart), 0, geometry.site_size[target, 0])


# The finger ends 3 cm above the ground, and its tip stays 11 cm from its root. All moves in one plane, where the hinge
# is a disc inside the body's two capsules: to touch it, the finger would have to be 4 cm deep in them.
ENV = DmcEnv("finger", 2, _start, _reward, untouched=("ground", "proximal_decoration", "spinner_decoration"))
