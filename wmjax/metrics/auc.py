"""Area under the return-over-budget curve, plain and normalised (arXiv 2606.16605, equations 13 to 15)."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmjax.core.errors import InputError


def auc(budgets: ArrayLike, scores: ArrayLike) -> NDArray[np.float64]:
    """Return the area [...] under `scores` [..., K] over increasing `budgets` [K], by the trapezoidal rule (eq. 13).

    A NaN score (a missing cell) makes its area NaN. Raises InputError where fewer than two budgets are given, where
    they do not increase, or where the last axis of `scores` has another length.
    """
    eps, values = np.asarray(budgets, np.float64), np.asarray(scores, np.float64)
    if eps.ndim != 1 or eps.size < 2 or not np.all(np.diff(eps) > 0):
        raise InputError(f"budgets must be two or more increasing numbers, got {eps.tolist()}")
    if values.ndim < 1 or values.shape[-1] != eps.size:
        raise InputError(f"the last axis of scores must hold the {eps.size} budgets, got shape {values.shape}")
    return 0.5 * np.sum((values[..., 1:] + values[..., :-1]) * np.diff(eps), axis=-1)


def nauc(budgets: ArrayLike, scores: ArrayLike, scale: float = 1.0) -> NDArray[np.float64]:
    """Return auc / ((eps_K - eps_0) * scale) (eq. 14): [...], in [0, 1] for scores [..., K] in [0, scale].

    `scale` is the benchmark's constant C (1000 for DMC returns, 1 for success), not the agent's own clean return.
    The mean of eq. 15, over tasks and optimizers, is an ordinary mean over axes of the result. Raises InputError as
    `auc` does, and where `scale` is not positive and finite.
    """
    if not 0.0 < scale < math.inf:
        raise InputError(f"scale must be positive and finite, got {scale}")
    eps = np.asarray(budgets, np.float64)
    area = auc(eps, scores)
    return area / ((eps[-1] - eps[0]) * scale)
