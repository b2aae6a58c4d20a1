"""dm_control's ball in cup: swing a ball on a string into the cup that it hangs from."""

import jax
import jax.numpy as jnp
from mujoco import mjx

from wmjax.envs.dmc import initial_states
from wmjax.envs.dmc.env import DmcEnv, Params
from wmjax.envs.dmc.physics import Geometry, Physics

TASKS: dict[str, Params] = {"catch": {}}


def _start(physics: Physics, params: Params, key: jax.Array) -> tuple[jax.Array, jax.Array, Geometry]:
    """Draw a place for the ball where it does not touch the cup."""

    def draw(key: jax.Array) -> jax.Array:
        ball = jax.random.uniform(key, (2,), minval=jnp.array([-0.2, 0.2]), maxval=jnp.array([0.2, 0.5]))
        return jnp.concatenate([jnp.zeros(2), ball])

    qpos = initial_states.without_contact(physics, physics.geometry, draw, key)
    return qpos, jnp.zeros(physics.model.nv), physics.geometry


def _reward(physics: Physics, geometry: Geometry, params: Params, data: mjx.Data) -> jax.Array:
    """Reward a ball that is entirely inside the cup's target box."""
    target, ball = physics.model.site("target").id, physics.model.body("ball").id
    distance = jnp.abs(data.site_xpos[target] - data.xpos[ball])
    room = geometry.site_size[target] - geometry.geom_size[physics.model.geom("ball").id, 0]
    return jnp.all((distance < room)[jnp.array([0, 2])]).astype(distance.dtype)


ENV = DmcEnv("ball_in_cup", 10, _start, _reward)
