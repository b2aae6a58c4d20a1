"""FAB for the L-inf norm (arXiv 1907.02044): the nearest image beyond a boundary, which is where the loss is zero.

It is for losses with such a boundary, and looks beyond the ball for it: the result is what it found, projected.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from wmjax.attacks.linf_ball import (
    Incumbent,
    Loss,
    Problem,
    no_incumbent,
    per_pixel,
    project,
    select_examples,
    update_best,
)
from wmjax.attacks.pgd import is_zero, value_and_grad

BIAS = 0.1
"""The largest weight of the step from the clean image, which keeps the iterate near it."""

OVERSHOOT = 1.05
"""How far beyond the linearised boundary a step goes."""

BACK = 0.9
"""How much of its distance from the clean image an iterate beyond the boundary keeps."""


@struct.dataclass
class State:
    """Between two steps."""

    image: jax.Array  #: [B, H, W, C] the iterate
    nearest: Incumbent  #: the image beyond the boundary nearest to the clean one; its value is minus the distance


@dataclass(frozen=True)
class FAB:
    """The published parameters. A step costs a forward and backward pass, and a forward pass where it leads."""

    def init(self, problem: Problem, start: jax.Array) -> State:
        """Return the state at `start`."""
        del problem
        return State(start, no_incumbent(start))

    def step(
        self, loss: Loss, problem: Problem, state: State, t: jax.Array, steps: int
    ) -> tuple[State, tuple[jax.Array, jax.Array]]:
        """Return the state after step `t`, and the loss and whether its gradient was zero before it."""
        del t, steps
        image, clean = state.image, problem.image
        value, gradient = value_and_grad(loss, image)
        # The boundary of the linearised loss, as seen from the iterate and from the clean image.
        lead = jnp.nan_to_num(-value)
        ours = to_plane(image, gradient, lead)
        theirs = to_plane(clean, gradient, lead - jnp.sum(gradient * (clean - image), axis=(1, 2, 3)))
        far, away = (jnp.maximum(_size(x), 1e-8) for x in (ours, theirs))
        bias = per_pixel(jnp.minimum(far / (far + away), BIAS))
        moved = (1 - bias) * (image + OVERSHOOT * ours) + bias * (clean + OVERSHOOT * theirs)
        moved = jnp.clip(moved, 0.0, 1.0)
        beyond = loss(moved) > 0
        nearest = update_best(state.nearest, moved, jnp.where(beyond, -_size(moved - clean), -jnp.inf))
        image = select_examples(beyond, clean + BACK * (moved - clean), moved)
        # Where nothing was found yet, the iterate is on its way to it.
        nearest = select_examples(jnp.isfinite(nearest.value), nearest, no_incumbent(image))
        return State(image, nearest), (value, is_zero(gradient))

    def best(self, loss: Loss, problem: Problem, state: State) -> Incumbent:
        """Return the nearest image beyond the boundary, or else the iterate, projected onto the ball."""
        image = project(problem.bounds, state.nearest.image)
        return Incumbent(image, loss(image))


def to_plane(image: jax.Array, normal: jax.Array, rise: jax.Array) -> jax.Array:
    """Return the smallest shift, in the L-inf norm, that raises `normal . image` by `rise` and stays in [0, 1].

    `image` and `normal` are [B, H, W, C], `rise` is [B]. Where no shift raises it so far, it is the one that comes
    nearest. Each pixel moves by the same amount, or as far as it can.
    """
    signs = jnp.sign(normal) * jnp.sign(per_pixel(rise))
    room = jnp.where(signs > 0, 1 - image, image)
    shape = len(image), -1
    order = jnp.argsort(room.reshape(shape), axis=1)
    steep = jnp.take_along_axis(jnp.abs(normal).reshape(shape), order, axis=1)
    ends = jnp.take_along_axis(room.reshape(shape), order, axis=1)
    # With the first k pixels at their ends, an amount a raises it by  done[k] + a * left[k].
    none = jnp.zeros((len(image), 1), image.dtype)
    done = jnp.concatenate([none, jnp.cumsum(steep * ends, axis=1)], axis=1)
    left = jnp.concatenate([jnp.cumsum(steep[:, ::-1], axis=1)[:, ::-1], none], axis=1)
    raised = done[:, 1:] + ends * left[:, 1:]
    want = jnp.abs(rise)[:, None]
    k = jnp.sum(raised <= want, axis=1, keepdims=True)
    done, left = (jnp.take_along_axis(x, k, axis=1) for x in (done, left))
    amount = jnp.where(left > 0, (want - done) / jnp.where(left > 0, left, 1.0), 1.0)
    return signs * jnp.clip(jnp.nan_to_num(per_pixel(amount[:, 0])), 0.0, room)


def _size(shift: jax.Array) -> jax.Array:
    return jnp.max(jnp.abs(shift), axis=(1, 2, 3))
