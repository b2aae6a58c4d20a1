"""MuJoCo's physics in JAX: dm_control's own models in MJX, stepped, observed and collided as dm_control does in C."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from pathlib import Path

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from flax import struct
from mujoco import mjx

from wmjax.core.files import plain_name
from wmjax.envs.dmc import mjx_patches


@struct.dataclass
class Geometry:
    """Shapes and places that may differ between the worlds of a batch: reacher's target is a geom, finger's a site."""

    geom_size: jax.Array  #: [ngeom, 3]
    geom_pos: jax.Array  #: [ngeom, 3] in the frame of its body
    site_size: jax.Array  #: [nsite, 3] seen and rewarded, but not felt
    site_pos: jax.Array  #: [nsite, 3] in the frame of its body


@struct.dataclass
class Motion:
    """What the integrator carries from one physics step to the next."""

    qpos: jax.Array  #: [nq]
    qvel: jax.Array  #: [nv]
    qacc_warmstart: jax.Array  #: [nv] where the constraint solver starts


@dataclass(frozen=True, eq=False)
class Physics:
    """One domain's model, as MuJoCo's and as constants of JAX programs."""

    model: mujoco.MjModel
    mjx_model: mjx.Model
    mjx_data: mjx.Data
    geometry: Geometry
    """The model file's."""
    substeps: int
    """Physics steps in one environment step."""


@cache
def load(domain: str, substeps: int, untouched: tuple[str, ...]) -> Physics:
    """Return the physics of a dm_control domain, with `substeps` physics steps in an environment step.

    The geoms in `untouched` are left out of collisions.
    """
    folder = resources.files("dm_control") / "suite"  # read as a file: to import the suite would look for a display
    with plain_name(Path(str(folder))) as place:
        model = mujoco.MjModel.from_xml_path(f"{place}/{domain}.xml")
    model.opt.enableflags = 0  # cartpole computes its energy, which MJX can not and nobody reads
    for name in untouched:
        model.geom(name).contype = model.geom(name).conaffinity = 0
    with jax.ensure_compile_time_eval():  # constants, even if a program is being traced; and bound to no device
        mjx_model = mjx.put_model(model)
        mjx_data = mjx.make_data(mjx_model)
        mjx_model, mjx_data = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), (mjx_model, mjx_data))
        geometry = Geometry(
            **{field.name: jnp.asarray(getattr(model, field.name), float) for field in fields(Geometry)}
        )
    return Physics(model, mjx_model, mjx_data, geometry, substeps)


@contextmanager
def _mjx_rules() -> Iterator[None]:
    """Trace MJX, which mixes dtypes and ranks, with that allowed and with this project's replacements.

    Its products are of whole float32: by default accelerators shorten the factors.
    """
    rules = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
    with rules[0], rules[1], jax.default_matmul_precision("highest"), mjx_patches.applied():
        yield


def _model_and_data(physics: Physics, geometry: Geometry, motion: Motion) -> tuple[mjx.Model, mjx.Data]:
    model = physics.mjx_model.replace(
        geom_size=geometry.geom_size, geom_pos=geometry.geom_pos, site_pos=geometry.site_pos
    )
    data = physics.mjx_data.replace(qpos=motion.qpos, qvel=motion.qvel, qacc_warmstart=motion.qacc_warmstart)
    return model, data


def advance(physics: Physics, geometry: Geometry, motion: Motion, ctrl: jax.Array) -> Motion:
    """Return the motion one environment step later, under the controls `ctrl` [A]."""

    def substep(_: int, motion: Motion) -> Motion:
        model, data = _model_and_data(physics, geometry, motion)
        data = mjx.step(model, data.replace(ctrl=ctrl))
        return Motion(data.qpos, data.qvel, data.qacc_warmstart)

    with _mjx_rules():
        return jax.lax.fori_loop(0, physics.substeps, substep, motion)


def observe(physics: Physics, geometry: Geometry, motion: Motion) -> mjx.Data:
    """Return poses, cameras and body velocities at this very motion: after MJX's step they lag by one physics step."""
    with _mjx_rules():
        model, data = _model_and_data(physics, geometry, motion)
        for update in (mjx.kinematics, mjx.com_pos, mjx.camlight, mjx.com_vel, mjx.subtree_vel):
            data = update(model, data)
    return data


def collides(physics: Physics, geometry: Geometry, motion: Motion) -> jax.Array:
    """Return whether any contact is active, [] bool."""
    with _mjx_rules():
        model, data = _model_and_data(physics, geometry, motion)
        data = mjx.collision(model, mjx.kinematics(model, data))
        contact = data._impl.contact
        return jnp.any(contact.dist < contact.includemargin)


def lights(physics: Physics, data: mjx.Data) -> tuple[jax.Array, jax.Array]:
    """Return the lights' positions and directions, [nlight, 3] each, which MJX does not compute."""
    model = physics.model
    body = model.light_bodyid
    tracking = (model.light_mode == mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM)[:, None]
    if not np.all(tracking[:, 0] | (model.light_mode == mujoco.mjtCamLight.mjCAMLIGHT_FIXED)):
        raise NotImplementedError("only fixed lights, and lights that track a centre of mass")
    dtype = data.qpos.dtype
    place, direction = (jnp.asarray(x, dtype) for x in (model.light_pos, model.light_dir))
    offset, direction0 = (jnp.asarray(x, dtype) for x in (model.light_poscom0, model.light_dir0))
    turn = jax.vmap(jnp.matmul)
    fixed = data.xpos[body] + turn(data.xmat[body], place)
    position = jnp.where(tracking, data.subtree_com[body] + offset, fixed)
    return position, jnp.where(tracking, direction0, turn(data.xmat[body], direction))
