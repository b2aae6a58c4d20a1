"""The random starts that dm_control's domains share, as JAX functions of fixed shape."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from wmjax.envs.dmc import physics
from wmjax.envs.dmc.physics import Geometry, Motion, Physics

_ATTEMPTS = 1000


def joints(world: Physics, key: jax.Array) -> jax.Array:
    """Return a qpos [nq] with limited joints uniform in their range and hinges without limits uniform in [-pi, pi].

    Slides without limits stay where the model has them. The six domains have no other joints.
    """
    model = world.model
    slide, hinge = mujoco.mjtJoint.mjJNT_SLIDE, mujoco.mjtJoint.mjJNT_HINGE
    if not np.isin(model.jnt_type, (slide, hinge)).all():
        raise NotImplementedError("only slides and hinges")
    free = np.where((model.jnt_type == hinge)[:, None], [-np.pi, np.pi], model.qpos0[:, None])
    low, high = np.where((model.jnt_limited == 1)[:, None], model.jnt_range, free).T
    return jax.random.uniform(key, (model.nq,), minval=jnp.asarray(low, float), maxval=jnp.asarray(high, float))


def without_contact(
    world: Physics, geometry: Geometry, draw: Callable[[jax.Array], jax.Array], key: jax.Array
) -> jax.Array:
    """Return the first qpos [nq] that `draw` gives in which nothing touches.

    Gives up after 1000 draws, which dm_control answers with an error; the chance is below 1e-100 in all domains.
    """

    def touches(loop: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        attempt, _, qpos = loop
        motion = Motion(qpos, jnp.zeros(world.model.nv, qpos.dtype), jnp.zeros(world.model.nv, qpos.dtype))
        return (attempt < _ATTEMPTS) & physics.collides(world, geometry, motion)

    def again(loop: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        attempt, key, _ = loop
        key, now = jax.random.split(key)
        return attempt + 1, key, draw(now)

    key, now = jax.random.split(key)
    return jax.lax.while_loop(touches, again, (jnp.ones((), jnp.int32), key, draw(now)))[2]
