"""The little Markdown that a report needs, with every foreign text made inert."""

import re
from collections.abc import Iterable, Sequence

MISSING = "–"
"""What stands where there is no number: missing is never shown as zero."""


def plain(text: object) -> str:
    """Return `text` as one line of visible characters; whatever is not one (control, direction) becomes `?`."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(str(text).split()))


def code(name: object) -> str:
    """Return `name` as inline code: nothing in it can end the span, a table cell or the line."""
    return f"`{re.sub('[`|]', '?', plain(name)) or '?'}`"


def prose(text: object) -> str:
    """Return `text` as one line that renders as it reads: no markup, no HTML, no table cells."""
    line = plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#$!])", r"\\\1", line)


def number(value: float, digits: int) -> str:
    """Return `value` with `digits` decimals; a dash for NaN."""
    return MISSING if value != value else f"{value:.{digits}f}"


def interval(low: float, high: float, digits: int) -> str:
    """Return `[low, high]`; `[–]` where the interval is undefined."""
    return f"[{MISSING}]" if low != low else f"[{low:.{digits}f}, {high:.{digits}f}]"


def count(amount: int, noun: str) -> str:
    """Return `1 episode`, `1,200 episodes`."""
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, left: int) -> str:
    """Return a table whose first `left` columns are text; the others are numbers, set to the right."""
    rule = ["---"] * left + ["---:"] * (len(header) - left)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, rule, *rows])


def bullets(lines: Iterable[str]) -> str:
    """Return a list of `lines`."""
    return "\n".join(f"- {line}" for line in lines)
