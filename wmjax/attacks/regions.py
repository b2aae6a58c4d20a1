"""Where in the image an attack may act: patches, borders and colours, as shares of the budget."""

import numpy as np

from wmjax.core.call_syntax import parse_call
from wmjax.core.errors import InputError
from wmjax.core.numbers import whole

REGIONS = ("all", "patch(n)", "border(n)", "red", "green", "blue")
"""Everywhere; the n x n pixels at the centre; the n outermost pixels on each side; one channel."""


def region(name: str, size: int) -> np.ndarray:
    """Return where images of `size` x `size` pixels may change: float32 [H, W, 3] of 0 and 1.

    Raises InputError for an unknown name.
    """
    size = whole("size", size, 1)
    inside = np.zeros((size, size, 3), np.float32)
    match parse_call(name):
        case "all", ():
            return inside + 1
        case "patch", (int(n),) if 1 <= n <= size:
            first = (size - n) // 2
            inside[first : first + n, first : first + n] = 1
            return inside
        case "border", (int(n),) if 1 <= 2 * n <= size:
            inside[n : size - n, n : size - n] = 1
            return 1 - inside
        case "red" | "green" | "blue" as channel, ():
            inside[..., ("red", "green", "blue").index(channel)] = 1
            return inside
    raise InputError(
        f"unknown region {name!r:.80}; known: {', '.join(REGIONS)}, with n a whole number from 1 to {size}, "
        f"for border to {size // 2}"
    )
