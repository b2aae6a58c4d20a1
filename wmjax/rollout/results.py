"""What a batch of episodes gave."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import jax
import numpy as np
from flax import struct

from wmjax.rollout.diagnostics import MEANS


@struct.dataclass
class Trace:
    """One episode frame by frame, for videos and inspection."""

    frames: np.ndarray  #: uint8 [T, H, W, C], what the camera saw
    seen: np.ndarray  #: uint8 [T, H, W, C], what the agent saw, rounded
    reward: np.ndarray  #: float64 [T]
    action: np.ndarray  #: float32 [T, A]
    attacked: np.ndarray  #: bool [T]
    diagnostics: dict[str, np.ndarray]  #: float32 [T] each, of a frame: MEANS and max_delta; zero where not attacked


@dataclass
class Rollout:
    """The outcome of a batch of episodes."""

    returns: np.ndarray  #: float64 [B], NaN where `nan`
    nan: np.ndarray  #: bool [B], a non-finite action or physics state appeared
    attacked: np.ndarray  #: int [B], frames attacked
    diagnostics: dict[str, np.ndarray]  #: float32 [B] each: means over attacked frames, NaN without any
    traces: dict[int, Trace] = field(default_factory=dict)  #: by position in the batch


def outcome(
    reward: np.ndarray,
    nan: np.ndarray,
    totals: Mapping[str, jax.Array],
    attacked: jax.Array,
    traces: dict[int, Trace],
) -> Rollout:
    """Return the outcome of episodes with `reward` [T, B], of which `nan` [B] broke; `totals` are over `attacked` [B].

    All of the totals but the sums of MEANS are taken as they are.
    """
    count = np.asarray(attacked)
    over, none = np.maximum(count, 1).astype(np.float32), count == 0
    values = {name: np.asarray(total) / (over if name in MEANS else 1) for name, total in totals.items()}
    diagnostics = {name: np.where(none, np.nan, value).astype(np.float32) for name, value in values.items()}
    returns = np.sum(reward, axis=0, dtype=np.float64)
    return Rollout(np.where(nan, np.nan, returns), nan, count, diagnostics, traces)


def traces(
    parts: Sequence[Trace], kept: Sequence[int], join: Callable[[Sequence[np.ndarray]], np.ndarray]
) -> dict[int, Trace]:
    """Return the traces of the episodes at the positions `kept`, by these; `parts` hold them for some time each.

    The leaves of a part have the axes [kept, ...] or [T, kept, ...]; `join` makes [T, kept, ...] of them all.
    """
    if not kept:
        return {}
    whole = jax.tree.map(lambda *leaves: join(leaves), *parts)
    return {i: jax.tree.map(lambda leaf, n=n: leaf[:, n], whole) for n, i in enumerate(kept)}
