"""Interquartile mean over all runs of all tasks, and its stratified bootstrap (Agarwal et al., arXiv 2108.13264).

The middle half of the runs: one failed task moves it less than the mean, and one lucky seed less than the median.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmjax.core.errors import InputError
from wmjax.metrics.bootstrap import drawn_seeds


def iqm(scores: ArrayLike) -> NDArray[np.float64]:
    """Return the interquartile mean [...] over tasks and seeds of `scores` [M, S, ...].

    Of n scores the int(n / 4) lowest and as many of the highest are left out, as scipy.stats.trim_mean(x, 0.25) does.
    NaN scores are left out before; NaN where a task has no score: a mean over other tasks is another number.
    """
    values = _checked(scores)
    tasks, seeds, *rest = values.shape
    flat = values.reshape(tasks, seeds, math.prod(rest))
    means = _trimmed(flat.reshape(tasks * seeds, -1), np.ones((1, tasks * seeds), np.int64))[0]
    known = (~np.isnan(flat)).any(axis=1).all(axis=0) if tasks else np.zeros(flat.shape[2], bool)
    return np.where(known, means, np.nan).reshape(rest)


def resampled_iqms(scores: ArrayLike, rng: np.random.Generator, *, replicates: int = 2000) -> NDArray[np.float64]:
    """Return bootstrap interquartile means [R, ...] over tasks and seeds of `scores` [M, S, ...].

    Draws are those of resampled_means for an equal generator: tasks are strata, and one draw of seeds serves all
    trailing positions. Replicates are NaN where a task has one score or none, or none was drawn.
    """
    values = _checked(scores)
    tasks, seeds, *rest = values.shape
    flat = values.reshape(tasks, seeds, math.prod(rest))
    valid = ~np.isnan(flat)
    if not tasks or not seeds:
        return np.full((replicates, *rest), np.nan)
    draws = drawn_seeds(valid, rng, replicates)
    met = (draws.transpose(1, 0, 2) @ valid.astype(np.float64) > 0).all(axis=0)
    known = met & (valid.sum(axis=1) > 1).all(axis=0)
    means = _trimmed(flat.reshape(tasks * seeds, -1), draws.reshape(replicates, tasks * seeds).astype(np.int64))
    return np.where(known, means, np.nan).reshape(replicates, *rest)


def _checked(scores: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(scores, np.float64)
    if values.ndim < 2:
        raise InputError(f"scores must have the axes task and seed first, got shape {values.shape}")
    return values


def _trimmed(values: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the trimmed means [R, C] of `values` [E, C], each of which is there `counts` [R, E] times.

    A value's copies lie beside each other in the sorted sample, so the running count tells how many the cut leaves:
    one sort a column serves all replicates.
    """
    means = np.full((len(counts), values.shape[1]), np.nan)
    for column, one in enumerate(values.T):
        order = np.argsort(one)[: np.sum(~np.isnan(one))]  # NaN is sorted last
        if order.size:
            upto = np.cumsum(counts[:, order], axis=1)
            total = upto[:, -1:]
            cut = total // 4
            left = np.diff(np.clip(upto, cut, total - cut), axis=1, prepend=cut)
            amount = left.sum(axis=1)
            means[:, column] = np.where(amount > 0, left @ one[order] / np.maximum(amount, 1), np.nan)
    return means
