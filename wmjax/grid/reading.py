"""From a TOML file to a study: what is wrong in it is said in one message that names file and field."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import cattrs

from wmjax.core.errors import InputError, unknown_name
from wmjax.core.files import check_file
from wmjax.core.settings import settings
from wmjax.grid.spec import Study

_STUDIES = Path(__file__).parent / "studies"
_FILE_BYTES = 1 << 16
_MOST_SEEDS = 100_000
_MOST_COMPLAINTS = 3


def shipped_studies() -> list[str]:
    """Return the names of the studies that come with wmjax."""
    return sorted(path.stem for path in _STUDIES.glob("*.toml"))


def read_study(name_or_path: str | Path = "quickstart", changes: Sequence[str] = ()) -> Study:
    """Return a shipped study by name, or that of a TOML file, with lines of TOML that `changes` fields put last.

    Raises InputError naming file and field.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml" and len(path.parts) == 1 and not path.exists():
        if str(name_or_path) not in shipped_studies():
            raise InputError(f"{unknown_name('study', str(name_or_path), shipped_studies())}; or a path of a TOML file")
        path = _STUDIES / f"{name_or_path}.toml"
    try:
        check_file(path, _FILE_BYTES)
        with path.open("rb") as file:
            data = tomllib.load(file)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # wrong TOML, wrong UTF-8, a number of thousands of digits
        raise InputError(f"{path}: not a TOML file ({error!s:.200})") from None
    data |= settings(changes, "seeds = [1, 2]")
    try:
        return parse_study(data)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def parse_study(data: dict[str, Any]) -> Study:
    """Return the study that the keys of a TOML file describe; raises InputError naming the field."""
    known = [field.name for field in fields(Study)]
    for key in data:
        if key not in known:
            raise unknown_name("field", key, known)
    for key in ("victims", "objectives", "budgets", "seeds"):
        if key not in data:
            raise InputError(f"{key} is missing; a study needs victims, objectives, budgets and seeds")
    if isinstance(data["seeds"], str):
        data = data | {"seeds": _seed_range(data["seeds"])}
    try:
        return _CONVERTER.structure(data, Study)
    except cattrs.BaseValidationError as error:
        lines = cattrs.transform_error(error, path="", format_exception=lambda exc, _: str(exc))
        # What __post_init__ says names its field itself; what a hook says needs the place behind the @.
        more = [f"and {len(lines) - _MOST_COMPLAINTS} more"] if len(lines) > _MOST_COMPLAINTS else []
        raise InputError("; ".join([*map(_place_first, lines[:_MOST_COMPLAINTS]), *more])) from None


def _place_first(line: str) -> str:
    message, _, place = line.rpartition(" @ ")
    place = place.lstrip(".")
    return f"{place}: {message}" if place else message


def _seed_range(text: str) -> list[int]:
    found = re.fullmatch(r"\s*(\d{1,10})\s*\.\.\s*(\d{1,10})\s*", text)
    first, last = (int(found[1]), int(found[2])) if found else (0, -1)
    if not 0 <= last - first < _MOST_SEEDS:
        raise InputError(f"seeds is {text!r:.80}; expected a list, or first..last with at most {_MOST_SEEDS} seeds")
    return list(range(first, last + 1))


def _number(value: Any, _: type) -> float:
    if isinstance(value, str) and (found := re.fullmatch(r"\s*(\d{1,9})\s*/\s*([1-9]\d{0,8})\s*", value)):
        return int(found[1]) / int(found[2])
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        raise ValueError(f'{_shown(value)} is not a number; write 0.04 or "8/255"')
    return float(value)


def _flag(value: Any, _: type) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{_shown(value)} is not true or false")
    return value


def _whole(value: Any, _: type) -> int:
    if type(value) is not int or value.bit_length() > 64:
        raise ValueError(f"{_shown(value)} is not a whole number below 2^64")
    return value


def _text(value: Any, _: type) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is not a text")
    return value


def _list(value: Any, kind: Any) -> tuple:
    if not isinstance(value, list):
        raise ValueError(f"{_shown(value)} is not a list")
    return tuple(_CONVERTER.structure(value, list[kind.__args__[0]]))


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except (ValueError, RecursionError):  # thousands of digits, or of tables within tables
        return f"a huge {type(value).__name__}"


_CONVERTER = cattrs.Converter()
_CONVERTER.register_structure_hook(float, _number)
_CONVERTER.register_structure_hook(int, _whole)
_CONVERTER.register_structure_hook(bool, _flag)
_CONVERTER.register_structure_hook(str, _text)
_CONVERTER.register_structure_hook_func(lambda kind: getattr(kind, "__origin__", None) is tuple, _list)
