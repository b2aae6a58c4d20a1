"""A frame, as MuJoCo's OpenGL draws it: four samples a pixel tell what is seen, and its centre how that is lit."""

import functools

import jax
import jax.numpy as jnp

from wmjax.render.facets import facets
from wmjax.render.light import shine
from wmjax.render.scene import SAMPLES, Poses, Scene, behind, posed
from wmjax.render.shadow import NOBODY, shadowed
from wmjax.render.solids import Solids, hit, meets
from wmjax.render.vectors import plus, times

_MOST = 64
"""Solids that can be told apart."""
_EMPTY = 0x7F800000
"""The bits of an infinite depth."""


def render(scene: Scene, poses: Poses) -> jax.Array:
    """Return the frame [H, W, 3], in [0, 255], not rounded.

    Differentiable in poses, colours, lights and textures, for what is seen where: outlines and shadows do not move.
    """
    solids, planes, lamp = posed(scene, poses)
    back = behind(scene, planes, lamp) if scene.backdrop is None else scene.backdrop
    rays, centers = (jnp.asarray(directions) for directions in scene.rays())
    floor = planes[0].rotation[:, 2], planes[0].center
    images = solids.mirrored(*floor)
    images = images.replace(rgb=scene.reflectance * images.rgb)  # type: ignore[attr-defined]

    everything = jax.lax.stop_gradient(solids.joined(images))
    near = _near(everything.grown(scene.sample_angle), centers)
    pixels = jnp.nonzero(near, size=scene.capacity, fill_value=near.size)[0]
    rays = jnp.take(rays, pixels, axis=2, fill_value=-1).reshape(3, -1)
    ray = jnp.tile(jnp.take(centers, pixels, axis=1, fill_value=-1), len(SAMPLES))
    limit, reflects = (
        jnp.take(x, pixels, axis=1, fill_value=0).reshape(-1) for x in (back.depth, back.reflects)
    )
    count = len(solids.kinds)
    depth, ids = _nearest(solids, rays)
    image_depth, image_ids = _nearest(images, rays)
    seen = depth < limit
    mirrored = reflects & ~seen & (image_depth > limit)
    ids = jnp.where(mirrored, image_ids, ids)
    depth = jnp.where(mirrored, image_depth, depth)
    shown = (seen | mirrored) & jnp.isfinite(depth)
    points = times(jnp.where(shown, depth, 1), rays)
    drawn = facets(solids.joined(images), jnp.where(mirrored, ids + count, ids), points)
    along, over, cosine = drawn.weights(ray)
    shown &= cosine > 0
    place = plus(drawn.center, drawn.corners[0])
    place = place + times(along, drawn.corners[1] - drawn.corners[0]) + times(over, drawn.corners[2] - drawn.corners[0])
    places = jnp.concatenate([place, back.point], axis=1)
    owners = jnp.concatenate([ids, jnp.full(back.point.shape[1], NOBODY)])
    dark = shadowed(solids, lamp, scene.reach, *jax.lax.stop_gradient((places, owners)))
    colour = jnp.zeros_like(place)
    for light in (scene.head, lamp):
        image = light.mirrored(*floor)
        both = light.replace(  # type: ignore[attr-defined]
            position=jnp.where(mirrored[None], image.position[:, None], light.position[:, None]),
            direction=jnp.where(mirrored[None], image.direction[:, None], light.direction[:, None]),
        )
        first, second, third = (
            shine(both, scene.gloss, drawn.center + corner, normal, drawn.rgb)
            for corner, normal in zip(drawn.corners, drawn.normals, strict=True)
        )
        mixed = jnp.clip(first + times(along, second - first) + times(over, third - first), 0, 1)
        if light is lamp:
            mixed = jnp.where((dark[: ids.size] & ~mirrored)[None], 0, mixed)
        colour = jnp.minimum(colour + mixed, 1)
    weight = jnp.where(shown, 1 / len(SAMPLES), 0)
    added = times(weight, colour).reshape(3, len(SAMPLES), -1).sum(axis=1)
    covered = jnp.where(mirrored, 0, weight).reshape(len(SAMPLES), -1).sum(axis=0)
    behind_all = jnp.minimum(back.head + jnp.where(dark[None, ids.size :], 0, back.lamp), 1)
    free = jnp.ones(back.head.shape[1]).at[pixels].add(-covered, mode="drop")
    frame = (free[None] * behind_all).at[:, pixels].add(added, mode="drop")
    return 255 * jnp.minimum(frame, 1).T.reshape(*scene.shape, 3)


def _near(solids: Solids, rays: jax.Array) -> jax.Array:
    """Return which rays [3, N] meet any solid, as bool [N]."""
    shapes = zip(solids.kinds, solids.size, solids.rotation, solids.center, strict=True)
    return functools.reduce(jnp.logical_or, (meets(*shape, rays, jnp.inf) for shape in shapes))


def _nearest(solids: Solids, rays: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the depth at which rays [3, N] meet a solid first, infinite for those that meet none, and which one.

    One int32 holds both: the bits of the depth, of which the last six are replaced by the solid's number.
    """
    solids = jax.lax.stop_gradient(solids)
    best = jnp.full(rays.shape[1:], _EMPTY)
    for i, kind in enumerate(solids.kinds):
        depth = hit(kind, solids.size[i], solids.rotation[i], solids.center[i], rays)
        key = jax.lax.bitcast_convert_type(depth, jnp.int32) & -_MOST | i
        best = jnp.minimum(best, key)
    return jax.lax.bitcast_convert_type(best & -_MOST, jnp.float32), jnp.minimum(best & (_MOST - 1), len(solids.kinds) - 1)


def quantise(frame: jax.Array) -> jax.Array:
    """Return a frame in [0, 255] as uint8."""
    return jnp.round(jnp.clip(frame, 0, 255)).astype(jnp.uint8)
