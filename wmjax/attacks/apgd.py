"""APGD for the L-inf ball (arXiv 2003.01690): momentum, and steps that are halved where the loss no longer rises.

The schedule of the checks is that of the published code; its memory of the best point makes the result monotone.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
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

INERTIA = 0.25
"""How much of the move before goes into the next one."""


@struct.dataclass
class State:
    """Between two steps."""

    image: jax.Array  #: [B, H, W, C] the iterate
    before: jax.Array  #: [B, H, W, C] the one that the last step left
    best: Incumbent
    uphill: jax.Array  #: [B, H, W, C] gradient at the best point
    size: jax.Array  #: [B] of the step
    value: jax.Array  #: [B] loss of the last step
    rises: jax.Array  #: [B] steps of this window that raised the loss
    checked: jax.Array  #: [B] the best loss at the last check
    halved: jax.Array  #: [B] the last check halved the step


@dataclass(frozen=True)
class APGD:
    """The published parameters, at any number of steps."""

    def init(self, problem: Problem, start: jax.Array) -> State:
        """Return the state at `start`; the first step is twice the budget."""
        best = no_incumbent(start)
        return State(
            image=start,
            before=start,
            best=best,
            uphill=jnp.zeros_like(start),
            size=2 * problem.eps,
            value=-best.value,  # the start is no rise
            rises=jnp.zeros(len(start), "int32"),
            checked=best.value,
            halved=jnp.ones(len(start), bool),  # nothing to compare the first window's best loss with
        )

    def step(
        self, loss: Loss, problem: Problem, state: State, t: jax.Array, steps: int
    ) -> tuple[State, tuple[jax.Array, jax.Array]]:
        """Return the state after step `t` of `steps`, and the loss and whether its gradient was zero before it."""
        value, gradient = value_and_grad(loss, state.image)
        zero = is_zero(gradient)
        uphill = select_examples(value > state.best.value, gradient, state.uphill)
        best = update_best(state.best, state.image, value)
        rises = state.rises + jnp.where(value > state.value, 1, 0)

        window = jnp.asarray(windows(steps))[t]
        check = window > 0
        # The loss rose in at most 75 % of the window; or never above its best, with a size kept at the last check.
        stuck = (4 * rises <= 3 * window) | (~state.halved & (best.value <= state.checked))
        back = check & stuck
        image, gradient = select_examples(back, (best.image, uphill), (state.image, gradient))
        size = jnp.where(back, state.size / 2, state.size)

        target = project(problem.bounds, image + per_pixel(size) * jnp.sign(gradient))
        inertia = jnp.where(t == 0, 0.0, INERTIA)
        moved = image + (1 - inertia) * (target - image) + inertia * (image - state.before)
        state = State(
            image=project(problem.bounds, moved),
            before=image,
            best=best,
            uphill=uphill,
            size=size,
            value=value,
            rises=jnp.where(check, 0, rises),
            checked=jnp.where(check, best.value, state.checked),
            halved=jnp.where(check, stuck, state.halved),
        )
        return state, (value, zero)

    def best(self, loss: Loss, problem: Problem, state: State) -> Incumbent:
        """Return the best point of all, after a forward pass on the last one."""
        del problem
        return update_best(state.best, state.image, loss(state.image))


def windows(steps: int) -> np.ndarray:
    """Return at each step the length of the window that a check closes there, 0 for no check, int32 [steps].

    The step `t` is that which evaluates the point after `t` moves. The first window has 22 % of the steps, each later
    one 3 % less than the one before, down to 6 %; for 100 steps the checks are at 22, 41, 57, 70, 80, 87, 93, 99.
    """
    length, less, least = (max(steps * percent // 100, 1) for percent in (22, 3, 6))
    found, t = np.zeros(steps, np.int32), length
    while t < steps:
        found[t] = length
        length = max(length - less, least)
        t += length
    return found
