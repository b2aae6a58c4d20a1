"""Stratified bootstrap over paired seeds: tasks are the strata, one draw of seeds serves all attacks and budgets."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmjax.core.errors import InputError


def valid_mean(values: ArrayLike, axis: int | tuple[int, ...] | None = None) -> NDArray[np.float64]:
    """Return the mean of the entries of `values` that are not NaN; NaN, never 0, where there are none."""
    array = np.asarray(values, np.float64)
    valid = ~np.isnan(array)
    count = valid.sum(axis=axis)
    total = np.where(valid, array, 0.0).sum(axis=axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def resampled_means(scores: ArrayLike, rng: np.random.Generator, *, replicates: int = 2000) -> NDArray[np.float64]:
    """Return bootstrap means over seeds: [R, M, ...] for `scores` [M, S, ...], M tasks by S seeds.

    Each replicate draws, for every task on its own, as many of its seeds as it has, with replacement, and uses that
    draw at all trailing positions (attacks, budgets): any statistic of one replicate's means is paired.
    NaN scores are left out of the means. Seeds without any score in a task are not drawn there. Replicates are NaN
    where one score or none exists: a single episode says nothing about its spread.
    """
    values = np.asarray(scores, np.float64)
    if values.ndim < 2:
        raise InputError(f"scores must have the axes task and seed first, got shape {values.shape}")
    tasks, seeds, *rest = values.shape
    if not seeds:
        return np.full((replicates, tasks, *rest), np.nan)
    flat = values.reshape(tasks, seeds, math.prod(rest))
    valid = ~np.isnan(flat)
    draws = drawn_seeds(valid, rng, replicates).transpose(1, 0, 2)
    count = draws @ valid.astype(np.float64)
    total = draws @ np.where(valid, flat, 0.0)
    known = (count > 0) & (valid.sum(axis=1) > 1)[:, None, :]
    means = np.where(known, total / np.maximum(count, 1.0), np.nan)
    return means.transpose(1, 0, 2).reshape(replicates, tasks, *rest)


def drawn_seeds(valid: NDArray[np.bool_], rng: np.random.Generator, replicates: int) -> NDArray[np.float64]:
    """Return how often each replicate draws each seed: [R, M, S], for `valid` [M, S, C] scores at C positions.

    For every task on its own as many seeds as it has, with replacement; a seed without any score is not drawn.
    """
    drawable = valid.any(axis=2)
    amount = drawable.sum(axis=1)
    odds = drawable / np.maximum(amount, 1)[:, None]
    return rng.multinomial(amount, odds, size=(replicates, len(valid))).astype(np.float64)


def interval(replicates: ArrayLike, *, confidence: float = 0.95) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the percentile interval (low, high), each [...], of a statistic's `replicates` [R, ...].

    NaN replicates (no valid episode was drawn) are left out; the interval is NaN where nothing else is there.
    """
    values = np.asarray(replicates, np.float64)
    if not 0.0 < confidence < 1.0:
        raise InputError(f"confidence must lie between 0 and 1, got {confidence}")
    undefined = np.isnan(values).all(axis=0)
    tail = (1.0 - confidence) / 2.0
    low, high = np.nanquantile(np.where(undefined, 0.0, values), [tail, 1.0 - tail], axis=0)
    return np.where(undefined, np.nan, low), np.where(undefined, np.nan, high)
