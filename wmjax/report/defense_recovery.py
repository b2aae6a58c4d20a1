"""Defenses: what each gives back of what an attack took, before and after the attacker knows it; table and figure."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Patch
from numpy.typing import NDArray

from wmjax.metrics import adaptive_gap, interval, recovery, resampled_means, valid_mean
from wmjax.metrics.recovery import FLOOR
from wmjax.report.condition import setting_name, told_axes
from wmjax.report.document import Figure, Section, Table, Value
from wmjax.report.labels import budget_label
from wmjax.report.markdown import code
from wmjax.report.plot_style import INK, MEDIUM, RULE, SMALL, WIDTH, axes_at, blank, drawable, write
from wmjax.report.scores import DRAW, Block, Estimate, Floats
from wmjax.report.tables import Parts, attack_text, estimate_value

_READING = f"""\
Recovery is (with − attacked) / (clean − attacked), clean and attacked without the defense (equation 16 of
[arXiv 2606.16605](https://arxiv.org/abs/2606.16605)): 0 is no help, 1 the clean return restored, below 0 harm. It is a
mean over tasks, and undefined where the attack alone changes the mean score by less than {FLOOR:g}. The adaptive gap is
the mean recovery minus that of adaptive attacks (equation 17): what the defense owes to not being known. Random noise
knows nothing, so it has no part in the means over attacks."""


_BARS: tuple[dict[str, Any], ...] = (
    {"facecolor": "#0072B2", "edgecolor": "#0072B2", "label": "attacker does not know the defense"},
    {"facecolor": "none", "edgecolor": "#D55E00", "hatch": "/////", "label": "attacker knows it (adaptive)"},
)
_LETTERS = 20  # of a defense's name, at most


class Defended(NamedTuple):
    """A victim's recoveries by one defense, from blocks that differ in it only, at the largest budget."""

    bare: Block  #: without the defense
    defense: str
    levels: Floats  #: [M, N, 3] mean scores: attacked, with the defense, with it and an attacker who knows it
    once: Floats  #: [M, N, 2] recovery, and recovery under adaptive attacks
    drawn: Floats  #: [R, M, N, 2] bootstrap draws of the recoveries

    @property
    def guided(self) -> NDArray[np.bool_]:
        """Which attacks [N] follow an objective; only they have a part in means."""
        return np.array([attack.objective != "random" for attack in self.bare.attacks])

    def estimates(self, chosen: NDArray[np.bool_]) -> tuple[Estimate, Estimate, Estimate]:
        """Return recovery, adaptive recovery and gap: means over tasks and the `chosen` attacks [N]."""

        def means(values: Floats) -> tuple[Floats, Floats, Floats]:
            plain, knowing = (values[..., chosen, i].reshape(*values.shape[:-3], -1) for i in (0, 1))
            return valid_mean(plain, axis=-1), valid_mean(knowing, axis=-1), adaptive_gap(plain, knowing)

        pairs = zip(means(self.once), means(self.drawn), strict=True)
        plain, knowing, gap = (Estimate(value, *interval(draws)) for value, draws in pairs)
        return plain, knowing, gap


def recovery_section(parts: Parts) -> Section | None:
    """Return the table and figure of all defenses at the largest budget, and how to read them; None without any."""
    blocks = [block for block, _ in parts if not block.setting.transferred]
    if all(block.setting.defense == "none" for block in blocks):
        return None
    found = defended(blocks)
    if not found:
        text = "Recovery needs the same attacks on the agent without a defense, which this study does not have."
        return Section("Defenses", (text,))
    bare = {(group.bare.victim, group.bare.setting): group.bare for group in found}
    told, several = told_axes(setting for _, setting in bare), len({setting for _, setting in bare}) > 1
    lines: list[tuple[str | Value, ...]] = []
    for group in found:
        head = [code(group.bare.victim), *([code(setting_name(group.bare.setting, told))] if several else [])]
        lines += [(*head, code(group.defense), *line) for line in _lines(group)]
    left = ("victim", *(("attacked",) if several else ()), "defense", "attack")
    numbers = ("without", "with", "with, adaptive", "recovery", "recovery, adaptive", "adaptive gap")
    harm = np.concatenate([_harm(block).ravel() for block in bare.values()])
    undefined, known = int(np.sum(np.abs(harm) < FLOOR)), int(np.sum(~np.isnan(harm)))
    caption = (
        f"Mean scores under attack at ε = {budget_label(found[0].bare.budgets[-1])}, without the defense, with it, and "
        "with it where the attacker knows it (adaptive)."
    )
    names = {key: f"{key[0]}, {setting_name(key[1], told)}" if several else key[0] for key in bare}
    panels = {names[key]: [group for group in found if group.bare is block] for key, block in bare.items()}
    figure = Figure(
        "defenses_figure",
        _draw(panels),
        "Bars of the recovery by each defense, one panel a victim; filled for attackers who do not know the defense, "
        "hatched for those who do. The table holds the same numbers.",
        "Recovery, mean over tasks and attacks that follow an objective, with 95 % intervals.",
    )
    undefined_text = f"Undefined here: {undefined} of {known} pairs of task and attack."
    table = Table("defenses", (*left, *numbers), tuple(lines), len(left), caption)
    return Section("Defenses", (figure, table, f"{_READING} {undefined_text}"))


def defended(blocks: Sequence[Block]) -> list[Defended]:
    """Return the recoveries of every victim, setting and defense that stand beside the same attacks without one."""
    at = {(block.victim, block.setting): block for block in blocks}
    found = []
    for (victim, setting), block in at.items():
        bare = at.get((victim, setting._replace(defense="none", adaptive=False)))
        twin = at.get((victim, setting._replace(adaptive=False)))
        if bare is None or setting.defense == "none" or (setting.adaptive and twin is not None):
            continue
        knowing = at.get((victim, setting._replace(adaptive=True)))
        found.append(_defended(bare, setting.defense, None if setting.adaptive else block, knowing))
    return found


def _defended(bare: Block, defense: str, plain: Block | None, adaptive: Block | None) -> Defended:
    random = np.array([attack.objective == "random" for attack in bare.attacks])
    last = [np.full_like(bare.scores[..., 0], np.nan) if b is None else b.scores[..., -1] for b in (plain, adaptive)]
    last[1] = np.where(random, np.nan, last[1])
    scores = np.stack([bare.scores[..., 0], bare.scores[..., -1], *last], axis=-1)  # [M, S, N, 4]
    means, draws = valid_mean(scores, axis=1), resampled_means(scores, np.random.default_rng(DRAW))
    known = np.abs(_harm(bare)) >= FLOOR
    return Defended(bare, defense, means[..., 1:], _recoveries(means, known), _recoveries(draws, known))


def _harm(bare: Block) -> Floats:
    """Return clean minus attacked mean score at the largest budget, [M, N]."""
    means = valid_mean(bare.scores, axis=1)
    return means[..., 0] - means[..., -1]


def _recoveries(means: Floats, known: NDArray[np.bool_]) -> Floats:
    """Return plain and adaptive recovery [..., M, N, 2] of mean scores [..., M, N, 4], NaN where not `known` [M, N]."""
    clean, attacked, with_it = means[..., :1], means[..., 1:2], means[..., 2:]
    # What is defined is so in every bootstrap draw: the floor applies to the means over all seeds.
    return np.where(known[..., None], recovery(clean, attacked, with_it, floor=0.0), np.nan)


def _lines(group: Defended) -> list[tuple[str | Value, ...]]:
    """Return the cells of a line an attack, and of one with their means."""

    def line(name: str, chosen: NDArray[np.bool_]) -> tuple[str | Value, ...]:
        levels = group.levels[:, chosen].mean(axis=(0, 1))
        spans = [estimate_value(span, 1.0, 2) for span in group.estimates(chosen)]
        return name, *(Value(float(level)) for level in levels), *spans

    bare, guided = group.bare, group.guided
    each = [line(attack_text(a.objective, label), np.arange(len(guided)) == i)
            for i, (a, label) in enumerate(zip(bare.attacks, bare.labels, strict=True))]  # fmt: skip
    return each if np.sum(guided) < 2 else [*each, line("**mean over attacks**", guided)]


def _draw(panels: dict[str, list[Defended]]) -> Drawing:
    """Return bars by defense, one panel a victim and setting."""
    across, most = min(2, len(panels)), max(map(len, panels.values()))
    longest = max(len(group.defense) for groups in panels.values() for group in groups)
    names = 0.1 + 0.068 * min(longest, _LETTERS)
    wide, high = (WIDTH - 0.2) / across - names - 0.2, 0.46 * most
    spans = {
        name: [group.estimates(group.guided if group.guided.any() else ~group.guided)[:2] for group in groups]
        for name, groups in panels.items()
    }
    reached = np.ravel([(e.value, e.low, e.high) for pairs in spans.values() for pair in pairs for e in pair])
    low, top = np.nanmin([0.0, *reached]), np.nanmax([1.0, *reached])

    figure = blank(0.55 + -(-len(panels) // across) * (high + 0.75))
    write(figure, 0.14, 0.2, "Recovery by defenses", size=11, bold=True)
    there = [not np.isnan([pair[i].value for pairs in spans.values() for pair in pairs]).all() for i in (0, 1)]
    figure.legend(
        handles=[Patch(**bar) for bar, known in zip(_BARS, there, strict=True) if known], loc="upper left", ncols=2,
        bbox_to_anchor=(0.14 / WIDTH, 1 - 0.29 / figure.get_size_inches()[1]), frameon=False, fontsize=SMALL + 0.5,
        labelcolor=INK, borderpad=0, borderaxespad=0,
    )  # fmt: skip
    for i, (name, groups) in enumerate(panels.items()):
        row, column = divmod(i, across)
        x, y = 0.1 + names + column * (wide + names + 0.2), 0.83 + row * (high + 0.75)
        axes = axes_at(figure, x, y, wide, high)
        write(figure, x, y - 0.08, name, size=MEDIUM, bold=True, letters=int(wide * 11))
        axes.set_xlim(low - 0.03 * (top - low), top + 0.03 * (top - low))
        axes.set_ylim(most - 0.5, -0.5)
        axes.grid(axis="x", color=RULE, linewidth=0.6)
        axes.axvline(0.0, color=INK, linewidth=0.9, zorder=1)
        axes.axvline(1.0, color=INK, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
        axes.set_yticks(range(len(groups)), [drawable(group.defense, _LETTERS) for group in groups], parse_math=False)
        for place, pair in enumerate(spans[name]):
            for span, shift, bar in zip(pair, (-0.19, 0.19), _BARS, strict=True):
                if not np.isnan(span.value):
                    axes.barh(place + shift, span.value, 0.32, linewidth=1.0, zorder=2, **bar)
                    axes.hlines(place + shift, span.low, span.high, color=INK, linewidth=1.4, zorder=3)
        if i + across >= len(panels):
            axes.set_xlabel("recovery", color=INK, fontsize=SMALL + 0.5)
    return figure
