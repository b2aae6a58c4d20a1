"""A table as CSV, for programs: all decimals, and nothing that a spreadsheet would take for a formula."""

import csv
import io
import re

from wmjax.report.document import Table, Value
from wmjax.report.inline import inline_text

_FORMULA = re.compile(r"(^|[;,|\t\"'])(\s*)(?=[=+\-@＝＋－＠])")
"""Where a formula could begin: a cell's start, or what some spreadsheets take for one."""


def render(table: Table) -> str:
    """Return the table; a number with an interval takes the columns NAME, NAME low and NAME high, NaN is empty."""
    spans = [False] * len(table.header)
    for row in table.rows:
        spans = [span or (isinstance(cell, Value) and cell.interval) for span, cell in zip(spans, row, strict=True)]
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    header = []
    for name, span in zip(table.header, spans, strict=True):
        text = _inert(inline_text(name))
        header += [text, f"{text} low", f"{text} high"] if span else [text]
    writer.writerow(header)
    for row in table.rows:
        writer.writerow([item for cell, span in zip(row, spans, strict=True) for item in _items(cell, span)])
    return out.getvalue()


def _items(cell: str | Value, span: bool) -> list[str | float]:
    if isinstance(cell, str):
        return [_inert(inline_text(cell)), *([""] * 2 * span)]
    numbers = (cell.value, cell.low, cell.high) if span else (cell.value,)
    return ["" if x != x else float(x) for x in numbers]


def _inert(text: str) -> str:
    """Return the text with an apostrophe before whatever could begin a formula."""
    return _FORMULA.sub(r"\1\2'", text)
