"""How figures look: colours, markers and axes that read on white and on dark paper, without colour, and on a phone."""

from collections.abc import Iterable, Mapping

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.lines import Line2D

from wmjax.report.markdown import plain

INK = "#222222"
"""All text, and lines that matter; renderers replace it on dark paper, so nothing else may have this colour."""

RULE = "#80808066"
WIDTH = 6.5
"""Inches of every figure."""

SMALL, MEDIUM = 8.0, 9.0
"""Sizes of letters, in points."""

Style = tuple[str, str]
"""Colour and marker. Colours have a contrast of 3 or more to white and to #16181d."""

# After Okabe and Ito, whose colours stay apart under every common colour blindness; markers say the same once more.
_KNOWN: Mapping[str, Style] = {
    "random": ("#7A7A7A", "X"),
    "pda": ("#0072B2", "o"),
    "pea": ("#D55E00", "s"),
    "dca": ("#BF8700", "D"),
    "vsa": ("#009E73", "^"),
    "lda": ("#CC79A7", "v"),
}
_SPARE: tuple[Style, ...] = (
    ("#3D9BCB", "P"), ("#8064B8", "*"), ("#A0642A", "<"), ("#C8414F", ">"),
    ("#8A8A00", "p"), ("#3A8F4F", "h"), ("#6A6AC0", "d"), ("#7A7A7A", "H"),
)  # fmt: skip
_NAMED: tuple[Style, ...] = (
    ("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"),
    ("#BF8700", "v"), ("#3D9BCB", "P"), ("#8064B8", "X"), ("#A0642A", "*"),
)  # fmt: skip


def objective_styles(objectives: Iterable[str]) -> dict[str, Style]:
    """Return the style of every objective: the benchmark's have their own."""
    spare = [name for name in dict.fromkeys(objectives) if name not in _KNOWN]
    return dict(_KNOWN) | {name: _SPARE[i % len(_SPARE)] for i, name in enumerate(spare)}


def named_styles(names: Iterable[str]) -> dict[str, Style]:
    """Return the style of every victim or family; more than eight share them."""
    return {name: _NAMED[i % len(_NAMED)] for i, name in enumerate(dict.fromkeys(names))}


def blank(height: float) -> Figure:
    """Return an empty figure without paper, WIDTH by `height` inches."""
    with matplotlib.style.context("default"):
        figure = Figure(figsize=(WIDTH, height), facecolor="none")
    FigureCanvasAgg(figure)
    return figure


def axes_at(
    figure: Figure, left: float, top: float, wide: float, high: float, *, projection: str | None = None
) -> Axes:
    """Return axes whose left upper corner lies `left` and `top` inches from the figure's, `wide` by `high` inches."""
    width, height = figure.get_size_inches()
    place = (left / width, 1 - (top + high) / height, wide / width, high / height)
    with matplotlib.style.context("default"):
        axes: Axes = figure.add_axes(place, projection=projection, facecolor="none")
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=SMALL, labelcolor=INK, color=INK)
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom" or projection is not None)
        spine.set_color(RULE if projection is not None else INK)
    return axes


def write(
    figure: Figure, left: float, top: float, text: str, *, size: float = SMALL, bold: bool = False, letters: int = 200
) -> None:
    """Write a line of foreign text, its baseline `top` inches below the figure's upper edge."""
    width, height = figure.get_size_inches()
    weight = "bold" if bold else "normal"
    figure.text(
        left / width, 1 - top / height, drawable(text, letters), fontsize=size, fontweight=weight, color=INK,
        parse_math=False,
    )  # fmt: skip


def legend(figure: Figure, left: float, top: float, handles: Mapping[str, Line2D], *, columns: int) -> None:
    """Draw handles with their names in `columns`, from the left upper corner on."""
    width, height = figure.get_size_inches()
    found = figure.legend(
        list(handles.values()), [drawable(name, 24) for name in handles], loc="upper left", ncols=columns,
        bbox_to_anchor=(left / width, 1 - top / height), frameon=False, fontsize=SMALL + 0.5, labelcolor=INK,
        handlelength=2.4, borderpad=0, borderaxespad=0, columnspacing=1.4, labelspacing=0.35,
    )  # fmt: skip
    for text in found.get_texts():
        text.set_parse_math(False)


def legend_columns(names: Iterable[str]) -> int:
    """Return how many columns of a legend stand side by side."""
    longest = max(min(len(name), 24) for name in names)
    return max(1, int((WIDTH - 0.2) / (0.075 * longest + 0.56)))


def drawable(text: str, letters: int) -> str:
    """Return at most `letters` characters of `text`, those that the font lacks as `?`.

    Too long a text loses its middle: names of agents and tasks begin alike, and differ at their ends.
    """
    glyphs = get_font(findfont("DejaVu Sans")).get_charmap()
    shown = "".join(char if ord(char) in glyphs else "?" for char in plain(text))
    end = 3 * (letters - 1) // 4
    return shown if len(shown) <= letters else f"{shown[: letters - 1 - end]}…{shown[len(shown) - end :]}"
