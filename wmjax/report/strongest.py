"""Which objective hurts most, counted over pairs of victim and task (arXiv 2606.16605, table 3)."""

import numpy as np

from wmjax.metrics import interval, strongest_counts
from wmjax.report.condition import setting_order
from wmjax.report.document import Section, Table, Value
from wmjax.report.markdown import code, count
from wmjax.report.panels import short_text
from wmjax.report.scores import Estimate, Floats, has_nauc
from wmjax.report.tables import Parts, estimate_value


def strongest_section(parts: Parts) -> Section | None:
    """Return the counts by setting; None with fewer than two objectives that an attack can follow."""
    settings = sorted({block.setting for block, _ in parts if not block.setting.transferred}, key=setting_order)
    if not settings:
        return None
    block = parts[0][0]
    guided = block.guided
    if len(guided) < 2:
        return None
    lines: list[tuple[str | Value, ...]] = []
    open_pairs = 0
    for setting in settings:
        own = [part for part in parts if part[0].setting == setting]
        values = np.concatenate([summary.by_task.value for _, summary in own])[:, guided]
        drawn = np.concatenate([summary.drawn for _, summary in own], axis=1)[..., guided]
        counts, decided = strongest(values, drawn)
        open_pairs += len(values) - decided
        digits = 0 if np.all(counts.value == np.round(counts.value)) else 2
        strong = np.asarray(counts.value == np.max(counts.value)) & (decided > 0)
        cells = [estimate_value(counts[i], 1.0, digits, strong=bool(strong[i])) for i in range(strong.size)]
        lines.append((code(own[0][0].name), Value(float(decided), digits=0), *cells))
    what = "nAUC" if has_nauc(block) else "mean score at the only budget"
    text = (
        f"In how many pairs of victim and task each objective leaves the lowest {what}, averaged over optimizers; "
        "objectives that tie share the pair in equal parts. Brackets: 95 % of the bootstrap draws of seeds; where they "
        "overlap, other seeds might give another order."
    )
    if open_pairs:
        text += f" Not counted: {count(open_pairs, 'pair')} that {'lacks' if open_pairs == 1 else 'lack'} an objective."
    header = ("attacked", "pairs", *(short_text(block.objectives[i]) for i in guided))
    return Section("Strongest objective", (text, Table("strongest", header, tuple(lines), 1)))


def strongest(values: Floats, drawn: Floats) -> tuple[Estimate, int]:
    """Return the counts [O] of robustness [P, O] with bootstrap draws [R, P, O], and the number of decided pairs.

    A draw that leaves open what the values decide is left out.
    """
    decided = ~np.isnan(values).any(axis=1)
    draws = drawn[:, decided]
    undecided = np.asarray(np.isnan(draws).any(axis=(1, 2), keepdims=True))[..., 0]
    counts = np.where(undecided, np.nan, strongest_counts(draws))
    return Estimate(strongest_counts(values), *interval(counts)), int(np.sum(decided))
