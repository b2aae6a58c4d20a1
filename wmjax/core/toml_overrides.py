"""Single settings that a command's `--set` gives: lines of TOML."""

import tomllib
from collections.abc import Sequence
from typing import Any

from wmjax.core.errors import InputError
from wmjax.core.text import as_text


def toml_overrides(lines: Sequence[str], example: str) -> dict[str, Any]:
    """Return what the lines set, of one field the last; raises InputError for what is no line such as `example`."""
    values: dict[str, Any] = {}
    for line in lines:
        try:
            found = tomllib.loads(as_text(line))
            repr(found)
            values |= found
        except (ValueError, RecursionError) as error:  # wrong TOML, a number too long to be printed
            raise InputError(f"set: {line!r:.80} is not a line such as {example!r} ({error!s:.200})") from None
    return values
