"""Planes and sky: what a frame shows behind all solids, lit at the corners of MuJoCo's grid as OpenGL does it."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wmjax.render import texture as textures
from wmjax.render.light import Gloss, Light, shine
from wmjax.render.texture import Texture
from wmjax.render.vectors import apart_from_zero, dot, plus, times


@struct.dataclass
class Plane:
    """A finite rectangle, in the frame of its pose."""

    extent: tuple[float, float] = struct.field(pytree_node=False)
    """Half lengths along its axes, in m."""
    grid: tuple[tuple[float, float, int], tuple[float, float, int]] = struct.field(pytree_node=False)
    """For each axis: the width of the first and last cell, that of the others, and the number of cells."""
    mapping: tuple[float, float] | None = struct.field(pytree_node=False)
    """Repeats of the texture per m along each axis, or None for a plain plane."""
    center: jax.Array
    """[3]."""
    rotation: jax.Array
    """[3, 3], columns are its axes; the third is the normal."""
    rgb: jax.Array
    """[3]."""

    def moved(self, rotation: jax.Array, origin: jax.Array) -> "Plane":
        """Return the plane in the frame with axes `rotation` [3, 3] (columns) and `origin` [3]."""
        center, turned = (self.center - origin) @ rotation, rotation.T @ self.rotation
        return self.replace(center=center, rotation=turned)  # type: ignore[attr-defined]

    def mirrored(self, other: "Plane") -> "Plane":
        """Return the plane mirrored at another one."""
        normal = other.rotation[:, 2]
        mirror = jnp.eye(3) - 2 * normal[:, None] * normal[None]
        center = mirror @ (self.center - other.center) + other.center
        return self.replace(center=center, rotation=mirror @ self.rotation)  # type: ignore[attr-defined]


@struct.dataclass
class Backdrop:
    """What N pixels with S samples each show where no solid is."""

    depth: jax.Array
    """[S, N]: depth of the nearest plane, infinite for the sky."""
    reflects: jax.Array
    """[S, N], bool: whether the nearest plane is the reflecting one."""
    head: jax.Array
    """[3, N], in [0, 1]: light without the lamp's, from planes and sky, averaged over the samples."""
    lamp: jax.Array
    """[3, N], in [0, 1]: the lamp's light where it is not shadowed."""
    point: jax.Array
    """[3, N]: where the pixel's centre sees the plane; there a shadow is looked for."""


def grid(half: float, spacing: float, most: int = 200) -> tuple[float, float, int]:
    """Return the grid of a plane of half length `half`: widths of first and last cell, of the others, and cells."""
    spacing = max(spacing, half / (most - 2))
    inner = int(half / spacing) // 2 * 2
    return half - inner * spacing, 2 * spacing, inner + 2


def backdrop(
    planes: tuple[Plane, ...],
    image: Texture,
    sky: jax.Array,
    lights: tuple[Light, Light],
    gloss: Gloss,
    reflectance: jax.Array,
    rays: jax.Array,
    centers: jax.Array,
    shape: tuple[int, int],
) -> Backdrop:
    """Return what is behind all solids, for sample rays [3, S, N] and pixel-centre rays [3, N] of a frame of `shape`.

    `planes` (the first reflects the others) and `lights` (headlight and lamp) are in the camera's frame, `sky` is
    [3, N].
    """
    depth, shares = _shares(planes, rays)
    head, lamp = jnp.mean((depth == jnp.inf).astype(jnp.float32), axis=0)[None] * sky, jnp.zeros_like(sky)
    point = jnp.zeros_like(sky)
    for plane, share in zip(planes, shares, strict=True):
        part = jnp.mean(share, axis=0)[None]
        at, x, y = _meet(plane, centers)
        light = _lit(plane, lights, gloss, x, y)
        if plane.mapping is not None:
            s, t = plane.mapping[0] * x - 0.5, -plane.mapping[1] * y - 0.5
            steps = textures.stretch(s.reshape(shape), t.reshape(shape), image.shape).reshape(-1)
            paint = textures.sample(image, s, t, steps)
            light = light[0] * paint, light[1] * paint
        head += jnp.where(part > 0, part * light[0], 0)
        lamp += jnp.where(part > 0, part * light[1], 0)
        point = jnp.where(part > 0, times(at, centers), point)
    mirrored = tuple(plane.mirrored(planes[0]) for plane in planes[1:])
    _, images = _shares(mirrored, rays)
    mirrored_lights = [light.mirrored(planes[0].rotation[:, 2], planes[0].center) for light in lights]
    for plane, share in zip(mirrored, images, strict=True):
        part = jnp.mean(share * shares[0], axis=0)[None]
        dim = plane.replace(rgb=reflectance * plane.rgb)  # type: ignore[attr-defined]
        light = _lit(dim, mirrored_lights, gloss, *_meet(plane, centers)[1:])
        head += jnp.where(part > 0, part * (light[0] + light[1]), 0)
    return Backdrop(depth, shares[0] > 0, head, lamp, point)


def _shares(planes: tuple[Plane, ...], rays: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    """Return the depth [S, N] of the nearest plane, and for each plane as float [S, N] where it is that one."""
    best, nearest = jnp.full(rays.shape[1:], jnp.inf), jnp.full(rays.shape[1:], len(planes))
    for i, plane in enumerate(planes):
        depth, x, y = _meet(plane, rays)
        faces = plane.rotation[:, 2] @ plane.center < 0
        inside = faces & (depth > 0) & (jnp.abs(x) <= plane.extent[0]) & (jnp.abs(y) <= plane.extent[1])
        closer = inside & (depth < best)
        best, nearest = jnp.where(closer, depth, best), jnp.where(closer, i, nearest)
    return best, [(nearest == i).astype(jnp.float32) for i in range(len(planes))]


def _meet(plane: Plane, ray: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the depth at which rays from the origin meet the plane, and its own coordinates there."""
    across, up, normal = plane.rotation.T
    depth = (normal @ plane.center) / apart_from_zero(dot(normal, ray))
    return depth, depth * dot(across, ray) - across @ plane.center, depth * dot(up, ray) - up @ plane.center


def _lit(
    plane: Plane, lights: Sequence[Light], gloss: Gloss, x: jax.Array, y: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the light [3, N] of each light at the plane's points (x, y), interpolated in the grid's triangles."""
    cells = [_cells(half, axis) for half, axis in zip(plane.extent, plane.grid, strict=True)]
    corners = jnp.stack(jnp.meshgrid(*(jnp.asarray(lines) for lines in cells), indexing="ij")).reshape(2, -1)
    point = plus(times(corners[0], plane.rotation[:, 0]), times(corners[1], plane.rotation[:, 1]))
    point = plus(point, plane.center)
    light = jnp.concatenate([shine(light, gloss, point, plane.rotation[:, 2], plane.rgb) for light in lights])
    light = light.T.reshape(len(cells[0]), len(cells[1]), 6)
    a, b, c, d = light[:-1, :-1], light[1:, :-1], light[1:, 1:], light[:-1, 1:]
    lower, upper = jnp.concatenate([a, b - a, d - a], -1), jnp.concatenate([b + d - c, c - d, c - b], -1)
    triangles = jnp.stack([lower, upper], axis=2).reshape(-1, 18)
    (i, u), (j, v) = (
        _locate(half, axis, value) for half, axis, value in zip(plane.extent, plane.grid, (x, y), strict=True)
    )
    cell = (i * plane.grid[1][2] + j) * 2 + (u + v >= 1).astype(jnp.int32)
    base, along, over = jnp.split(triangles[cell].T, 3)
    both = base + u[None] * along + v[None] * over
    return both[:3], both[3:]


def _cells(half: float, axis: tuple[float, float, int]) -> np.ndarray:
    margin, step, count = axis
    inner = -half + margin + step * np.arange(count - 1)
    return np.concatenate([[-half], inner, [half]]).astype(np.float32)


def _locate(half: float, axis: tuple[float, float, int], value: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the cell of a coordinate, and where in it the coordinate is, in [0, 1]."""
    margin, step, count = axis
    value = jnp.clip(value, -half, half)
    cell = jnp.clip(jnp.floor((value + (half - margin)) / step) + 1, 0, count - 1)
    start = jnp.where(cell == 0, -half, step * (cell - 1) + (margin - half))
    width = jnp.where((cell == 0) | (cell == count - 1), max(margin, 1e-6), step)
    return cell.astype(jnp.int32), (value - start) / width
