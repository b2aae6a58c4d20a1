"""Values of a study's fields, from a file or from Python: any spelling of a number or a list becomes Python's own.

The same study has the same fields, hence the same rows and the same folder, whichever way it was written.
"""

import os
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, get_args, get_origin

import numpy as np

from wmjax.core.numbers import is_whole

_MOST_VALUES = 1_000_000
"""Values that one field may list: a study has no more episodes."""

_MOST_SEEDS = 100_000
"""Seeds of a range."""


def converted(name: str, given: Any, kind: Any) -> tuple[Any, list[str]]:
    """Return a field's value as its type `kind`, `tuple[str, ...]` or `int` for two, and what is wrong with it.

    A list may be any iterable but a set, whose order is nobody's choice; seeds also `"first..last"`.
    """
    if get_origin(kind) is not tuple:
        return _one(name, given, kind)
    if name == "seeds" and isinstance(given, str):
        return _seed_range(given)
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping | set | frozenset | os.PathLike):
        return given, [f"{name}: {_shown(given)} is not a list"]
    try:
        values = list(islice(given, _MOST_VALUES + 1))
    except TypeError:  # an array without axes
        return given, [f"{name}: {_shown(given)} is not a list"]
    if len(values) > _MOST_VALUES:
        return given, [f"{name} lists more than {_MOST_VALUES} values"]
    pairs = [_one(f"{name}[{i}]", value, get_args(kind)[0]) for i, value in enumerate(values)]
    return tuple(value for value, _ in pairs), [complaint for _, complaints in pairs for complaint in complaints]


def _one(place: str, given: Any, kind: type) -> tuple[Any, list[str]]:
    try:
        return _KINDS[kind](_scalar(given)), []
    except ValueError as error:
        return given, [f"{place}: {error}"]


def _scalar(given: Any) -> Any:
    """Return an array without axes, such as JAX's scalars, as NumPy's scalar."""
    return np.asarray(given)[()] if getattr(given, "ndim", None) == 0 else given


def _number(given: Any) -> float:
    if isinstance(given, str) and (found := re.fullmatch(r"\s*(\d{1,9})\s*/\s*([1-9]\d{0,8})\s*", given)):
        return int(found[1]) / int(found[2])
    if isinstance(given, np.floating) and not isinstance(given, float):
        given = float(str(given))  # float32(0.04) is 0.04, and not the 0.03999999910593033 nearby
    if not (is_whole(given) or isinstance(given, float)) or not abs(given) < 1e300:
        raise ValueError(f'{_shown(given)} is not a number; write 0.04 or "8/255"')
    return float(given) + 0.0  # -0 is 0


def _whole(given: Any) -> int:
    if not is_whole(given) or int(given).bit_length() > 64:
        raise ValueError(f"{_shown(given)} is not a whole number below 2^64")
    return int(given)


def _flag(given: Any) -> bool:
    if not isinstance(given, bool | np.bool_):
        raise ValueError(f"{_shown(given)} is not true or false")
    return bool(given)


def _text(given: Any) -> str:
    given = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(given, str):
        raise ValueError(f"{_shown(given)} is not a text")
    return str(given)


_KINDS = {float: _number, int: _whole, bool: _flag, str: _text}


def _seed_range(text: str) -> tuple[tuple[int, ...], list[str]]:
    found = re.fullmatch(r"\s*(\d{1,10})\s*\.\.\s*(\d{1,10})\s*", text)
    first, last = (int(found[1]), int(found[2])) if found else (0, -1)
    if not 0 <= last - first < _MOST_SEEDS:
        return (), [f"seeds is {text!r:.80}; expected a list, or first..last with at most {_MOST_SEEDS} seeds"]
    return tuple(range(first, last + 1)), []


def _shown(given: Any) -> str:
    try:
        return " ".join(f"{given!r:.80}".split())
    except (ValueError, RecursionError):  # thousands of digits, or of tables within tables
        return f"a huge {type(given).__name__}"
