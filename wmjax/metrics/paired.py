"""The paired t test, one-sided: is a mean difference above zero beyond what the choice of seeds explains?"""

import math

import numpy as np
from numpy.typing import ArrayLike


def paired_p(differences: ArrayLike, *, least_sd: float = 0.0) -> float:
    """Return the chance of a mean this high or higher over `differences` [n], n > 1, if the true mean were 0.

    `least_sd` is taken where the sample's standard deviation is smaller: a few equal differences are no certainty.
    """
    values = np.asarray(differences, np.float64)
    mean, sd = float(values.mean()), max(float(values.std(ddof=1)), least_sd)
    if sd == 0.0:
        return 0.0 if mean > 0 else 1.0
    return t_tail(mean / sd * math.sqrt(values.size), values.size - 1)


def t_tail(t: float, freedom: int) -> float:
    """Return P(T > t) of Student's t with a whole number of degrees of freedom, to about 1e-15.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    angle = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    # Terms cos^odd, cos^(odd + 2) ... cos^(freedom - 2); each coefficient is the one before times (k - 1) / k.
    term, total = cosine**odd, 0.0
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine**2 * (k - 1) / k
    between = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return 0.5 * (1.0 - between)
