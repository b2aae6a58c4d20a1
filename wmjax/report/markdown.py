"""The little Markdown that a report needs, with every foreign text made inert; and a report as one page of it."""

import re
from collections.abc import Iterable, Sequence

from wmjax.core.text import printable
from wmjax.report.document import Document, Facts, Figure, Part, Signature, Table, Value, Video

MISSING = "–"
"""What stands where there is no number: missing is never shown as zero."""


def plain(text: object) -> str:
    """Return `text` as one line of visible characters; whatever is not one (control, direction) becomes `?`."""
    return printable(" ".join(str(text).split()))


def code(name: object) -> str:
    """Return `name` as inline code: nothing in it can end the span, a table cell or the line."""
    return f"`{re.sub('[`|]', '?', plain(name)) or '?'}`"


def prose(text: object) -> str:
    """Return `text` as one line that renders as it reads: no markup, no HTML, no table cells."""
    line = plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#$!])", r"\\\1", line)


def block(text: str) -> str:
    """Return lines of text as a block of code that nothing in them can end."""
    lines = (printable(line) for line in text.split("\n"))
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return "\n".join([fence, *lines, fence])


def number(value: float, digits: int) -> str:
    """Return `value` with `digits` decimals; a dash for NaN."""
    return MISSING if value != value else f"{value:.{digits}f}"


def interval(low: float, high: float, digits: int) -> str:
    """Return `[low, high]`; `[–]` where the interval is undefined."""
    return f"[{MISSING}]" if low != low else f"[{low:.{digits}f}, {high:.{digits}f}]"


def value_texts(value: Value) -> tuple[str, str]:
    """Return number and interval as they are read: `0.417` and `[0.367, 0.467]`.

    The interval is empty where the number has none, and where it is the number itself and both are written in words.
    """
    if value.value != value.value:
        return MISSING, ""
    if value.words is None:
        shown = number(value.value, value.digits)
        return shown, interval(value.low, value.high, value.digits) if value.interval else ""
    shown, low, high = value.words
    if value.low != value.low:
        return shown, f"[{MISSING}]" if value.interval else ""
    return shown, "" if low == high == shown else f"[{low}, {high}]"


def count(amount: int, noun: str) -> str:
    """Return `1 episode`, `1,200 episodes`."""
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def bullets(lines: Iterable[str]) -> str:
    """Return a list of `lines`."""
    return "\n".join(f"- {line}" for line in lines)


def render(document: Document) -> str:
    """Return the report as Markdown; figures are PNG files, and videos files, beside it."""
    blocks = [f"# {prose(document.title)}", document.subtitle]
    for section in document.sections:
        blocks += [f"## {section.title}", *(text for part in section.parts for text in _blocks(part))]
    return "\n\n".join(text.strip("\n") for text in blocks if text) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, left: int) -> str:
    """Return a table whose first `left` columns are text; the others are numbers, set to the right."""
    rule = ["---"] * left + ["---:"] * (len(header) - left)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, rule, *rows])


def _blocks(part: Part) -> list[str]:
    match part:
        case Table():
            return [part.caption, table(part.header, ([*map(_cell, row)] for row in part.rows), left=part.left)]
        case Figure():
            return [f"![{prose(part.alt)}]({part.name}.png)", part.caption]
        case Video():
            return [f"[![{prose(part.alt)}]({part.poster})]({part.file})", part.caption]
        case Facts():
            return [bullets(f"**{name}**: {' '.join(lines)}" for name, lines in part.items)]
        case Signature():
            lines = [*((line, " ") for line in part.lines), ("Decision", " / ".join(part.decisions))]
            return [table(("Signature", " "), lines, left=2)]
    return [part]


def _cell(cell: str | Value) -> str:
    if isinstance(cell, str):
        return cell
    text = " ".join(filter(None, value_texts(cell)))
    return f"**{text}**" if cell.strong else text
