"""Threads: chains of capsules so thin that, seen from afar, each is a line of some width in a picture."""

import jax
import jax.numpy as jnp
from flax import struct

from wmjax.render.solids import Solids
from wmjax.render.vectors import dot, times


@struct.dataclass
class Lines:
    """P lines in a picture."""

    start: jax.Array
    """[2, P]."""
    step: jax.Array
    """[2, P], from start to end."""
    width: jax.Array
    """[P], half of it."""
    depth: jax.Array
    """[P]."""

    def cover(self, place: jax.Array, limit: jax.Array) -> jax.Array:
        """Return which lines, of less depth than `limit` [N], cover the places [2, N] of the picture: bool [P, N]."""
        x, y = (place[k][None] - self.start[k][:, None] for k in range(2))
        step = self.step[:, :, None]
        inverse = 1 / jnp.maximum(self.step[0] ** 2 + self.step[1] ** 2, 1e-12)
        part = jnp.clip((x * step[0] + y * step[1]) * inverse[:, None], 0, 1)
        x, y = x - part * step[0], y - part * step[1]
        return (x * x + y * y < (self.width**2)[:, None]) & (self.depth[:, None] < limit[None])


def lines(threads: Solids, axes: jax.Array, origin: jax.Array, perspective: bool) -> Lines:
    """Return the picture of P threads for an eye at `origin` [3] with `axes` [3, 3] (rows): right, up and ahead."""
    half = threads.size[:, 1:2] * threads.rotation[:, :, 2]
    ends = [axes @ (threads.center + sign * half - origin[None]).T for sign in (-1, 1)]
    depth, width = (ends[0][2] + ends[1][2]) / 2, threads.size[:, 0]
    start, end = (picture[:2] / picture[2:] if perspective else picture[:2] for picture in ends)
    return Lines(start, end - start, width / depth if perspective else width, depth)


def nearest(threads: Solids, view: Lines, rays: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the depth at which rays [3, N], of depth 1, meet a thread, infinite where none, and which one.

    `view` is the threads' picture for an eye at the origin that looks along -z.
    """
    covered = view.cover(rays[:2], jnp.full(rays.shape[1], jnp.inf))
    numbers = jnp.arange(len(threads.kinds))
    index = jnp.min(jnp.where(covered, numbers[:, None], len(threads.kinds)), axis=0)
    found, index = index < len(threads.kinds), jnp.minimum(index, len(threads.kinds) - 1)
    table = jnp.concatenate([threads.center, threads.rotation[:, :, 2], threads.size[:, :2]], axis=1)
    center, axis, (radius, half) = jnp.split(table.T[:, index], (3, 6))
    rr, cr, ar, ac = dot(rays, rays), dot(center, rays), dot(axis, rays), dot(axis, center)
    across = jnp.maximum(rr - ar * ar, 1e-9)
    height = jnp.clip((cr * ar - ac * rr) / across, -half, half)
    t = (cr + height * ar) / rr
    gap = times(t, rays) - center - times(height, axis)
    depth = t - jnp.sqrt(jnp.maximum(radius * radius - dot(gap, gap), 0) / across)
    return jnp.where(found, depth, jnp.inf), index
