"""Shadows: whether a solid stands between a point and the lamp, within what MuJoCo's shadow map covers."""

import jax
import jax.numpy as jnp

from wmjax.render.light import Light
from wmjax.render.polylines import lines
from wmjax.render.solids import Solids, meets
from wmjax.render.vectors import apart_from_zero, dot, plus, times

NOBODY = -1


def shadowed(
    solids: Solids, threads: Solids | None, lamp: Light, reach: float, point: jax.Array, owner: jax.Array
) -> jax.Array:
    """Return which points [3, N] lie in shadow, as bool [N].

    A solid does not shadow points of its own (`owner` [N], its number, or that of a thread after all solids, or
    NOBODY): they face away from the lamp. `reach` is the half width of the shadow map: in m for a directional lamp,
    else per m of distance along the lamp's direction. Not to be differentiated.
    """
    across = plus(point, -lamp.position)
    distance = dot(lamp.direction, across)
    if lamp.directional:
        # From far above, so that one ray serves points at all depths.
        ray, limit = lamp.direction, distance
        origin = point - distance[None] * lamp.direction[:, None]
    else:
        ray, limit = across, jnp.float32(1)
        origin = lamp.position
    dark = jnp.zeros(distance.shape, bool)
    for i, kind in enumerate(solids.kinds):
        center = plus(-origin, solids.center[i]) if lamp.directional else solids.center[i] - origin
        dark |= meets(kind, solids.size[i], solids.rotation[i], center, ray, limit) & (owner != i)
    side = jnp.cross(lamp.direction, lamp.up)
    place = jnp.stack([dot(side, across), dot(lamp.up, across)])
    if not lamp.directional:
        place = times(1 / apart_from_zero(distance), jnp.stack([*place, distance]))[:2]
    if threads is not None:
        view = lines(threads, jnp.stack([side, lamp.up, lamp.direction]), lamp.position, not lamp.directional)
        dark |= jnp.any(view.cover(place, distance), axis=0) & (owner < len(solids.kinds))
    return dark & (jnp.abs(place[0]) < reach) & (jnp.abs(place[1]) < reach)
