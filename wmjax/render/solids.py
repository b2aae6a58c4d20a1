"""Convex solids that MuJoCo draws, and where rays hit them."""

from typing import Literal

import jax
import jax.numpy as jnp
from flax import struct

from wmjax.render.vectors import apart_from_zero, dot

Kind = Literal["sphere", "capsule", "cylinder", "box", "ellipsoid"]
KINDS: dict[int, Kind] = {2: "sphere", 3: "capsule", 4: "ellipsoid", 5: "cylinder", 6: "box"}
"""By MuJoCo's geom type."""
MOST = 64
"""Solids that a frame can tell apart."""


@struct.dataclass
class Solids:
    """G solids in one frame."""

    kinds: tuple[Kind, ...] = struct.field(pytree_node=False)
    center: jax.Array
    """[G, 3]."""
    rotation: jax.Array
    """[G, 3, 3], from a solid's own axes to the frame: its columns. Improper for mirrored solids."""
    size: jax.Array
    """[G, 3], MuJoCo's: radius, half length (capsule, cylinder) or half axes (box, ellipsoid)."""
    rgb: jax.Array
    """[G, 3], in [0, 1]."""

    def joined(self, other: "Solids") -> "Solids":
        """Return these solids, followed by the other ones."""
        arrays = ((getattr(part, name) for part in (self, other)) for name in ("center", "rotation", "size", "rgb"))
        return Solids(self.kinds + other.kinds, *(jnp.concatenate(list(pair)) for pair in arrays))

    def moved(self, rotation: jax.Array, origin: jax.Array) -> "Solids":
        """Return the solids in the frame with axes `rotation` [3, 3] (columns) and `origin` [3]."""
        center = (self.center - origin[None]) @ rotation
        return self.replace(center=center, rotation=rotation.T[None] @ self.rotation)  # type: ignore[attr-defined]

    def grown(self, angle: float) -> "Solids":
        """Return the solids, in the camera's frame, each larger by about what it has to be to look wider by `angle`."""
        distance = jnp.sqrt(jnp.sum(self.center**2, axis=1, keepdims=True)) + jnp.sum(self.size, axis=1, keepdims=True)
        return self.replace(size=self.size + angle * distance)  # type: ignore[attr-defined]

    def mirrored(self, normal: jax.Array, point: jax.Array) -> "Solids":
        """Return the solids mirrored at the plane with a unit `normal` [3] through `point` [3]."""
        mirror = jnp.eye(3, dtype=normal.dtype) - 2 * normal[:, None] * normal[None]
        center = (self.center - point[None]) @ mirror + point[None]
        return self.replace(center=center, rotation=mirror[None] @ self.rotation)  # type: ignore[attr-defined]


def hit(kind: Kind, size: jax.Array, rotation: jax.Array, center: jax.Array, ray: jax.Array) -> jax.Array:
    """Return the parameter t [...] > 0 at which rays t * `ray` enter a solid, infinite where they miss it.

    `center` [3] or [3, ...] is relative to the rays' origin, `ray` [3] or [3, ...] of any length; `size` [3] and
    `rotation` [3, 3] are those of the solid. Not to be differentiated.
    """
    if kind == "box":
        toward, along = rotation.T @ center, _turn(rotation, ray)
        inverse = [1 / apart_from_zero(along[k]) for k in range(3)]
        near = [toward[k] * inverse[k] - jnp.abs(inverse[k]) * size[k] for k in range(3)]
        far = [toward[k] * inverse[k] + jnp.abs(inverse[k]) * size[k] for k in range(3)]
        enter = jnp.maximum(jnp.maximum(near[0], near[1]), near[2])
        leave = jnp.minimum(jnp.minimum(far[0], far[1]), far[2])
        return jnp.where((enter < leave) & (enter > 0), enter, jnp.inf)
    if kind == "ellipsoid":
        center, ray, size = _unit(rotation, size, center), _unit(rotation, size, ray), jnp.ones_like(size)
        kind = "sphere"
    rr, cr, cc = dot(ray, ray), dot(center, ray), dot(center, center)
    if kind == "sphere":
        return _sphere(rr, cr, cc, size[0])
    axis, half = rotation[:, 2], size[1]
    ar, ac = dot(axis, ray), dot(axis, center)
    a, b, c = jnp.maximum(rr - ar * ar, 1e-9), cr - ac * ar, cc - ac * ac - size[0] ** 2
    inside = b * b - a * c
    t = (b - jnp.sqrt(jnp.maximum(inside, 0))) / a
    height = t * ar - ac
    side = (inside > 0) & (t > 0) & (jnp.abs(height) <= half)
    if kind == "capsule":
        end = jnp.where(height > 0, half, -half)
        cap = _sphere(rr, cr + end * ar, cc + 2 * end * ac + half * half, size[0])
        return jnp.where(side, t, jnp.where(inside > 0, cap, jnp.inf))
    lid = (ac - jnp.where(ar > 0, half, -half)) / apart_from_zero(ar)
    return jnp.where(side, t, jnp.where((lid > 0) & ((a * lid - 2 * b) * lid + c <= 0), lid, jnp.inf))


def meets(
    kind: Kind, size: jax.Array, rotation: jax.Array, center: jax.Array, ray: jax.Array, limit: jax.Array
) -> jax.Array:
    """Return, as bool [...], whether t * `ray` with 0 < t < `limit` meets a solid, for ends that lie outside of it.

    The arguments are those of `hit`, which tells the same for more arithmetic.
    """
    if kind not in ("sphere", "capsule"):
        return hit(kind, size, rotation, center, ray) < limit
    rr, cr, cc = dot(ray, ray), dot(center, ray), dot(center, center)
    if kind == "capsule":
        axis, half = rotation[:, 2], size[1]
        ar, ac = dot(axis, ray), dot(axis, center)
        height = jnp.clip((cr * ar - ac * rr) / jnp.maximum(rr - ar * ar, 1e-9), -half, half)
        cr, cc = cr + height * ar, cc + height * (2 * ac + height)
    t = cr / rr
    return (t > 0) & (t < limit) & (cc - cr * t < size[0] * size[0])


def _sphere(rr: jax.Array, cr: jax.Array, cc: jax.Array, radius: jax.Array) -> jax.Array:
    inside = cr * cr - rr * (cc - radius * radius)
    t = (cr - jnp.sqrt(jnp.maximum(inside, 0))) / rr
    return jnp.where((inside > 0) & (t > 0), t, jnp.inf)


def _turn(rotation: jax.Array, vector: jax.Array) -> jax.Array:
    return jnp.stack([dot(rotation[:, k], vector) for k in range(3)])


def _unit(rotation: jax.Array, size: jax.Array, vector: jax.Array) -> jax.Array:
    turned = _turn(rotation, vector)
    return jnp.stack([turned[k] / size[k] for k in range(3)])
