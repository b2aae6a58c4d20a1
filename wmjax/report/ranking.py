"""The overall ranking of victims with its radar plot (arXiv 2606.16605, section 7 and figure 10)."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from wmjax.metrics import interval, ranking, valid_mean
from wmjax.metrics.ranking import WEIGHTS
from wmjax.report.comparison_groups import Lineup, by_victim, common_tasks, lineups
from wmjax.report.condition import Setting, setting_order
from wmjax.report.defense_recovery import Defended, defended
from wmjax.report.document import Figure, Part, Section, Table, Value
from wmjax.report.markdown import code
from wmjax.report.plot_style import INK, RULE, SMALL, WIDTH, axes_at, blank, legend, legend_columns, named_styles, write
from wmjax.report.scores import Estimate, Floats, has_nauc
from wmjax.report.tables import Parts, estimate_value

_MODES = ("full", "first_half", "sparse(2)")
_DIMENSIONS = ("full", "first half", "sparse(2)", "recovery")
_READING = f"""\
Four dimensions, each a mean over tasks, optimizers and objectives (random noise too): {{what}} where every frame, the
first half, and every second frame is attacked; and the recovery by defenses that the attacker does not know. Each is
min-max normalised over those compared and mapped to the observed range of the first; the score is their mean with the
weights {" / ".join(map(str, WEIGHTS))} ([arXiv 2606.16605](https://arxiv.org/abs/2606.16605), figure 10). So a score
says where one stands among these, and changes with the company. Where intervals overlap, the order is open."""


class _Compared(NamedTuple):
    names: list[str]
    value: Floats  #: [V, D] NaN for what the study does not have
    drawn: Floats  #: [R, V, D] bootstrap draws


def ranking_section(parts: Parts) -> Section | None:
    """Return ranking and radar plot; None with one victim or with fewer than two of the four dimensions."""
    settings = {block.setting for block, _ in parts if not block.setting.transferred}
    usual = sorted((s for s in settings if s.mode == "full" and s.defense == "none"), key=setting_order)
    if not usual:
        return None
    own = [part for part in parts if part[0].setting == usual[0]]
    every, alone = lineups(own), by_victim(own)
    if len(every) < 2:
        return None
    tasks = common_tasks(every)
    found = _compared(parts, usual[0], [one.name for one in every], tasks, alone)
    there = ~np.isnan(found.value).all(axis=0)
    if there.sum() < 2:
        return None
    who, what = ("victim" if alone else "family"), "nAUC" if has_nauc(own[0][0]) else "mean score"
    mapped, score = ranking(found.value)
    scores = Estimate(score, *interval(ranking(found.drawn).score))
    raw = Estimate(found.value, *interval(found.drawn))
    order = np.argsort(np.where(np.isnan(score), np.inf, -score), kind="stable")
    lines: list[tuple[str | Value, ...]] = [
        (
            code(found.names[i]),
            estimate_value(scores[i], 1.0, 3, strong=bool(rank == 0 and not np.isnan(score[i]))),
            *(estimate_value(raw[i, d], 1.0, 3) for d in range(len(_DIMENSIONS))),
        )
        for rank, i in enumerate(order)
    ]
    said = [_READING.format(what=what), *_left_out(found.value, mapped)]
    if not alone:
        listed = ", ".join(map(code, tasks))
        said.append(f"Compared are families, whose members play one task each, on the tasks that all have: {listed}.")
    table = Table(
        "ranking", (who, "score", *_DIMENSIONS), tuple(lines), 1, "Highest score first; higher is more robust."
    )
    counted = ~np.isnan(mapped).any(axis=0)
    figures: list[Part] = []
    if counted.sum() > 2:  # with two it would be a line
        alt = f"Radar plot of the dimensions, mapped to the range of the first, one outline a {who}."
        figures.append(
            Figure("ranking_figure", _radar(found.names, mapped[:, counted], np.array(_DIMENSIONS)[counted]), alt)
        )
    return Section("Ranking", (*figures, table, "\n\n".join(said)))


def _compared(parts: Parts, base: Setting, names: list[str], tasks: list[str], alone: bool) -> _Compared:
    """Return the four dimensions on `tasks` for every name."""
    columns: list[dict[str, tuple[Floats, Floats]]] = []
    for mode in _MODES:
        own = [part for part in parts if part[0].setting == base._replace(mode=mode)]
        columns.append({one.name: _overall(one.on(tasks)) for one in lineups(own)} if own else {})
    blocks = [block for block, _ in parts if not block.setting.transferred]
    groups = [group for group in defended(blocks) if group.bare.setting == base]
    by_name = {name: [g for g in groups if name == (g.bare.victim if alone else g.bare.agent)] for name in names}
    columns.append({name: _recovered(own, tasks) for name, own in by_name.items() if own})
    draws = next(len(drawn) for column in columns for _, drawn in column.values())
    nothing = np.array(np.nan), np.full(draws, np.nan)
    cells = [[column.get(name, nothing) for column in columns] for name in names]
    value = np.array([[cell[0] for cell in row] for row in cells])
    return _Compared(names, value, np.moveaxis(np.array([[cell[1] for cell in row] for row in cells]), -1, 0))


def _overall(one: Lineup) -> tuple[Floats, Floats]:
    return np.asarray(one.value.mean()), np.mean(one.drawn, axis=(1, 2))


def _recovered(groups: list[Defended], tasks: list[str]) -> tuple[Floats, Floats]:
    """Return the mean recovery over defenses, tasks and attacks that follow an objective, not adaptive."""

    def chosen(group: Defended, values: Floats) -> Floats:
        rows = np.isin(group.bare.tasks, tasks)
        return values[..., rows, :, 0][..., group.guided].reshape(*values.shape[:-3], -1)

    value = np.concatenate([chosen(group, group.once) for group in groups], axis=-1)
    drawn = np.concatenate([chosen(group, group.drawn) for group in groups], axis=-1)
    return valid_mean(value, axis=-1), valid_mean(drawn, axis=-1)


def _left_out(value: Floats, mapped: Floats) -> list[str]:
    """Return which dimensions do not count, and why."""
    said = []
    first = value[:, 0]
    if np.isnan(first).any() or np.ptp(first) == 0:
        return ["There is no ranking: the first dimension, which gives the scale, is missing, or equal for all."]
    for name, column, place in zip(_DIMENSIONS, value.T, mapped.T, strict=True):
        if np.isnan(place).any():
            said.append(f"{name} ({'not all have it' if np.isnan(column).any() else 'equal for all'})")
    return [f"Not counted: {', '.join(said)}. The weights of the others are divided by their sum."] if said else []


def _radar(names: list[str], mapped: Floats, dimensions: np.ndarray) -> Drawing:
    """Return the radar plot of `mapped` [V, D]."""
    styles, beside = named_styles(names), legend_columns(names)
    top = 0.36 + 0.18 * -(-len(names) // beside)
    figure = blank(top + 4.05)
    write(figure, 0.14, 0.2, "Robustness by dimension", size=11, bold=True)
    handles = {
        name: Line2D([], [], color=colour, marker=marker, markersize=5) for name, (colour, marker) in styles.items()
    }
    legend(figure, 0.14, 0.3, handles, columns=beside)
    axes = axes_at(figure, WIDTH / 2 - 1.6, top + 0.35, 3.2, 3.2, projection="polar")
    axes.set_theta_zero_location("N")  # type: ignore[attr-defined]
    axes.set_theta_direction(-1)  # type: ignore[attr-defined]
    angles = 2 * np.pi * np.arange(len(dimensions)) / len(dimensions)
    low, high = float(mapped.min()), float(mapped.max())
    for name, row in zip(names, mapped, strict=True):
        colour, marker = styles[name]
        round_ = np.append(angles, angles[0])
        axes.plot(
            round_, np.append(row, row[0]), color=colour, marker=marker, markersize=5, linewidth=1.6, clip_on=False
        )
        axes.fill(round_, np.append(row, row[0]), color=colour, alpha=0.08)
    # The least robust lies near the middle, not in it: there it would have no place by direction.
    axes.set_ylim(low - 0.35 * (high - low), high + 0.02 * (high - low))
    axes.spines["polar"].set_visible(False)
    axes.tick_params(axis="x", pad=14)
    axes.set_xticks(angles, list(dimensions), fontsize=SMALL + 1, color=INK)
    axes.set_yticks(np.linspace(low, high, 3), [f"{at:.3f}" for at in np.linspace(low, high, 3)], color=INK)
    axes.set_rlabel_position(45)  # type: ignore[attr-defined]
    axes.grid(color=RULE, linewidth=0.6)
    return figure
