"""When an attack may touch a frame: modes known beforehand as masks, and rules that decide online, as data.

ARB4WM (arXiv 2606.16605) has the halves and `sparse`. The rules follow the strategically timed attack (arXiv
1703.06748), which strikes where the agent's preference among its actions is strong; the gaps of continuous actors, and
the budget of frames, are ours.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from wmjax.core.call_syntax import parse_call
from wmjax.core.errors import InputError
from wmjax.core.numbers import whole

GAPS = ("none", "policy", "value")
"""What a rule weighs frames by: nothing; `policy_gap` or `value_gap` of the agent's response to the clean frame."""

MODES = (
    "full",
    "first_half",
    "second_half",
    "sparse(n)",
    "sparse(n,offset)",
    "frames(first,last)",
    "policy_gap(x)",
    "value_gap(x)",
    "policy_top(k)",
    "value_top(k)",
)
"""Every frame; t < T/2; t >= T/2; every n-th frame, from the first or from `offset`; first <= t <= last; frames whose
gap is at least x; at most k frames, those that have a large gap beside the frames before them."""


@dataclass(frozen=True)
class Timing:
    """When an episode of T agent steps is attacked."""

    mask: np.ndarray  #: bool [T], where it may be
    gap: str = "none"  #: of GAPS
    threshold: float = -np.inf  #: frames with a smaller gap are left alone
    most: int = np.iinfo(np.int32).max  #: frames that are attacked at most


def timing(mode: str, steps: int) -> Timing:
    """Return when `mode` attacks an episode of `steps` (T) agent steps.

    Raises InputError for an unknown mode, and for steps below 1.
    """
    steps = whole("steps", steps, 1)
    t, every = np.arange(steps), np.ones(steps, bool)
    match parse_call(mode):
        case "full", ():
            return Timing(every)
        case "first_half", ():
            return Timing(2 * t < steps)
        case "second_half", ():
            return Timing(2 * t >= steps)
        case "sparse", (int(n),) if n > 0:
            return Timing(t % n == 0)
        case "sparse", (int(n), int(offset)) if n > offset >= 0:
            return Timing(t % n == offset)
        case "frames", (int(first), int(last)) if 0 <= first <= last < steps:
            return Timing((first <= t) & (t <= last))
        case "policy_gap" | "value_gap" as rule, (threshold,) if threshold >= 0:
            return Timing(every, rule.removesuffix("_gap"), threshold=float(threshold))
        case "policy_top" | "value_top" as rule, (int(most),) if most > 0:
            return Timing(every, rule.removesuffix("_top"), most=most)
    raise InputError(
        f"unknown mode {mode!r:.80}; known: {', '.join(MODES)}, with n and k whole numbers from 1, offset below n, "
        f"frames from 0 to {steps - 1}, and x a number from 0"
    )


def strike(
    gap: jax.Array,
    gaps: jax.Array,
    used: jax.Array,
    t: jax.Array,
    steps: jax.Array,
    threshold: jax.Array,
    most: jax.Array,
) -> jax.Array:
    """Return which examples an online rule attacks at time `t` of an episode of `steps` (T), bool [B].

    `gap` [B] is that of the frame; the first t of `gaps`, [B, T] or longer, are those of the frames before it; `used`
    [B] counts the frames attacked so far. With r of the budget `most` [B] and m of the frames left, a frame is attacked
    if its gap is among the largest r / m of those seen so far: a budget is used up by the end, if the threshold [B]
    lets it. A gap that is not a number is never attacked.
    """
    before = jnp.arange(gaps.shape[1])[None] < t
    larger = jnp.sum((gaps > gap[:, None]) & before, axis=1)
    left = jnp.minimum(most, steps) - used  # a budget above T changes nothing, and could overflow
    return (gap >= threshold) & (larger * (steps - t) < left * (t + 1))
