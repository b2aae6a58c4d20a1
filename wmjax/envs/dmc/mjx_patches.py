"""Parts of MJX that are replaced while a program is traced: the contacts of capsules, and a loop of the solver."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from mujoco.mjx._src import collision_driver, math, solver
from mujoco.mjx._src.collision_primitive import collider
from mujoco.mjx._src.collision_types import Collision, GeomInfo
from mujoco.mjx._src.types import GeomType

_PARALLEL = 1e-10
"""Squared sine of the angle up to which two axes count as parallel in single precision."""

_lock = threading.RLock()


@contextmanager
def applied() -> Iterator[None]:
    """Let programs that are traced inside use the replacements."""
    with _lock:
        originals = collision_driver._COLLISION_FUNC, solver._while_loop_scan
        collision_driver._COLLISION_FUNC, solver._while_loop_scan = originals[0] | _CONTACTS, _while_loop
        try:
            yield
        finally:
            collision_driver._COLLISION_FUNC, solver._while_loop_scan = originals


def _while_loop(condition: Callable[[Any], jax.Array], body: Callable[[Any], Any], start: Any, limit: int) -> Any:
    """Search the line until every world of a batch is done: MJX, which allows for gradients, always takes 50 steps.

    The condition has the limit in it. Physics is twice as fast, with the same result.
    """
    return jax.lax.while_loop(condition, body, start)


@collider(ncon=1)
def _sphere_capsule(sphere: GeomInfo, capsule: GeomInfo) -> Collision:
    """Return distance, position and frame of the contact between a sphere and a capsule.

    MJX adds 1e-6 to the axis' squared length before it divides by it, which moves the contacts of short capsules such
    as those of ball_in_cup's cup by as much as .01 mm.
    """
    axis = capsule.mat[:, 2] * capsule.size[1]
    x = jnp.clip(axis @ (sphere.pos - capsule.pos) / (axis @ axis), -1, 1)
    normal, length = math.normalize_with_norm(capsule.pos + axis * x - sphere.pos)
    distance = length - sphere.size[0] - capsule.size[0]
    return distance, sphere.pos + normal * (sphere.size[0] + distance / 2), math.make_frame(normal)


@collider(ncon=1)
def _capsule_capsule(first: GeomInfo, second: GeomInfo) -> Collision:
    """Return distance, position and frame of the contact between two capsules, as MuJoCo's C code has them.

    Where the axes cross, as those of hopper's torso and thigh do in their plane, C takes the normal of that plane for
    the contact's, and the capsules pass through each other; MJX takes the direction of its rounding errors.
    """
    axis1, axis2 = first.mat[:, 2] * first.size[1], second.mat[:, 2] * second.size[1]
    between = first.pos - second.pos
    a, b, c = axis1 @ axis1, -axis1 @ axis2, axis2 @ axis2
    u, v = -axis1 @ between, axis2 @ between
    normal = jnp.cross(axis1, axis2)
    det = normal @ normal  # a c - b b without the cancellation
    parallel = det <= _PARALLEL * a * c
    det = jnp.where(parallel, 1.0, det)

    # The closest points of the two lines, then moved into the segments; x is in half lengths from the centre.
    x1 = jnp.where(parallel, 0.0, (c * u - b * v) / det)
    end1 = jnp.clip(x1, -1, 1)
    x2 = jnp.where((x1 == end1) & ~parallel, (a * v - b * u) / det, (v - b * end1) / c)
    end2 = jnp.clip(x2, -1, 1)
    crossed = (x1 == end1) & (x2 == end2) & ~parallel
    x1 = jnp.where((x2 == end2) & ~parallel, end1, jnp.clip((u - b * end2) / a, -1, 1))
    point1, point2 = first.pos + axis1 * x1, second.pos + axis2 * end2

    # Inside both segments the normal is that of both axes: exact, where the points' difference is all rounding error.
    height = between @ normal
    normal = jnp.where(crossed, jnp.where(height > 0, -normal, normal), point2 - point1)
    normal, length = math.normalize_with_norm(normal)
    distance = jnp.where(crossed, jnp.abs(height) / jnp.where(crossed, length, 1.0), length)
    distance -= first.size[0] + second.size[0]
    position = point1 + normal * (first.size[0] + distance / 2)
    return distance, position, math.make_frame(normal)


_CONTACTS = {
    (GeomType.SPHERE, GeomType.CAPSULE): _sphere_capsule,
    (GeomType.CAPSULE, GeomType.CAPSULE): _capsule_capsule,
}
