"""The figure of a setting: a panel for a victim and task, a curve an attack; colour is objective, dashes optimizer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from wmjax.report.labels import budget_label, objective_label
from wmjax.report.plot_style import (
    INK,
    MEDIUM,
    RULE,
    SMALL,
    WIDTH,
    axes_at,
    blank,
    drawable,
    legend,
    legend_columns,
    objective_styles,
    write,
)
from wmjax.report.scores import Block, Estimate, Floats, Summary

_DASHES = ((0, ()), (0, (4.5, 1.8)), (0, (1, 1.3)), (0, (6, 1.5, 1, 1.5)))

# Inches: a panel's height by the number of columns, and the room around it.
_HIGH = {1: 3.1, 2: 1.9}
_TICKS, _TITLE, _FEET, _FOOT, _EDGE, _LINE = 0.42, 0.5, 0.3, 0.22, 0.14, 0.18
_LETTERS = 16  # of an objective's label beside its curve, at most


def draw_curves(parts: Sequence[tuple[Block, Summary]]) -> Figure:
    """Return one setting's figure: its blocks, one for each victim, with their summaries."""
    panels = [(task, block, summary) for block, summary in parts for task in range(len(block.tasks))]
    # Victims that share their tasks stand side by side, so that a row compares them.
    if len({block.tasks for block, _ in parts}) == 1:
        panels.sort(key=lambda panel: panel[0])
    across = min(len(panels), 2)
    objectives = dict.fromkeys(name for block, _ in parts for name in block.objectives)
    longest = max(len(objective_label(name)) for name in objectives)
    names = 0.26 + 0.08 * min(max(longest, 7), _LETTERS)
    wide, high = (WIDTH - _EDGE) / across - _TICKS - names, _HIGH[across]
    columns = dict.fromkeys(column for block, _ in parts for column in block.columns)
    dashes = {"none": _DASHES[0]} | {column: _DASHES[i % len(_DASHES)] for i, column in enumerate(columns)}
    told = {column: dashes[column] for column in columns if column != "none"}
    beside = legend_columns(told) if told else 1
    lines = _lines(parts[0][0])
    head = 0.36 + _LINE * (len(lines) + -(-len(told) // beside))

    figure = blank(head + -(-len(panels) // across) * (_TITLE + high + _FEET) + _FOOT)
    left = _EDGE + _TICKS
    write(figure, left, 0.24, "Return under attack", size=11, bold=True)
    for i, line in enumerate(lines):
        write(figure, left, 0.42 + i * _LINE, line, letters=90)
    handles = {name: Line2D([], [], color=INK, linewidth=1.6, linestyle=dash) for name, dash in told.items()}
    if handles:
        legend(figure, left, 0.31 + _LINE * len(lines), handles, columns=beside)
    for i, (task, block, summary) in enumerate(panels):
        row, column = divmod(i, across)
        x, y = left + column * (_TICKS + wide + names), head + row * (_TITLE + high + _FEET) + _TITLE
        axes = axes_at(figure, x, y, wide, high)
        _panel(axes, block, summary.curves[task], task, (wide, high), dashes, objective_styles(objectives))
        write(figure, x, y - 0.24, block.tasks[task], size=MEDIUM + 0.5, bold=True, letters=int((wide + 0.8) * 11))
        write(figure, x, y - 0.09, block.victim, letters=int((wide + 0.8) * 12))
        if column == 0:
            axes.set_ylabel("return", color=INK, fontsize=MEDIUM)
        if i + across >= len(panels):
            axes.set_xlabel("budget ε" + " (L∞, image in [0, 1])" * (across < 2), color=INK, fontsize=MEDIUM)
    return figure


def _panel(
    axes: Axes, block: Block, curves: Estimate, task: int, size: tuple[float, float], dashes: Mapping[str, Any],
    styles: Mapping[str, tuple[str, str]],
) -> None:  # fmt: skip
    """Draw the curves [N, K] of one task in return units, on axes of a `size` in inches."""
    scale, eps = block.scale[task], block.budgets
    wide, high = size
    ends: dict[str, float] = {}
    for i, (attack, label) in enumerate(zip(block.attacks, block.labels, strict=True)):
        colour, marker = styles[attack.objective]
        value, low, top = (scale * part[i] for part in (curves.value, curves.low, curves.high))
        axes.fill_between(eps, low, top, color=colour, alpha=0.16, linewidth=0)
        axes.plot(
            eps, value, color=colour, linestyle=dashes[label], linewidth=1.6,
            marker=marker, markersize=4.5, markeredgewidth=0, clip_on=False, zorder=3,
        )  # fmt: skip
        known = value[~np.isnan(value)]
        if known.size:
            ends[attack.objective] = min(ends.get(attack.objective, np.inf), float(known[-1]))
    clean = scale * curves.value[0, 0]
    if not np.isnan(clean):
        axes.axhline(clean, color=INK, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
        ends["clean"] = clean

    axes.set_xlim(0.0, eps[-1])
    axes.set_ylim(0.0, scale)
    axes.locator_params(axis="y", nbins=5)
    axes.grid(axis="y", color=RULE, linewidth=0.6)
    axes.tick_params(axis="x", length=3)
    axes.set_xticks(eps, _sparse(eps, 0.36 / wide * eps[-1]))
    places = _spread(np.array(list(ends.values())), 0.135 / high * scale, scale)
    near, far, beside = 1 + 0.08 / wide, 1 + 0.22 / wide, 1 + 0.26 / wide
    for (name, end), place in zip(ends.items(), places, strict=True):
        colour = INK if name == "clean" else styles[name][0]
        axes.plot((near, far), (end / scale, place / scale), color=colour, linewidth=1.1, transform=axes.transAxes,
                  clip_on=False)  # fmt: skip
        axes.text(
            beside, place / scale, drawable(objective_label(name), _LETTERS), fontsize=SMALL + 0.5, color=INK,
            va="center_baseline", parse_math=False, transform=axes.transAxes, clip_on=False,
        )  # fmt: skip


def _lines(block: Block) -> list[str]:
    """Return what all panels have in common; a setting that tells more than its mode takes a line of its own."""
    seeds = block.scores.shape[1]
    spread = f"mean of {seeds} seeds, band: 95 % bootstrap interval" if seeds > 1 else "one seed, so no interval"
    attacked = f"frames attacked: {block.name}"
    return [f"{attacked} · {spread}"] if block.name == block.setting.mode else [attacked, spread]


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
