"""The flat facets that MuJoCo draws round solids with: OpenGL lights their corners, and is linear in between."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wmjax.render.solids import Solids
from wmjax.render.vectors import dot, normalise, plus, root, times

_SLICES, _STACKS = 28, 8
"""MuJoCo's default quality: facets around an axis, and from the equator to a pole (twice as many along a side)."""


@struct.dataclass
class Facets:
    """One triangle for each of E samples."""

    center: jax.Array
    """[3, E], of the solid."""
    corners: tuple[jax.Array, jax.Array, jax.Array]
    """[3, E] each, relative to `center`: small numbers, for precision."""
    normals: tuple[jax.Array, jax.Array, jax.Array]
    """[3, E] each, unit, of the round solid at the corners."""
    rgb: jax.Array
    """[3, E]."""

    def weights(self, ray: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the weights of the second and third corner where rays from the origin [3, E] meet the planes.

        They are below 0 or above 1 outside the triangle. Last of the three is the cosine between the ray,
        backwards, and the triangle's outer side.
        """
        first, second, third = self.corners
        along, over = second - first, third - first
        normal = _cross(along, over)
        area, facing = root(dot(normal, normal)), -dot(normal, ray)
        inward = jnp.where(dot(normal, self.normals[0]) < 0, -1.0, 1.0)
        cosine = inward * facing / (area * root(dot(ray, ray)))
        offset = plus(first, self.center)
        depth = -dot(normal, offset) / jnp.where(jnp.abs(facing) < 0.01 * area, 0.01 * area, facing)
        point = times(depth, ray) - offset
        scale = 1 / (area * area)
        return scale * dot(_cross(point, over), normal), scale * dot(_cross(along, point), normal), cosine


def _cross(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.stack([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]])


def facets(solids: Solids, ids: jax.Array, point: jax.Array) -> Facets:
    """Return the facets of the solids `ids` [E] at points on them [3, E]. Differentiable, but not by `point`."""
    count = solids.center.shape[0]
    table = jnp.concatenate([solids.center, solids.rotation.reshape(count, 9), solids.size, solids.rgb], axis=1)
    center, rotation, size, rgb = jnp.split(table.T[:, ids], (3, 12, 15))
    axes = rotation.reshape(3, 3, -1)
    local = jnp.stack([dot(axes[:, k], point - center) for k in range(3)])
    local, fixed = jax.lax.stop_gradient((local, size))
    shapes = [_SHAPES[kind](local, size, fixed) for kind in sorted(set(solids.kinds))]
    corners, normals = shapes[0]
    for kind, other in zip(sorted(set(solids.kinds))[1:], shapes[1:], strict=True):
        chosen = jnp.asarray([k == kind for k in solids.kinds])[ids][None, None]
        corners, normals = jnp.where(chosen, other[0], corners), jnp.where(chosen, other[1], normals)

    def turned(vector: jax.Array) -> jax.Array:
        return jnp.stack([dot(axes[k], vector) for k in range(3)])

    a, b, c = (turned(corner) for corner in corners)
    d, e, f = (turned(normal) for normal in normals)
    return Facets(center, (a, b, c), (d, e, f), rgb)


Shape = tuple[jax.Array, jax.Array]
"""Three corners and their normals in a solid's own axes, [3, 3, E] each. The functions that return one take a point of
the solid's surface in its own axes, `local`, and its size with and (`fixed`) without a gradient, all [3, E]."""


def _turn(local: jax.Array, rings: tuple[jax.Array, ...], normals: tuple[jax.Array, ...], part: jax.Array) -> Shape:
    """Return the triangle, around the third axis, at the azimuth of `local` [3, E] between two rings.

    A ring is (radius, height), its normal (outwards, upwards), `part` [E] the place from the first ring to the second;
    where it is negative, the second ring is a pole, and the first one has two corners.
    """
    turns = jnp.arctan2(local[1], jnp.where(jnp.abs(local[0]) < 1e-9, 1e-9, local[0])) * (_SLICES / (2 * np.pi))
    low = jnp.clip(jnp.floor(turns), -_SLICES // 2, _SLICES // 2 - 1)
    angles = np.arange(-_SLICES // 2, _SLICES // 2 + 1) * (2 * np.pi / _SLICES)
    circle = jnp.asarray(np.stack([np.cos(angles), np.sin(angles)]), jnp.float32)
    index = low.astype(jnp.int32) + _SLICES // 2
    left, right = circle[:, index], circle[:, index + 1]
    upper = (turns - low) + part >= 1
    azimuths = jnp.where(upper, right, left), right, left

    def around(pair: tuple[jax.Array, ...]) -> jax.Array:
        (out0, up0, out1, up1) = pair
        outs, ups = (jnp.where(upper, out1, out0), out0, out1), (jnp.where(upper, up1, up0), up0, up1)
        corners = [
            jnp.stack([out * azimuth[0], out * azimuth[1], up])
            for out, up, azimuth in zip(outs, ups, azimuths, strict=True)
        ]
        return jnp.stack(corners)

    return around(rings), around(normals)


def _pill(local: jax.Array, radius: jax.Array, half: jax.Array, fixed_half: jax.Array) -> Shape:
    """Return the triangle of a sphere that is pulled apart along its third axis by 2 `half`.

    `local` is a point of its surface; `fixed_half` has the value of `half`, without its gradient.
    """
    height = local[2]
    out = jnp.sqrt(local[0] ** 2 + local[1] ** 2)
    top = jnp.where(height < 0, -1.0, 1.0)
    beyond = jnp.abs(height) - fixed_half
    stacks = jnp.arctan2(jnp.maximum(beyond, 0), out + 1e-9) * (_STACKS * 2 / np.pi)
    low = jnp.clip(jnp.floor(stacks), 0, _STACKS - 1)
    angles = np.arange(_STACKS + 1) * (np.pi / 2 / _STACKS)
    arc = jnp.asarray(np.stack([np.cos(angles), np.sin(angles)]), jnp.float32)
    (out0, up0), (out1, up1) = arc[:, low.astype(jnp.int32)], arc[:, low.astype(jnp.int32) + 1]
    rows = jnp.clip((height / jnp.maximum(fixed_half, 1e-9) + 1) * _STACKS, 0, 2 * _STACKS - 1e-3)
    row = jnp.floor(rows)
    side, one, zero = beyond <= 0, jnp.ones_like(out), jnp.zeros_like(out)
    heights = [
        jnp.where(side, half * ((row + k) / _STACKS - 1), top * (half + radius * up)) for k, up in ((0, up0), (1, up1))
    ]
    outs, ups = [jnp.where(side, one, o) for o in (out0, out1)], [jnp.where(side, zero, top * u) for u in (up0, up1)]
    part = jnp.where(side, rows - row, jnp.where(low == _STACKS - 1, -1.0, stacks - low))
    rings = radius * outs[0], heights[0], radius * outs[1], heights[1]
    return _turn(local, rings, (outs[0], ups[0], outs[1], ups[1]), part)


def _sphere(local: jax.Array, size: jax.Array, fixed: jax.Array) -> Shape:
    none = jnp.zeros_like(size[0])
    return _pill(local, size[0], none, none)


def _capsule(local: jax.Array, size: jax.Array, fixed: jax.Array) -> Shape:
    return _pill(local, size[0], size[1], fixed[1])


def _ellipsoid(local: jax.Array, size: jax.Array, fixed: jax.Array) -> Shape:
    one, none = jnp.ones_like(size[0]), jnp.zeros_like(size[0])
    corners, normals = _pill(local / fixed, one, none, none)
    normals = normals / size[None]
    return corners * size[None], jnp.stack([normalise(normals[k]) for k in range(3)])


def _cylinder(local: jax.Array, size: jax.Array, fixed: jax.Array) -> Shape:
    radius, half, _ = size
    out = jnp.sqrt(local[0] ** 2 + local[1] ** 2)
    top = jnp.where(local[2] < 0, -1.0, 1.0)
    lid = fixed[1] - jnp.abs(local[2]) < fixed[0] - out
    rows = jnp.clip((local[2] / fixed[1] + 1) * _STACKS, 0, 2 * _STACKS - 1e-3)
    discs = jnp.clip((1 - out / fixed[0]) * _STACKS, 0, _STACKS - 1e-3)
    row, disc = jnp.floor(rows), jnp.floor(discs)
    outs = [jnp.where(lid, 1 - (disc + k) / _STACKS, 1.0) for k in range(2)]
    heights = [jnp.where(lid, top * half, half * ((row + k) / _STACKS - 1)) for k in range(2)]
    outward, upward = jnp.where(lid, 0.0, 1.0), jnp.where(lid, top, 0.0)
    part = jnp.where(lid, jnp.where(disc == _STACKS - 1, -1.0, discs - disc), rows - row)
    rings = radius * outs[0], heights[0], radius * outs[1], heights[1]
    return _turn(local, rings, (outward, upward, outward, upward), part)


def _box(local: jax.Array, size: jax.Array, fixed: jax.Array) -> Shape:
    """Return a triangle in the face: light changes so little along one that its own grid does not matter."""
    part = jnp.clip(local / fixed, -1, 1)
    depth = jnp.abs(part)
    first = (depth[0] >= depth[1]) & (depth[0] >= depth[2])
    second = ~first & (depth[1] >= depth[2])
    chosen = jnp.stack([first, second, ~first & ~second])
    normal = jnp.where(chosen, jnp.sign(part), 0.0)
    corner = jnp.where(chosen, jnp.sign(part), part)
    along, over = (jnp.roll(jnp.where(chosen, 0.2, 0.0), k, axis=0) for k in (1, 2))
    return jnp.stack([corner, corner + along, corner + over]) * size[None], jnp.stack([normal] * 3)


_SHAPES = {"sphere": _sphere, "capsule": _capsule, "cylinder": _cylinder, "box": _box, "ellipsoid": _ellipsoid}
