"""The pixels that solids come near to: only in them are solids looked for."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from wmjax.render.planes import Plane
from wmjax.render.polylines import Lines, lines
from wmjax.render.solids import Solids, meets

Parts = tuple[Solids, Solids | None]
"""Solids, and threads that are numbered after them."""
_AHEAD = np.array([[1, 0, 0], [0, 1, 0], [0, 0, -1]], np.float32)
"""The camera's axes: right, up and ahead."""


def mirrored(parts: Parts, plane: Plane) -> Parts:
    """Return the images of solids and threads in a plane."""
    solids, threads = parts
    at = plane.rotation[:, 2], plane.center
    return solids.mirrored(*at), None if threads is None else threads.mirrored(*at)


def picture(threads: Solids) -> Lines:
    """Return the threads as the camera sees them."""
    return lines(threads, jnp.asarray(_AHEAD), jnp.zeros(3), True)


def near(parts: Parts, angle: float, rays: jax.Array) -> jax.Array:
    """Return which rays [3, N] come at least within `angle`, in rad, of any solid, as bool [N]."""
    solids, threads = parts
    solids, threads = jax.lax.stop_gradient((solids.grown(angle), None if threads is None else threads.grown(angle)))
    shapes = zip(solids.kinds, solids.size, solids.rotation, solids.center, strict=True)
    found = functools.reduce(jnp.logical_or, (meets(*shape, rays, jnp.float32(jnp.inf)) for shape in shapes))
    if threads is not None:
        found |= jnp.any(picture(threads).cover(rays[:2], jnp.full(rays.shape[1], jnp.inf)), axis=0)
    return found
