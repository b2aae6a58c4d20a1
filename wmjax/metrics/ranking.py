"""The overall ranking of victims by several dimensions of robustness (arXiv 2606.16605, section 7 and figure 10)."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmjax.core.errors import InputError

WEIGHTS = (0.55, 0.15, 0.15, 0.15)
"""Of full-frame nAUC, first-half nAUC, sparse(2) nAUC and the recovery by input defenses."""


class Ranking(NamedTuple):
    """Where each victim stands; NaN throughout where no ranking can be made."""

    mapped: NDArray[np.float64]  #: [..., V, D] dimensions on the scale of the first; NaN for one that does not count
    score: NDArray[np.float64]  #: [..., V] their weighted mean


def ranking(dimensions: ArrayLike, weights: ArrayLike = WEIGHTS) -> Ranking:
    """Return the ranking of V victims by `dimensions` [..., V, D], higher meaning more robust, full-frame nAUC first.

    Each dimension is min-max normalised over the victims, then mapped to the observed range of the first one, and the
    weighted mean taken. A dimension counts only where all victims have it (no NaN) and differ in it: else its min-max
    is undefined. The weights of those that count are divided by their sum. There is no ranking, so all is NaN, where
    the first dimension does not count, which gives the scale: with one victim, or equal or missing full-frame nAUC.
    Raises InputError where weights are not D positive numbers.
    """
    values, share = np.asarray(dimensions, np.float64), np.asarray(weights, np.float64)
    if values.ndim < 2 or share.shape != values.shape[-1:] or not np.all(share > 0):
        raise InputError(f"weights must be positive, one a dimension, got {share.tolist()} for shape {values.shape}")
    low, high = values.min(axis=-2, keepdims=True), values.max(axis=-2, keepdims=True)
    counts = high > low  # False where NaN
    counts &= counts[..., :1]
    unit = (values - low) / np.where(counts, high - low, np.nan)
    mapped = low[..., :1] + unit * (high - low)[..., :1]
    weight = np.where(counts, share, 0.0)
    total = weight.sum(axis=-1)
    score = np.sum(np.where(counts, mapped, 0.0) * weight, axis=-1) / np.where(total > 0, total, np.nan)
    return Ranking(mapped, score)
