"""What a batch of episodes gave."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import jax
import numpy as np

from wmjax.rollout.step import MEANS


@dataclass
class Trace:
    """One episode frame by frame, for videos and inspection."""

    frames: np.ndarray  #: uint8 [T, H, W, C], what the camera saw
    seen: np.ndarray  #: uint8 [T, H, W, C], what the agent saw, rounded
    reward: np.ndarray  #: float64 [T]
    action: np.ndarray  #: float32 [T, A]


@dataclass
class Rollout:
    """The outcome of a batch of episodes."""

    returns: np.ndarray  #: float64 [B], NaN where `nan`
    nan: np.ndarray  #: bool [B], a non-finite action or physics state appeared
    diagnostics: dict[str, np.ndarray]  #: float32 [B] each: means over attacked frames, NaN without any
    traces: dict[int, Trace] = field(default_factory=dict)  #: by position in the batch


def outcome(
    reward: np.ndarray,
    nan: np.ndarray,
    totals: Mapping[str, jax.Array],
    attacks: int,
    traces: dict[int, Trace],
) -> Rollout:
    """Return the outcome of episodes with `reward` [T, B], of which `nan` [B] broke; `totals` are over `attacks`."""
    diagnostics = {}
    for name in (*MEANS, "max_delta"):
        total = np.asarray(totals[name])
        mean = total if name == "max_delta" else total / np.float32(attacks or 1)
        diagnostics[name] = mean if attacks else np.full_like(total, np.nan)
    returns = np.sum(reward, axis=0, dtype=np.float64)
    return Rollout(np.where(nan, np.nan, returns), nan, diagnostics, traces)


def traces(parts: Sequence[np.ndarray], kept: Sequence[int]) -> dict[int, Trace]:
    """Return the traces of the episodes at the positions `kept`, given their parts [T, kept, ...] in Trace's order."""
    return {i: Trace(*(part[:, n] for part in parts)) for n, i in enumerate(kept)}
