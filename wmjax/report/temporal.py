"""Robustness by temporal mode, victim and objective (arXiv 2606.16605, table 4), as table and figure."""

import numpy as np

from wmjax.report.comparison_groups import Lineup, by_victim, lineups
from wmjax.report.condition import Setting, setting_name, setting_order, told_axes
from wmjax.report.document import Figure, Part, Section, Table, Value
from wmjax.report.labels import budget_label, mode_order, objective_label
from wmjax.report.markdown import code
from wmjax.report.panels import draw_panels, short_text
from wmjax.report.plot_style import objective_styles
from wmjax.report.scores import Estimate, has_nauc
from wmjax.report.tables import Parts, estimate_value


def temporal_section(parts: Parts) -> Section | None:
    """Return table and figure for each setting that is attacked in several modes; None where none is."""
    settings = {block.setting for block, _ in parts if not block.setting.transferred}
    rest = sorted({setting._replace(mode="full") for setting in settings}, key=setting_order)
    modes = {
        base: sorted((s.mode for s in settings if s._replace(mode="full") == base), key=mode_order) for base in rest
    }
    told, found = told_axes(rest) - {"mode"}, [base for base in rest if len(modes[base]) > 1]
    if not found:
        return None
    each: list[Part] = []
    for i, base in enumerate(found, 1):
        where = setting_name(base, told) if told else ""
        each += _parts_of(parts, base, modes[base], where, "temporal" if i == 1 else f"temporal_{i}")
    return Section("When frames are attacked", tuple(each))


def _parts_of(parts: Parts, base: Setting, modes: list[str], where: str, name: str) -> list[Part]:
    at = {mode: [part for part in parts if part[0].setting == base._replace(mode=mode)] for mode in modes}
    block = at[modes[0]][0][0]
    who = "victim" if by_victim(at[modes[0]]) else "family"
    what = "nAUC" if has_nauc(block) else "mean score"
    means: dict[str, dict[str, Estimate]] = {}  # by name, then mode: [O]
    lines: list[tuple[str | Value, ...]] = []
    for mode in modes:
        for one in lineups(at[mode]):
            means.setdefault(one.name, {})[mode] = one.by_objective()
            lines.append((code(mode), code(one.name), *_cells(one)))
    labels = [objective_label(objective) for objective in block.objectives]
    styles = {objective_label(key): style for key, style in objective_styles(block.objectives).items()}
    panels = {
        one: {label: _series([of[mode][i] for mode in modes]) for i, label in enumerate(labels)}
        for one, of in means.items()
    }
    budgets = ", ".join(map(budget_label, block.budgets))
    note = f"mean over tasks and optimizers{', ' * bool(where)}{where} · lines beside markers: 95 % intervals"
    figure = Figure(
        name.replace("temporal", "temporal_figure"),
        draw_panels(f"{what} by when frames are attacked", note, modes, panels, styles, axis=what, connected=True),
        f"{what} by temporal mode, one panel a {who}, a line an objective. The table holds the same numbers.",
    )
    caption = (
        f"{what} by mode{f', {code(where)}' if where else ''}, over the budgets ε = {budgets}; the lowest of a line is "
        "bold. The mean goes over all objectives, random noise too, as in table 4 of "
        "[arXiv 2606.16605](https://arxiv.org/abs/2606.16605)."
    )
    return [figure, Table(name, ("mode", who, *map(short_text, block.objectives), "mean"), tuple(lines), 2, caption)]


def _cells(one: Lineup) -> list[Value]:
    means = one.by_objective()
    lowest = -1 if np.isnan(means.value).any() else int(np.argmin(means.value))
    each = [estimate_value(means[i], 1.0, 3, strong=i == lowest) for i in range(means.value.size)]
    return [*each, estimate_value(one.overall(), 1.0, 3)]


def _series(points: list[Estimate]) -> Estimate:
    value, low, high = (np.array([getattr(point, name) for point in points]) for name in ("value", "low", "high"))
    return Estimate(value, low, high)
