"""What a report consists of before it is Markdown, HTML, CSV or LaTeX: sections of text, tables, figures and videos."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from matplotlib.figure import Figure as Drawing


@dataclass(frozen=True)
class Value:
    """A number in a table, with its 95 % interval where it has one; NaN is shown as a dash, never as zero."""

    value: float
    low: float = math.nan
    high: float = math.nan
    digits: int = 3  #: decimals shown; files for programs hold all
    interval: bool = False  #: an interval belongs to it, which may be undefined
    strong: bool = False  #: the one of its group to look at first
    words: tuple[str, str, str] | None = None  #: how value, low and high are written where not as decimals


@dataclass(frozen=True)
class Table:
    """Rows of cells; a text is inline Markdown in which foreign text is inert (see markdown.code, markdown.prose)."""

    name: str  #: of its files, unique in the report: letters, digits, _ and -
    header: tuple[str, ...]
    rows: tuple[tuple[str | Value, ...], ...]
    left: int  #: how many columns, from the left, are text
    caption: str = ""  #: what the numbers are, inline Markdown


@dataclass(frozen=True)
class Figure:
    """A drawing; its colours are readable on white and, but for black ink, on dark paper."""

    name: str  #: of its files, unique in the report: letters, digits, _ and -
    drawing: Drawing
    alt: str  #: what it shows, in words, for who cannot see it
    caption: str = ""


@dataclass(frozen=True)
class Video:
    """A file beside the report, with a picture of it."""

    file: str
    poster: str
    alt: str
    caption: str = ""


@dataclass(frozen=True)
class Facts:
    """Statements, each of one or more lines under its name; inline Markdown."""

    items: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Signature:
    """Lines to fill in by hand, and decisions to choose from; plain text."""

    lines: tuple[str, ...]
    decisions: tuple[str, ...]


Part = str | Table | Figure | Video | Facts | Signature
"""A text is Markdown: paragraphs, lists and fenced code."""


@dataclass(frozen=True)
class Section:
    """A heading of inline Markdown, and what stands under it."""

    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str  #: plain text
    subtitle: str  #: inline Markdown
    sections: tuple[Section, ...]

    def parts(self) -> Iterator[Part]:
        """Yield every part, in reading order."""
        for section in self.sections:
            yield from section.parts
