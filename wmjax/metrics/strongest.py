"""How often each objective is the one that hurts most (arXiv 2606.16605, table 3)."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

_TIE = 1e-9
"""Means of equal scores may differ by rounding."""


def strongest_counts(robustness: ArrayLike) -> NDArray[np.float64]:
    """Return for each objective the number of pairs that it is strongest in: [..., O] of nAUC [..., P, O].

    P are pairs of victim and task, nAUC the mean over optimizers. The strongest objective is that of the lowest nAUC;
    objectives that tie share the pair in equal parts (the paper does not say what it does). A pair that lacks an
    objective (NaN) is open, and no one's: the counts sum to the number of decided pairs.
    """
    values = np.asarray(robustness, np.float64)
    decided = ~np.isnan(values).any(axis=-1, keepdims=True)
    known = np.where(decided, values, 0.0)
    lowest = known <= known.min(axis=-1, keepdims=True) + _TIE
    return np.sum(decided * lowest / lowest.sum(axis=-1, keepdims=True), axis=-2)
