"""The point and the normal that a pixel shows of a solid, differentiable in the solid's pose and size."""

import jax
import jax.numpy as jnp
from flax import struct

from wmjax.render.solids import Kind, Solids
from wmjax.render.vectors import apart_from_zero, dot, normalise, plus, root, times


@struct.dataclass
class Surface:
    """What N pixels show, each of one solid."""

    point: jax.Array
    """[3, N]."""
    normal: jax.Array
    """[3, N], unit."""
    rgb: jax.Array
    """[3, N]."""


def surface(solids: Solids, ids: jax.Array, ray: jax.Array) -> Surface:
    """Return where rays from the origin, `ray` [3, N], meet the solids `ids` [N] that they are to show.

    GL shades at a pixel's centre even if only others of its samples see the solid. Where the ray misses, a round side
    shows the nearest point of its outline, and a flat one the point where the ray meets its plane.
    """
    count = solids.center.shape[0]
    table = jnp.concatenate([solids.center, solids.rotation.reshape(count, 9), solids.size, solids.rgb], axis=1)
    center, rotation, size, rgb = jnp.split(table.T[:, ids], (3, 12, 15))
    rotation = rotation.reshape(3, 3, -1)
    kinds = sorted(set(solids.kinds))
    point, normal = _SHAPES[kinds[0]](center, rotation, size, ray)
    for kind in kinds[1:]:
        other = _SHAPES[kind](center, rotation, size, ray)
        chosen = jnp.asarray([k == kind for k in solids.kinds])[ids][None]
        point, normal = jnp.where(chosen, other[0], point), jnp.where(chosen, other[1], normal)
    return Surface(point, normal, rgb)


Shape = tuple[jax.Array, jax.Array]


def _sphere(center: jax.Array, rotation: jax.Array, size: jax.Array, ray: jax.Array) -> Shape:
    return _ball(center, size[0], ray)


def _ball(center: jax.Array, radius: jax.Array, ray: jax.Array) -> Shape:
    rr, cr = dot(ray, ray), dot(center, ray)
    t = (cr - root(cr * cr - rr * (dot(center, center) - radius * radius))) / rr
    normal = normalise(times(t, ray) - center)
    return center + times(radius, normal), normal


def _capsule(center: jax.Array, rotation: jax.Array, size: jax.Array, ray: jax.Array) -> Shape:
    axis, (radius, half, _) = rotation[:, 2], size
    height, nearest = _side(center, axis, radius, ray)
    core = center + times(jnp.clip(height, -half, half), axis)
    on_cap, cap = _ball(core, radius, ray)
    normal = normalise(nearest - core)
    side = (jnp.abs(height) <= half)[None]
    return jnp.where(side, core + times(radius, normal), on_cap), jnp.where(side, normal, cap)


def _side(center: jax.Array, axis: jax.Array, radius: jax.Array, ray: jax.Array) -> Shape:
    """Return the height along the axis and the point at which rays meet an endless cylinder, or come nearest to it."""
    rr, cr, cc, ar, ac = dot(ray, ray), dot(center, ray), dot(center, center), dot(axis, ray), dot(axis, center)
    a, b, c = jnp.maximum(rr - ar * ar, 1e-9), cr - ac * ar, cc - ac * ac - radius * radius
    t = (b - root(b * b - a * c)) / a
    return t * ar - ac, times(t, ray)


def _cylinder(center: jax.Array, rotation: jax.Array, size: jax.Array, ray: jax.Array) -> Shape:
    axis, (radius, half, _) = rotation[:, 2], size
    height, nearest = _side(center, axis, radius, ray)
    core = center + times(height, axis)
    normal = normalise(nearest - core)
    along = dot(axis, ray)
    end = jnp.where(along > 0, -1.0, 1.0)
    lid = times((dot(axis, center) + end * half) / apart_from_zero(along), ray)
    off_axis = lid - center - times(end * half, axis)
    side = ((jnp.abs(height) <= half) & (dot(off_axis, off_axis) > radius * radius))[None]
    return jnp.where(side, core + times(radius, normal), lid), jnp.where(side, normal, times(end, axis))


def _box(center: jax.Array, rotation: jax.Array, size: jax.Array, ray: jax.Array) -> Shape:
    enter, facing = [], []
    for k in range(3):
        along = apart_from_zero(dot(rotation[:, k], ray))
        facing.append(-jnp.sign(along))
        enter.append((dot(rotation[:, k], center) + facing[k] * size[k]) / along)
    last = jnp.maximum(jnp.maximum(enter[0], enter[1]), enter[2])
    normal = times(facing[2], rotation[:, 2])
    for k in (1, 0):
        normal = jnp.where((enter[k] >= last)[None], times(facing[k], rotation[:, k]), normal)
    return times(last, ray), normal


def _ellipsoid(center: jax.Array, rotation: jax.Array, size: jax.Array, ray: jax.Array) -> Shape:
    def scaled(vector: jax.Array) -> jax.Array:
        return jnp.stack([dot(rotation[:, k], vector) / size[k] for k in range(3)])

    def restored(local: jax.Array) -> jax.Array:
        return sum((times(local[k], rotation[:, k]) for k in range(3)), jnp.zeros_like(center))

    _, unit = _ball(scaled(center), jnp.ones_like(size[0]), scaled(ray))
    return center + restored(unit * size), normalise(restored(unit / size))


_SHAPES = {"sphere": _sphere, "capsule": _capsule, "cylinder": _cylinder, "box": _box, "ellipsoid": _ellipsoid}
