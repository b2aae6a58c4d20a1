"""What an agent reaches, and what an attack takes of it and does to its actions."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmjax.metrics.bootstrap import valid_mean

KAPPA = 0.1
"""L1 change of an action that counts as another action. Ours; the paper says a small threshold."""


def clean_performance(returns: ArrayLike) -> NDArray[np.float64]:
    """Return the mean over tasks of the mean return [...] of clean episodes [M, S, ...] (arXiv 2606.16605, eq. 12).

    NaN returns are left out; NaN where a task has no other.
    """
    return np.mean(valid_mean(returns, axis=1), axis=0)


def normalised_drop(clean: ArrayLike, attacked: ArrayLike) -> NDArray[np.float64]:
    """Return (clean - attacked) / (|clean| + 1) of mean returns, broadcast to one shape (arXiv 2605.23220, eq. 22).

    In units of the return, not of the score: the 1 is a point of reward. NaN where one of them is.
    """
    whole, part = np.asarray(clean, np.float64), np.asarray(attacked, np.float64)
    return (whole - part) / (np.abs(whole) + 1.0)


def flip_rate(changes: ArrayLike, *, kappa: float = KAPPA) -> NDArray[np.float64]:
    """Return the share [...] of frames whose action changed by more than `kappa` (arXiv 2605.23220, eq. 24).

    `changes` [..., T] are L1 distances of the taken action to that of the clean frame; NaN (a frame that was not
    attacked) is left out, and the rate is NaN where nothing else is there.
    """
    values = np.asarray(changes, np.float64)
    return valid_mean(np.where(np.isnan(values), np.nan, values > kappa), axis=-1)
