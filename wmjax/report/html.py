"""The report as one HTML page that opens from disk: it loads nothing, runs nothing, and holds all it shows."""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from wmjax.report.document import Document, Facts, Figure, Signature, Table, Value, Video
from wmjax.report.inline import block_html, inline_html, inline_text
from wmjax.report.markdown import value_texts
from wmjax.report.svg import inline_svg

_HERE = Path(__file__).parent
_KINDS = {Table: "table", Figure: "figure", Video: "video", Facts: "facts", Signature: "signature", str: "text"}


@dataclass(frozen=True)
class _Cell:
    """A cell of a table's body."""

    head: bool  #: it names its row
    rows: int  #: how many it spans
    column: str  #: what it is of
    shown: Markup
    number: bool = False
    interval: str = ""
    strong: bool = False


def render(document: Document, folder: Path) -> str:
    """Return the page; videos are read from `folder` and become part of it. Raises OSError where one is not there."""
    style = (_HERE / "page.css").read_text(encoding="utf-8")
    # Matplotlib's figures carry their own; whatever else comes to stand in the page, this one style is all that acts.
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "inline": inline_html, "blocks": block_html, "bare": inline_text, "cells": _cells, "svg": inline_svg,
    }  # fmt: skip
    environment.tests["prose"] = lambda table: table.left == len(table.header)
    titles = _anchors([section.title for section in document.sections])
    return environment.get_template("page.html").render(
        document=document,
        sections=list(zip(titles, document.sections, strict=True)),
        style=Markup(style),
        digest=digest,
        kind=lambda part: _KINDS[type(part)],
        data=lambda name: _data(folder / name),
    )


def _anchors(titles: Sequence[str]) -> list[str]:
    """Return a name for each heading's address, made of its plain letters and unlike the others."""
    found: list[str] = []
    for title in titles:
        name = re.sub(r"[^a-z0-9]+", "-", inline_text(title).lower()).strip("-")[:60] or "section"
        count = sum(re.fullmatch(rf"{name}(--\d+)?", other) is not None for other in found)
        found.append(f"{name}--{count + 1}" if count else name)
    return found


def _cells(table: Table) -> list[list[_Cell]]:
    """Return the body; in the columns of text, a cell is one with an equal one above it, as those left of it are."""
    merging = min(table.left, len(table.header) - 1)
    heads = 1 if table.left == len(table.header) else table.left
    rows: list[list[_Cell]] = []
    for i, row in enumerate(table.rows):
        cells = []
        for j, cell in enumerate(row):
            same = range(i, len(table.rows)) if j < merging else range(i, i + 1)
            span = next((k - i for k in same if table.rows[k][: j + 1] != row[: j + 1]), len(same))
            if not (j < merging and i and table.rows[i - 1][: j + 1] == row[: j + 1]):
                cells.append(_cell(cell, j < heads, max(span, 1), table.header[j], number=j >= table.left))
        rows.append(cells)
    return rows


def _cell(cell: str | Value, head: bool, rows: int, column: str, *, number: bool) -> _Cell:
    if isinstance(cell, str):
        return _Cell(head, rows, column, inline_html(cell), number)
    shown, interval = value_texts(cell)
    return _Cell(head, rows, column, Markup.escape(shown), True, interval, cell.strong)


def _data(file: Path) -> str:
    kind = {".mp4": "video/mp4", ".png": "image/png"}[file.suffix]
    return f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"
