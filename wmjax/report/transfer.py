"""How far attacks computed on one agent harm another (arXiv 2606.16605, section 6.4 and figure 7)."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from wmjax.metrics import interval, transfer
from wmjax.report.condition import Setting, setting_order
from wmjax.report.document import Figure, Part, Section, Table, Value
from wmjax.report.labels import objective_label
from wmjax.report.markdown import code
from wmjax.report.panels import draw_panels, short_text
from wmjax.report.plot_style import INK, MEDIUM, SMALL, WIDTH, axes_at, blank, drawable, named_styles, write
from wmjax.report.scores import Estimate, Floats, has_nauc
from wmjax.report.tables import Parts, estimate_value

_READING = """\
Transfer drop is 1 − {what}, the mean over tasks and optimizers, so higher is more harm; 1 minus the clean score is a
drop that no attack caused. The matrix is a mean over objectives, the means of objectives go over pairs of source and
target, and those by target over its sources. Random noise has no source, and no part in it."""


def transfer_section(parts: Parts) -> Section | None:
    """Return the source-target matrix, objectives, and objectives by target; None without transferred attacks."""
    rest = {block.setting._replace(source="self") for block, _ in parts if block.setting.transferred}
    each: list[Part] = []
    for i, base in enumerate(sorted(rest, key=setting_order), 1):
        own = [part for part in parts if part[0].setting._replace(source="self") == base]
        if own[0][0].guided:
            each += _parts_of(own, base, "" if i == 1 else f"_{i}", len(rest) > 1)
    if not each:
        return None
    what = "nAUC" if has_nauc(parts[0][0]) else "the mean score at the only budget"
    return Section("Transfer between agents", (_READING.format(what=what), *each))


def _parts_of(own: Parts, base: Setting, suffix: str, several: bool) -> list[Part]:
    moved = [part for part in own if part[0].setting.transferred]
    block = moved[0][0]
    guided = block.guided
    labels = [objective_label(block.objectives[i]) for i in guided]
    sources = sorted({other.setting.source for other, _ in moved})
    targets = sorted({other.victim for other, _ in moved})
    shape = len(sources), len(targets), len(guided)
    drops, pairs = np.full(shape, np.nan), np.zeros(shape[:2], bool)
    drawn = np.full((len(moved[0][1].drawn), *shape), np.nan)
    itself = np.full((len(targets), len(guided)), np.nan)
    itself_drawn = np.full((len(drawn), *itself.shape), np.nan)
    for other, summary in own:
        if other.victim not in targets:
            continue
        value = 1.0 - np.mean(summary.by_task.value, axis=0)[guided]
        draws = 1.0 - np.mean(summary.drawn, axis=1)[:, guided]
        at = targets.index(other.victim)
        if other.setting.transferred:
            line = sources.index(other.setting.source)
            drops[line, at], drawn[:, line, at], pairs[line, at] = value, draws, True
        else:
            itself[at], itself_drawn[:, at] = value, draws
    found = [Estimate(a, *interval(b)) for a, b in zip(transfer(drops, pairs), transfer(drawn, pairs), strict=True)]
    matrix, by_objective, by_target = found
    own_harm = Estimate(itself.mean(axis=-1), *interval(itself_drawn.mean(axis=-1)))

    def cells(row: Estimate) -> tuple[Value, ...]:
        strong = -1 if np.isnan(row.value).all() else int(np.nanargmax(row.value))
        return tuple(estimate_value(row[i], 1.0, 3, strong=i == strong) for i in range(row.value.size))

    lines: list[tuple[str | Value, ...]] = [(code(name), *cells(matrix[i])) for i, name in enumerate(sources)]
    known = not np.isnan(itself).all()
    if known:
        lines.append(("*the victim itself*", *(estimate_value(own_harm[i], 1.0, 3) for i in range(len(targets)))))
    where = f", frames attacked: {code(_name(base))}" if several else ""
    table = Table(
        f"transfer_matrix{suffix}", ("source", *map(code, targets)), tuple(lines), 1,
        f"Transfer drop by source (line) and victim (column){where}; the highest of a line is bold."
        + (" The last line is that of white-box attacks, for comparison." if known else ""),
    )  # fmt: skip
    objectives: list[tuple[str | Value, ...]] = [
        (short_text(block.objectives[at]), estimate_value(by_objective[i], 1.0, 3), *cells(by_target[i]))
        for i, at in enumerate(guided)
    ]
    second = Table(
        f"transfer_objectives{suffix}", ("objective", "mean over pairs", *map(code, targets)), tuple(objectives), 1,
        f"Transfer drop by objective, over all pairs and by victim{where}.",
    )  # fmt: skip
    title = f"frames attacked: {_name(base)} · lines: 95 % intervals"
    panels = {"": {name: by_target[:, i] for i, name in enumerate(targets)}}
    drawing = draw_panels(
        "Transfer drop by objective and victim", title, labels, panels, named_styles(targets), axis="transfer drop"
    )
    return [
        Figure(
            f"transfer_matrix_figure{suffix}", _matrix(sources, targets, matrix.value, pairs),
            "Matrix of the transfer drop, a line a source and a column a victim. The table holds the same numbers.",
        ),
        table,
        Figure(
            f"transfer_objectives_figure{suffix}", drawing,
            "Transfer drop of every objective, a marker a victim. The table holds the same numbers.",
        ),
        second,
    ]  # fmt: skip


def _name(base: Setting) -> str:
    """Return the setting's name without its source."""
    rest = [base.region != "all" and f"region {base.region}", base.frames != "float" and f"{base.frames} frames",
            base.defense != "none" and f"defense {base.defense}", base.adaptive and "adaptive"]  # fmt: skip
    return ", ".join([base.mode, *(text for text in rest if text)])


def _matrix(sources: list[str], targets: list[str], drops: Floats, pairs: NDArray[np.bool_]) -> Drawing:
    """Return the matrix of `drops` [source, target] as tinted squares with their numbers."""
    letters = 22
    names = 0.2 + 0.072 * min(letters, max(map(len, sources)))
    side = min(0.95, (WIDTH - 0.3 - names) / len(targets))
    high = 0.42 * len(sources)
    slanted = max(map(len, targets)) * 0.075 > side
    figure = blank(0.45 + high + (1.25 if slanted else 0.55))
    write(figure, 0.14, 0.2, "Transfer drop: source (line) to victim (column)", size=11, bold=True)
    axes = axes_at(figure, 0.14 + names, 0.36, side * len(targets), high)
    axes.set_xlim(-0.5, len(targets) - 0.5)
    axes.set_ylim(len(sources) - 0.5, -0.5)
    axes.spines["bottom"].set_visible(False)
    for i, k in np.argwhere(pairs):
        drop = float(drops[i, k])
        if not np.isnan(drop):
            tint = 0.08 + 0.55 * min(max(drop, 0.0), 1.0)
            axes.add_patch(Rectangle((k - 0.48, i - 0.46), 0.96, 0.92, facecolor="#0072B2", alpha=tint, linewidth=0))
        shown = "–" if np.isnan(drop) else f"{drop:.2f}"
        axes.text(k, i, shown, ha="center", va="center", fontsize=MEDIUM, color=INK)
    axes.set_yticks(range(len(sources)), [drawable(name, letters) for name in sources], parse_math=False)
    turn: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
    axes.set_xticks(range(len(targets)), [drawable(n, 18) for n in targets], parse_math=False, fontsize=SMALL, **turn)
    return figure
