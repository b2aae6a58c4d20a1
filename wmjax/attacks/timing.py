"""When an attack may touch the frame: the temporal modes of ARB4WM (arXiv 2606.16605) as boolean masks."""

import numpy as np

from wmjax.core.errors import InputError
from wmjax.core.naming import split_number

MODES = ("full", "first_half", "second_half", "sparse(n)")
"""Every frame; t < T/2; t >= T/2; every n-th frame, from the first."""


def mask(mode: str, steps: int) -> np.ndarray:
    """Return which of `steps` (T) agent steps are attacked, bool [T]; raises InputError for an unknown mode."""
    t = np.arange(steps)
    match mode:
        case "full":
            return np.ones(steps, bool)
        case "first_half":
            return 2 * t < steps
        case "second_half":
            return 2 * t >= steps
    name, every = split_number(mode)
    if name == "sparse" and every is not None:
        return t % every == 0
    raise InputError(f"unknown mode {mode!r:.80}; known: {', '.join(MODES)}, with n a whole number from 1")
