"""How much of an attack's harm a defense undoes, and what is left of that once the attacker knows the defense.

ARB4WM (arXiv 2606.16605), equation 16 and section 5.3.4.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmjax.metrics.bootstrap import valid_mean

FLOOR = 0.05
"""Share of the largest possible return. An attack that takes less has done no harm to speak of: the ratio would be one
of two noises. Ours; the paper names none."""


def recovery(
    clean: ArrayLike, attacked: ArrayLike, defended: ArrayLike, *, floor: float = FLOOR
) -> NDArray[np.float64]:
    """Return Rec = (defended - attacked) / (clean - attacked) (eq. 16) of mean scores, broadcast to one shape [...].

    0: no help, 1: the clean score restored, below 0: harm. `clean` and `attacked` are the scores without the defense,
    `defended` is that of the same attack with it; all are shares of the largest possible return. NaN, never 0, where
    one of them is, or where |clean - attacked| is below `floor`.
    """
    whole, part, rest = (np.asarray(score, np.float64) for score in (clean, attacked, defended))
    harm = whole - part
    known = (np.abs(harm) >= floor) & (harm != 0)
    return np.where(known, (rest - part) / np.where(known, harm, 1.0), np.nan)


def adaptive_gap(recovered: ArrayLike, adaptive: ArrayLike) -> NDArray[np.float64]:
    """Return mean Rec(non-adaptive) - mean Rec(adaptive), [...] of recoveries [..., N] (section 5.3.4).

    Large: the defense helps only while the attacker does not know it. The means go over what is known of both; NaN
    where nothing is.
    """
    plain, knowing = np.broadcast_arrays(np.asarray(recovered, np.float64), np.asarray(adaptive, np.float64))
    return valid_mean(plain - knowing, axis=-1)
