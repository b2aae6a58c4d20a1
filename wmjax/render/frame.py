"""A frame, as MuJoCo's OpenGL draws it: four samples a pixel tell what is seen, and its centre how that is lit."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct

from wmjax.render.culling import Parts, mirrored, picture
from wmjax.render.facets import facets
from wmjax.render.light import Light, shine
from wmjax.render.planes import Backdrop
from wmjax.render.polylines import nearest
from wmjax.render.scene import SAMPLES, Poses, Scene, behind, posed
from wmjax.render.shadow import NOBODY, shadowed
from wmjax.render.solids import MOST, Solids, hit
from wmjax.render.vectors import times

_EMPTY = 0x7F800000
"""The bits of an infinite depth."""
_MISSED = (1.0, 0.0, 1.0)
"""Magenta: the colour of pixels beyond the capacity of a scene."""


def render(scene: Scene, poses: Poses) -> jax.Array:
    """Return the frame [H, W, 3], in [0, 255], not rounded.

    Differentiable in poses, colours, lights and textures, for what is seen where: outlines and shadows do not move.
    """
    return _draw(scene, poses, lambda light: light)


def frame(scene: Scene, poses: Poses) -> jax.Array:
    """Return the frame [H, W, 3], uint8, rounded as OpenGL does: the light of each pass, and at last the pixels."""
    return quantise(_draw(scene, poses, lambda light: jnp.round(255 * light) / 255))


def quantise(frame: jax.Array) -> jax.Array:
    """Return a frame in [0, 255] as uint8."""
    return jnp.round(jnp.clip(frame, 0, 255)).astype(jnp.uint8)


def _draw(scene: Scene, poses: Poses, store: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Return the frame, given what a pass of OpenGL leaves of its light, in [0, 1], in the frame buffer."""
    solids, threads, planes, lamp = posed(scene, poses)
    back = behind(scene, planes, lamp) if scene.backdrop is None else scene.backdrop
    floor = planes[0].rotation[:, 2], planes[0].center
    images = mirrored((solids, threads), planes[0])
    samples = _samples(scene, (solids, threads), images, back)
    table = functools.reduce(Solids.joined, [part for part in (solids, threads, *images) if part is not None])
    numbers = jnp.where(samples.mirrored, samples.ids + len(table.kinds) // 2, samples.ids)
    drawn = facets(table, numbers, samples.point)
    along, over, cosine = drawn.weights(samples.ray)

    def across(first: jax.Array, second: jax.Array, third: jax.Array) -> jax.Array:
        return first + times(along, second - first) + times(over, third - first)

    places = jnp.concatenate([drawn.center + across(*drawn.corners), back.point], axis=1)
    owners = jnp.concatenate([samples.ids, jnp.full(back.point.shape[1], NOBODY)])
    dark = shadowed(solids, threads, lamp, scene.reach, *jax.lax.stop_gradient((places, owners)))
    dark, dark_back = dark[: samples.ids.size] & ~samples.mirrored, dark[samples.ids.size :]
    rgb = jnp.where(samples.mirrored[None], scene.reflectance * drawn.rgb, drawn.rgb)
    passes = []
    for light in (scene.head, lamp):
        # Images are lit by the images of the lights.
        light = _chosen(samples.mirrored, light.mirrored(*floor), light)
        lit = (
            shine(light, scene.gloss, drawn.center + corner, normal, rgb)
            for corner, normal in zip(drawn.corners, drawn.normals, strict=True)
        )
        passes.append(store(jnp.clip(across(*lit), 0, 1)))
    colour = jnp.minimum(passes[0] + jnp.where(dark[None], 0, passes[1]), 1)
    weight = jnp.where(samples.shown & (cosine > 0), 1 / len(SAMPLES), 0)
    added = times(weight, colour).reshape(3, len(SAMPLES), -1).sum(axis=1)
    covered = jnp.where(samples.mirrored, 0, weight).reshape(len(SAMPLES), -1).sum(axis=0)
    backdrop = jnp.minimum(store(back.head) + jnp.where(dark_back[None], 0, store(back.lamp)), 1)
    free = jnp.ones(back.head.shape[1]).at[samples.pixels].add(-covered, mode="drop")
    image = (free[None] * backdrop).at[:, samples.pixels].add(added, mode="drop")
    image = jnp.where(samples.missed[None], jnp.asarray(_MISSED)[:, None], jnp.minimum(image, 1))
    return 255 * image.T.reshape(*scene.shape, 3)


def _chosen(condition: jax.Array, first: Light, second: Light) -> Light:
    """Return a light for each sample [E]: the first where `condition` holds, else the second."""
    position, direction = (
        jnp.where(condition[None], getattr(first, name)[:, None], getattr(second, name)[:, None])
        for name in ("position", "direction")
    )
    return second.replace(position=position, direction=direction)  # type: ignore[attr-defined]


@struct.dataclass
class _Samples:
    """What the E = S * `scene.capacity` samples of the pixels near solids show: first all pixels' first samples."""

    pixels: jax.Array
    """[capacity], their numbers; that of no pixel in unused places."""
    missed: jax.Array
    """[N], bool: the pixels near solids for which there was no place."""
    ray: jax.Array
    """[3, E], through the centre of the sample's pixel."""
    shown: jax.Array
    """[E], bool: whether the sample shows a solid or its image in the floor."""
    mirrored: jax.Array
    """[E], bool: whether it could only be an image."""
    ids: jax.Array
    """[E], which solid."""
    point: jax.Array
    """[3, E], where the sample sees it."""


def _samples(scene: Scene, solids: Parts, images: Parts, back: Backdrop) -> _Samples:
    rays, centers = scene.rays()
    near = scene.near(solids, images)
    pixels = jnp.nonzero(near, size=scene.capacity, fill_value=near.size)[0]
    rays = jnp.take(rays, pixels, axis=2, fill_value=-1).reshape(3, -1)
    ray = jnp.tile(jnp.take(centers, pixels, axis=1, fill_value=-1), len(SAMPLES))
    limit, reflects = (jnp.take(x, pixels, axis=1, fill_value=0).reshape(-1) for x in (back.depth, back.reflects))
    depth, ids = _nearest(*solids, rays)
    image_depth, image_ids = _nearest(*images, rays)
    seen = depth < limit
    mirrored = reflects & ~seen & (image_depth > limit)
    depth = jnp.where(mirrored, image_depth, depth)
    shown = (seen | mirrored) & jnp.isfinite(depth)
    point = times(jnp.where(shown, depth, 1), rays)
    missed = near & (jnp.arange(near.size) > pixels[-1])
    return _Samples(pixels, missed, ray, shown, mirrored, jnp.where(mirrored, image_ids, ids), point)


def _nearest(solids: Solids, threads: Solids | None, rays: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the depth at which rays [3, N] meet a solid first, infinite for those that meet none, and which one.

    Threads are numbered after the solids.
    """
    solids, threads = jax.lax.stop_gradient((solids, threads))
    # One int32 holds both: the bits of the depth, of which the last six are replaced by the solid's number.
    best = jnp.full(rays.shape[1:], _EMPTY)
    for i, kind in enumerate(solids.kinds):
        depth = hit(kind, solids.size[i], solids.rotation[i], solids.center[i], rays)
        best = jnp.minimum(best, jax.lax.bitcast_convert_type(depth, jnp.int32) & -MOST | i)
    depth, count = jax.lax.bitcast_convert_type(best & -MOST, jnp.float32), len(solids.kinds)
    ids = jnp.minimum(best & (MOST - 1), count - 1)
    if threads is not None:
        thread_depth, number = nearest(threads, picture(threads), rays)
        depth, ids = jnp.minimum(depth, thread_depth), jnp.where(thread_depth < depth, number + count, ids)
    return depth, ids
