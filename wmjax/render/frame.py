"""A frame, as MuJoCo's OpenGL draws it: four samples a pixel tell what is seen, and its centre how that is lit."""

import jax
import jax.numpy as jnp

from wmjax.render.facets import facets
from wmjax.render.light import shine
from wmjax.render.scene import SAMPLES, Poses, Scene, behind, posed
from wmjax.render.shadow import NOBODY, shadowed
from wmjax.render.solids import Solids, hit
from wmjax.render.vectors import plus, times

_IDS = 64
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

    keys, images_keys = _nearest(solids, rays), _nearest(images, rays)
    limit = _key(back.depth, _IDS - 1)
    seen = (keys < limit) & (keys < _EMPTY)
    mirrored = back.reflects & ~seen & (images_keys > limit) & (images_keys < _EMPTY)
    keys = jnp.where(seen, keys, images_keys)
    shown = seen | mirrored

    pixels = jnp.nonzero(jnp.any(shown, axis=0), size=scene.capacity, fill_value=shown.shape[1])[0]
    count = len(scene.kinds) if scene.string is None else len(scene.kinds) + scene.string.pieces
    keys, shown, mirrored = (jnp.take(x, pixels, axis=1, fill_value=0).reshape(-1) for x in (keys, shown, mirrored))
    ids = jnp.clip(keys & (_IDS - 1), 0, count - 1)
    depth = jax.lax.bitcast_convert_type(keys & -_IDS, jnp.float32)
    points = times(jnp.where(shown, depth, 1), jnp.take(rays, pixels, axis=2, fill_value=-1).reshape(3, -1))
    ray = jnp.tile(jnp.take(centers, pixels, axis=1, fill_value=-1), rays.shape[1])
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


def _key(depth: jax.Array, identity: int) -> jax.Array:
    """Return one int32 for depth and identity, ordered by depth: its bits, of which the last six name who it is."""
    return jax.lax.bitcast_convert_type(depth, jnp.int32) & -_IDS | identity


def _nearest(solids: Solids, rays: jax.Array) -> jax.Array:
    """Return the keys [S, N] of the solids that rays [3, S, N] meet first."""
    solids = jax.lax.stop_gradient(solids)
    best = jnp.full(rays.shape[1:], _EMPTY)
    for i, kind in enumerate(solids.kinds):
        depth = hit(kind, solids.size[i], solids.rotation[i], solids.center[i], rays)
        best = jnp.minimum(best, _key(depth, i))
    return best


def quantise(frame: jax.Array) -> jax.Array:
    """Return a frame in [0, 255] as uint8."""
    return jnp.round(jnp.clip(frame, 0, 255)).astype(jnp.uint8)
