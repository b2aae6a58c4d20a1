"""Small multiples: panels of rows with a marker for each series, and of them the section with one panel a task."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from wmjax.report.comparison_groups import by_victim, lineups
from wmjax.report.condition import setting_order
from wmjax.report.document import Figure, Section, Table, Value
from wmjax.report.labels import OBJECTIVES, objective_label
from wmjax.report.markdown import code
from wmjax.report.plot_style import (
    INK,
    MEDIUM,
    RULE,
    SMALL,
    WIDTH,
    Style,
    axes_at,
    blank,
    drawable,
    legend,
    legend_columns,
    named_styles,
    write,
)
from wmjax.report.scores import Estimate, has_nauc
from wmjax.report.tables import Parts, estimate_value

_LETTERS = 16  # of a row's name, at most


def tasks_section(parts: Parts) -> Section | None:
    """Return the figure and the table of robustness by task; None with a single task."""
    settings = sorted({block.setting for block, _ in parts if not block.setting.transferred}, key=setting_order)
    own = [part for part in parts if settings and part[0].setting == settings[0]]
    tasks = sorted({task for block, _ in own for task in block.tasks})
    if len(tasks) < 2:
        return None
    block, every = own[0][0], lineups(own)
    panels: dict[str, dict[str, Estimate]] = {
        task: {one.name: one.on([task]).by_objective() for one in every if task in one.tasks} for task in tasks
    }
    lowest = {
        (task, name): int(np.nanargmin(e.value)) if not np.isnan(e.value).any() else -1
        for task, of in panels.items()
        for name, e in of.items()
    }
    who = "victim" if by_victim(own) else "family"
    what = "nAUC" if has_nauc(block) else "mean score"
    rows: list[tuple[str | Value, ...]] = [
        (
            code(task),
            code(name),
            *(estimate_value(e[i], 1.0, 3, strong=i == lowest[task, name]) for i in range(e.value.size)),
        )
        for task, of in panels.items()
        for name, e in of.items()
    ]
    labels = [objective_label(name) for name in block.objectives]
    figure = Figure(
        "tasks_figure",
        draw_panels(
            f"{what} by task", f"frames attacked: {block.name} · lines: 95 % intervals", labels, panels,
            named_styles(one.name for one in every), axis=what,
        ),
        f"{what} of every objective, one panel a task, a marker a {who}. The table holds the same numbers.",
    )  # fmt: skip
    caption = (
        f"{what} by task, frames attacked: {code(block.name)}; mean over optimizers, the lowest of a line is bold."
    )
    header = ("task", who, *map(short_text, block.objectives))
    return Section("Task by task", (figure, Table("tasks", header, tuple(rows), 2, caption)))


def short_text(objective: str) -> str:
    """Return the objective's label for a table; an unknown name as code."""
    return objective_label(objective) if objective in OBJECTIVES else code(objective)


def draw_panels(
    title: str, note: str, rows: Sequence[str], panels: Mapping[str, Mapping[str, Estimate]],
    styles: Mapping[str, Style], *, axis: str, connected: bool = False,
) -> Drawing:  # fmt: skip
    """Return panels of `rows` from top to bottom, in each a marker and its interval for every series' Estimate [row].

    `styles` says how each series looks, `axis` what the numbers in [0, 1] are; `connected` joins a series' markers.
    """
    longest = min(max(map(len, rows)), _LETTERS)
    names = 0.12 + 0.072 * longest
    across = min(len(panels), 3 if longest <= 8 else 2)
    series = [name for name in styles if any(name in of for of in panels.values())]
    beside = legend_columns(series)
    wide = (WIDTH - 0.2) / across - names - 0.15
    high = len(rows) * max(0.24, 0.075 * len(series) + 0.1)
    top = 0.5 + 0.18 * -(-len(series) // beside)
    figure = blank(top + -(-len(panels) // across) * (high + 0.6) + 0.2)
    write(figure, 0.14, 0.2, title, size=11, bold=True)
    write(figure, 0.14, 0.38, note, letters=95)
    line: Literal["-", "none"] = "-" if connected else "none"
    handles = {
        name: Line2D([], [], color=styles[name][0], marker=styles[name][1], markersize=5, linestyle=line)
        for name in series
    }
    legend(figure, 0.14, 0.46, handles, columns=beside)
    for i, (name, of) in enumerate(panels.items()):
        row, column = divmod(i, across)
        x, y = 0.1 + names + column * (wide + names + 0.15), top + row * (high + 0.6) + 0.3
        axes = axes_at(figure, x, y, wide, high)
        write(figure, x - names + 0.04, y - 0.07, name, size=MEDIUM, bold=True, letters=int((names + wide) * 11.5))
        axes.set_xlim(0.0, 1.0)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xticks([0.0, 0.5, 1.0] if wide < 2.5 else np.linspace(0.0, 1.0, 6))
        axes.grid(axis="x", color=RULE, linewidth=0.6)
        axes.set_yticks(range(len(rows)), [drawable(text, _LETTERS) for text in rows], parse_math=False)
        for k, one in enumerate(name for name in series if name in of):
            colour, marker = styles[one]
            place = np.arange(len(rows)) + 0.7 * ((k + 0.5) / len(of) - 0.5)
            axes.hlines(place, of[one].low, of[one].high, color=colour, linewidth=1.4, alpha=0.75)
            axes.plot(
                of[one].value, place, color=colour, marker=marker, markersize=4.5, clip_on=False, zorder=3,
                linestyle=line, linewidth=0.9,
            )  # fmt: skip
        if i + across >= len(panels):
            axes.set_xlabel(axis, color=INK, fontsize=SMALL + 0.5)
    return figure
