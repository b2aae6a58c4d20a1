"""A frame, as MuJoCo's OpenGL draws it: four samples a pixel tell what is seen, and its centre how that is lit."""

import jax
import jax.numpy as jnp

from wmjax.render.light import shine
from wmjax.render.scene import Poses, Scene, behind, posed
from wmjax.render.shadow import NOBODY, shadowed
from wmjax.render.solids import Solids, hit
from wmjax.render.surfaces import surface

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
    mirrored, mirrored_lights = solids.mirrored(*floor), [light.mirrored(*floor) for light in (scene.head, lamp)]
    mirrored = mirrored.replace(rgb=scene.reflectance * mirrored.rgb)

    behind_all = _key(back.depth, _IDS - 1)
    nearest = _nearest(solids, rays)
    seen = nearest < behind_all
    nearest = jnp.where(seen, nearest, _EMPTY)
    first, first_share, is_first = _foremost(nearest)
    second, second_share, _ = _foremost(jnp.where(is_first, _EMPTY, nearest))
    image = _nearest(mirrored, rays)
    image = jnp.where(back.reflects & ~seen & (image > behind_all), image, _EMPTY)
    third, third_share, _ = _foremost(image)

    ids = jnp.concatenate([first, second])
    shown = surface(solids, ids, jnp.concatenate([centers, centers], axis=1))
    places = jnp.concatenate([shown.point, back.point], axis=1)
    owners = jnp.concatenate([ids, jnp.full_like(first, NOBODY)])
    dark = jax.lax.stop_gradient(shadowed(solids, lamp, scene.reach, places, owners))
    dark_solids, dark_back = dark[: ids.size], dark[ids.size :]
    head, lit = (shine(light, scene.gloss, shown.point, shown.normal, shown.rgb) for light in (scene.head, lamp))
    solid = jnp.minimum(head + jnp.where(dark_solids[None], 0, lit), 1)
    reflected = surface(mirrored, third, centers)
    reflection = sum(
        shine(light, scene.gloss, reflected.point, reflected.normal, reflected.rgb) for light in mirrored_lights
    )
    backdrop = jnp.minimum(back.head + jnp.where(dark_back[None], 0, back.lamp), 1)
    total = first_share[None] * solid[:, : first.size] + second_share[None] * solid[:, first.size :]
    total += (1 - first_share - second_share)[None] * backdrop + third_share[None] * reflection
    return 255 * jnp.minimum(total, 1).T.reshape(*scene.shape, 3)


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


def _foremost(keys: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return who is foremost among a pixel's samples [N], its share of them [N], and which samples [S, N] it has."""
    best = jnp.min(keys, axis=0)
    hits = (keys < _EMPTY) & (keys & (_IDS - 1) == (best & (_IDS - 1))[None])
    return jnp.where(best < _EMPTY, best & (_IDS - 1), 0), jnp.mean(hits.astype(jnp.float32), axis=0), hits


def quantise(frame: jax.Array) -> jax.Array:
    """Return a frame in [0, 255] as uint8."""
    return jnp.round(jnp.clip(frame, 0, 255)).astype(jnp.uint8)
