"""How far attacks computed on one agent, the source, harm another (arXiv 2606.16605, section 6.4 and figure 7)."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmjax.core.errors import InputError
from wmjax.metrics.auc import nauc


class Transfer(NamedTuple):
    """Means of the transfer drop; each is NaN where a cell that belongs to it is missing."""

    matrix: NDArray[np.float64]  #: [..., source, target] over objectives (figure 7a)
    by_objective: NDArray[np.float64]  #: [..., O] over pairs (figure 7b)
    by_target: NDArray[np.float64]  #: [..., O, target] over sources (figure 7c)


def transfer_drop(budgets: ArrayLike, scores: ArrayLike, scale: float = 1.0) -> NDArray[np.float64]:
    """Return 1 - nAUC [...] of transferred attacks' `scores` [..., K] at `budgets` [K]; raises InputError as nauc."""
    return 1.0 - nauc(budgets, scores, scale)


def transfer(drops: ArrayLike, pairs: ArrayLike) -> Transfer:
    """Return the means of `drops` [..., source, target, O] over what `pairs` [source, target] says belongs to them.

    An agent attacked on itself is no transfer, so `pairs` is False on the diagonal, and where a source does not play a
    target's task. A NaN drop of a pair that belongs is missing, and makes its means NaN. Raises InputError where the
    shapes do not fit.
    """
    values, chosen = np.asarray(drops, np.float64), np.asarray(pairs, bool)
    if values.ndim < 3 or values.shape[-3:-1] != chosen.shape:
        raise InputError(f"pairs must have the axes source and target of drops, got {chosen.shape} and {values.shape}")
    where = np.broadcast_to(chosen[..., None], values.shape)

    def mean(axis: int | tuple[int, ...]) -> NDArray[np.float64]:
        amount = where.sum(axis=axis)
        total = np.sum(values, axis=axis, where=where)
        return np.where(amount > 0, total / np.maximum(amount, 1), np.nan)

    return Transfer(mean(-1), mean((-3, -2)), np.swapaxes(mean(-3), -1, -2))
