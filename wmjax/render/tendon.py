"""The string of a limited tendon between two sites: a catenary while it is slack, straight and red when taut."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from flax import struct

from wmjax.core.errors import InputError
from wmjax.render.solids import Kind, Solids

_FLATTEST = 100.0
"""A string this many times longer than it is wide is drawn as if it were no narrower."""


@struct.dataclass
class String:
    """One tendon."""

    sites: tuple[int, int] = struct.field(pytree_node=False)
    pieces: int = struct.field(pytree_node=False)
    """Straight pieces that it is drawn with."""
    length: jax.Array
    """In m, above which it is taut."""
    radius: jax.Array
    """In m."""
    slack: jax.Array
    """[3], its colour."""
    taut: jax.Array
    """[3]."""

    @classmethod
    def of(cls, model: mujoco.MjModel) -> "String":
        """Return the string of the only tendon of `model`. Raises InputError for other kinds of tendons."""
        sites = model.wrap_objid[:2]
        simple = model.ntendon == 1 and list(model.wrap_type) == [mujoco.mjtWrap.mjWRAP_SITE] * 2
        if not simple or not model.tendon_limited[0] or model.tendon_range[0, 0] != 0:
            raise InputError("this model can not be drawn: its tendon must be a string between two sites")
        rgb = model.tendon_rgba[0, :3]
        # MuJoCo mixes the colour of constraints into that of a tendon at its limit.
        taut = 0.05 * rgb + 0.95 * model.vis.rgba.constraint[:3]
        values = (model.tendon_range[0, 1], model.tendon_width[0], rgb, taut)
        pair = int(sites[0]), int(sites[1])
        return cls(pair, int(model.vis.quality.numslices), *(jnp.asarray(value, jnp.float32) for value in values))

    def solids(self, site_xpos: jax.Array) -> Solids:
        """Return the string's pieces between the sites, of which all have positions `site_xpos` [nsite, 3]."""
        start, end = site_xpos[self.sites[0]], site_xpos[self.sites[1]]
        points, taut = _hang(start, end, self.length, self.pieces)
        step = points[1:] - points[:-1]
        half = 0.5 * jnp.sqrt(jnp.maximum(jnp.sum(step**2, axis=1), 1e-12))
        axis = 0.5 * step / half[:, None]
        size = jnp.stack([jnp.full_like(half, self.radius), half, jnp.zeros_like(half)], axis=1)
        rotation = jax.vmap(_turn_to)(jnp.where(axis[:, 2:] < 0, -axis, axis))
        rgb = jnp.broadcast_to(jnp.where(taut, self.taut, self.slack)[None], axis.shape)
        center = (points[1:] + points[:-1]) / 2
        capsule: Kind = "capsule"
        return Solids((capsule,) * self.pieces, center, rotation, size, rgb)


def _turn_to(axis: jax.Array) -> jax.Array:
    """Return the smallest rotation [3, 3] of the z axis to `axis` [3], which must not point down."""
    x, y, z = axis
    a, b, c = 1 - x * x / (1 + z), -x * y / (1 + z), 1 - y * y / (1 + z)
    return jnp.stack([jnp.stack([a, b, x]), jnp.stack([b, c, y]), jnp.stack([-x, -y, z])])


def _hang(start: jax.Array, end: jax.Array, length: jax.Array, pieces: int) -> tuple[jax.Array, jax.Array]:
    """Return points [pieces + 1, 3] along a string that hangs in gravity along -z, and whether it is taut.

    With half its width over the catenary's parameter as the unknown u, sinh(u) / u is known: u by Newton's method.
    """
    across = (end - start) * jnp.array([1.0, 1.0, 0.0])
    rise, width = end[2] - start[2], jnp.sqrt(jnp.maximum(jnp.sum(across**2), 1e-12))
    distance = jnp.sqrt(jnp.maximum(jnp.sum((end - start) ** 2), 1e-12))
    taut = distance >= length
    length = jnp.maximum(length, 1.0001 * distance)
    wide = jnp.maximum(width, length / _FLATTEST)
    target = jnp.log(jnp.sqrt(jnp.maximum(length**2 - rise**2, wide**2)) / wide)
    u = jnp.where(target < 1, jnp.sqrt(jnp.maximum(6 * target, 1e-6)), target + jnp.log(jnp.maximum(2 * target, 1.0)))
    for _ in range(5):
        sinh = jnp.sinh(u)
        u = jnp.maximum(u - (jnp.log(sinh / u) - target) / (jnp.cosh(u) / sinh - 1 / u), 1e-3)
    scale = wide / (2 * u)
    lowest = 0.5 * (wide - jnp.log((length + rise) / (length - rise)) * scale)
    # MuJoCo spaces all points but the last for one piece more.
    part = jnp.asarray(np.append(np.arange(pieces) / (pieces + 1), 1.0), jnp.float32)
    height = scale * (jnp.cosh((part * wide - lowest) / scale) - jnp.cosh(lowest / scale))
    height = jnp.where(taut | (part == 1), part * rise, height)
    offset = part[:, None] * across[None] + height[:, None] * jnp.array([[0.0, 0.0, 1.0]])
    return start[None] + offset, taut
