"""Whole numbers from users, who may give Python's or NumPy's."""

from typing import Any

import numpy as np

from wmjax.core.errors import InputError


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number: Python's or NumPy's, no float such as 2.0, and not True or False."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64)


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return a whole number as Python's; raises InputError, which names it, for others, and out of its range."""
    if not is_whole(value) or value < least or (most is not None and value > most):
        until = "" if most is None else f" to {most}"
        raise InputError(f"{name} is {value!r:.80}; allowed: a whole number from {least}{until}")
    return int(value)
