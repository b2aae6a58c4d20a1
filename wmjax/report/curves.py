"""The figure of a setting: a panel for a victim and task, a curve an attack; colour is objective, dashes optimizer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.lines import Line2D

from wmjax.report.markdown import plain
from wmjax.report.names import budget_label, objective_label
from wmjax.report.scores import Block, Estimate, Floats, Summary

# Okabe and Ito's colours stay apart under every common colour blindness; the markers say the same once more.
_STYLE = {
    "random": ("#777777", "X"),
    "pda": ("#0072B2", "o"),
    "pea": ("#D55E00", "s"),
    "dca": ("#E69F00", "D"),
    "vsa": ("#009E73", "^"),
    "lda": ("#CC79A7", "v"),
}
_SPARE = (
    ("#56B4E9", "P"), ("#222222", "*"), ("#8C510A", "<"), ("#5E3C99", ">"),
    ("#8A8A00", "p"), ("#B2182B", "h"), ("#1B7837", "d"), ("#4D4D9F", "H"),
)  # fmt: skip
_DASHES = ((0, ()), (0, (4.5, 1.8)), (0, (1, 1.3)), (0, (6, 1.5, 1, 1.5)))
_INK, _FAINT, _RULE = "#222222", "#6B6B6B", "#DDDDDD"

# Inches: a panel by the number of columns, and the room around it.
_PANEL = {1: (5.6, 3.1), 2: (3.0, 2.3), 3: (2.0, 1.75), 4: (1.6, 1.5)}
_TICKS, _TITLE, _FEET, _HEAD, _LINE, _FOOT, _EDGE = 0.42, 0.48, 0.3, 0.5, 0.17, 0.22, 0.2
_LETTERS = 16  # of an objective's label beside its curve, at most


def draw_curves(file: Path, parts: Sequence[tuple[Block, Summary]]) -> None:
    """Write one setting's figure as PNG: its blocks, one for each victim, with their summaries."""
    panels = [(task, block, summary) for block, summary in parts for task in range(len(block.tasks))]
    # Victims that share their tasks stand side by side, so that a row compares them.
    aligned = 1 < len(parts) <= 4 and len({block.tasks for block, _ in parts}) == 1
    if aligned:
        panels.sort(key=lambda panel: panel[0])
    across = len(parts) if aligned else min(len(panels), 3)
    wide, high = _PANEL[across]
    objectives = dict.fromkeys(name for block, _ in parts for name in block.objectives)
    longest = max(len(objective_label(name)) for name in objectives)
    names = 0.26 + 0.08 * min(max(longest, 7), _LETTERS)
    head = _HEAD + (_LINE if _is_long(parts[0][0]) else 0.0)
    width = _EDGE + across * (_TICKS + wide + names)
    height = head + -(-len(panels) // across) * (_TITLE + high + _FEET) + _FOOT
    unknown = [name for name in objectives if name not in _STYLE]
    styles = _STYLE | {name: _SPARE[i % len(_SPARE)] for i, name in enumerate(unknown)}
    columns = dict.fromkeys(column for block, _ in parts for column in block.columns)
    dashes = {"none": _DASHES[0]} | {column: _DASHES[i % len(_DASHES)] for i, column in enumerate(columns)}

    with matplotlib.style.context("default"):
        figure = Figure(figsize=(width, height), facecolor="white")
        FigureCanvasAgg(figure)
        for i, (task, block, summary) in enumerate(panels):
            row, column = divmod(i, across)
            x = _EDGE + column * (_TICKS + wide + names) + _TICKS
            y = height - head - row * (_TITLE + high + _FEET) - _TITLE - high
            axes = figure.add_axes((x / width, y / height, wide / width, high / height))
            _panel(axes, block, summary.curves[task], task, styles, dashes)
            if column == 0:
                axes.set_ylabel("return", color=_FAINT, fontsize=9)
            if i + across >= len(panels):
                axes.set_xlabel("budget ε" + " (L∞, image in [0, 1])" * (across < 3), color=_FAINT, fontsize=9)
        _head(figure, parts, [(column, dashes[column]) for column in columns if column != "none"])
        figure.savefig(file, dpi=min(200.0, 30000.0 / height))


def _panel(
    axes: Axes, block: Block, curves: Estimate, task: int, styles: Mapping[str, Any], dashes: Mapping[str, Any]
) -> None:
    """Draw the curves [N, K] of one task in return units."""
    scale, eps = block.scale[task], block.budgets
    ends: dict[str, float] = {}
    for i, (attack, label) in enumerate(zip(block.attacks, block.labels, strict=True)):
        colour, marker = styles[attack.objective]
        value, low, high = (scale * part[i] for part in (curves.value, curves.low, curves.high))
        axes.fill_between(eps, low, high, color=colour, alpha=0.13, linewidth=0)
        axes.plot(
            eps, value, color=colour, linestyle=dashes[label], linewidth=1.6,
            marker=marker, markersize=4.5, markeredgecolor="white", markeredgewidth=0.6, clip_on=False, zorder=3,
        )  # fmt: skip
        known = value[~np.isnan(value)]
        if known.size:
            ends[attack.objective] = min(ends.get(attack.objective, np.inf), float(known[-1]))
    clean = scale * curves.value[0, 0]
    if not np.isnan(clean):
        axes.axhline(clean, color=_INK, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
        ends["clean"] = clean

    axes.set_xlim(0.0, eps[-1])
    axes.set_ylim(0.0, scale)
    axes.locator_params(axis="y", nbins=5)
    axes.grid(axis="y", color=_RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=8, labelcolor=_FAINT)
    axes.tick_params(axis="x", length=3, color=_FAINT)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_FAINT)
    width, height = axes.figure.get_size_inches() * axes.get_position().size  # type: ignore[union-attr]
    axes.set_xticks(eps, _sparse(eps, 0.36 / width * eps[-1]))
    letters = int((width + 0.8) * 12)
    for text, size, weight, up in ((block.tasks[task], 9.5, "bold", 0.22), (block.victim, 8.0, "normal", 0.09)):
        axes.text(
            0.0, 1.0 + up / height, _drawable(text, letters), transform=axes.transAxes, fontsize=size,
            fontweight=weight, color=_INK if weight == "bold" else _FAINT, parse_math=False,
        )  # fmt: skip
    places = _spread(np.array(list(ends.values())), 0.135 / height * scale, scale)
    near, far, beside = 1 + 0.08 / width, 1 + 0.22 / width, 1 + 0.26 / width
    for (name, end), place in zip(ends.items(), places, strict=True):
        style: dict[str, Any] = {
            "color": _INK if name == "clean" else styles[name][0],
            "transform": axes.transAxes,
            "clip_on": False,
        }
        axes.plot((near, far), (end / scale, place / scale), linewidth=0.7, **style)
        label = _drawable(objective_label(name), _LETTERS)
        axes.text(beside, place / scale, label, fontsize=8.5, va="center_baseline", parse_math=False, **style)


def _head(figure: Figure, parts: Sequence[tuple[Block, Summary]], optimizers: Sequence[tuple[str, Any]]) -> None:
    """Write what all panels have in common above them."""
    width, height = figure.get_size_inches()
    block = parts[0][0]
    seeds = block.scores.shape[1]
    spread = f"mean of {seeds} seeds, band: 95 % bootstrap interval" if seeds > 1 else "one seed, so no interval"
    left = (_EDGE + _TICKS) / width
    figure.text(left, 1 - 0.25 / height, "Return under attack", fontsize=11, fontweight="bold", color=_INK)
    attacked = "frames attacked: " + _drawable(block.name, int(10 * width) if _is_long(block) else 24)
    lines = [attacked, spread] if _is_long(block) else [f"{attacked} · {spread}"]
    for i, line in enumerate(lines):
        at = 1 - (0.44 + i * _LINE) / height
        figure.text(left, at, line, fontsize=8.5, color=_FAINT, parse_math=False)
    handles = [
        Line2D([], [], color=_INK, linewidth=1.6, linestyle=dash, label=_drawable(column, 24))
        for column, dash in optimizers
    ]
    legend = figure.legend(
        handles=handles, loc="upper right", bbox_to_anchor=(1 - 0.1 / width, 1 - 0.1 / height), ncols=len(handles),
        frameon=False, fontsize=8.5, labelcolor=_INK, handlelength=2.6, borderpad=0, columnspacing=1.4,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)


def _is_long(block: Block) -> bool:
    """Whether the setting's name takes a line of its own: it tells more than when frames are attacked."""
    return block.name != block.setting.mode


def _sparse(eps: Floats, gap: float) -> list[str]:
    """Return the budgets' labels, from the right; one that would come closer than `gap` to the next stays empty."""
    labels = [""] * eps.size
    edge = np.inf
    for k in reversed(range(eps.size)):
        if eps[k] <= edge - gap:
            labels[k], edge = budget_label(eps[k]), eps[k]
    return labels


def _spread(targets: Floats, gap: float, top: float) -> Floats:
    """Return positions in [0, top], at least `gap` apart, in the order of `targets` and closest to them in squares."""
    order = np.argsort(targets, kind="stable")
    steps = gap * np.arange(len(order))
    # Distances from an evenly spaced ladder must not fall: isotonic regression, by pooling adjacent violators.
    pools: list[list[float]] = []
    for value in targets[order] - steps:
        pools.append([value])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    places = np.empty(len(order))
    ladder = np.array([np.mean(pool) for pool in pools for _ in pool])
    places[order] = np.clip(ladder, 0.0, top - steps[-1:]) + steps
    return places


def _drawable(text: str, letters: int) -> str:
    """Return at most `letters` characters of `text`, those that the font lacks as `?`."""
    glyphs = get_font(findfont("DejaVu Sans")).get_charmap()
    shown = "".join(char if ord(char) in glyphs else "?" for char in plain(text))
    return shown if len(shown) <= letters else shown[: letters - 1] + "…"
