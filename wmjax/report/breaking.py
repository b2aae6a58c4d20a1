"""At which budget an agent breaks: the smallest tested one at which an attack takes half of the clean score."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from wmjax.metrics import resampled_means, valid_mean
from wmjax.report.document import Table, Value
from wmjax.report.labels import budget_label
from wmjax.report.markdown import code
from wmjax.report.scores import DRAW, Block, Floats
from wmjax.report.tables import Parts, label_text, setting_axis

SHARE = 0.5
"""Share of the clean score that an attack must take: more than that, and an agent does not do its task."""


def breaking_budgets(block: Block) -> list[Value]:
    """Return for each objective [O] the smallest budget at which its best optimizer takes more than SHARE.

    Scores are means over tasks and seeds. Infinite where no tested budget does; NaN where cells are missing or the
    clean score is not above 0. The interval is of the same bootstrap as every other.
    """
    once = _places(block, valid_mean(block.scores, axis=1))
    draws = _places(block, resampled_means(block.scores, np.random.default_rng(DRAW)))
    budgets = [*block.budgets[1:].tolist(), math.inf]
    values = []
    for place, own in zip(once.tolist(), draws.T, strict=True):
        if place < 0:
            values.append(Value(math.nan, interval=True))
        elif (own < 0).any():
            values.append(Value(budgets[place], interval=True, words=(_words(budgets[place], block), "", "")))
        else:
            ends = np.quantile(own, [0.025, 0.975], method="inverted_cdf").astype(int)
            value, low, high = (budgets[i] for i in (place, *ends))
            words = (_words(value, block), _words(low, block), _words(high, block))
            values.append(Value(value, low, high, interval=True, words=words))
    return values


def breaking_table(parts: Parts, broken: Sequence[Sequence[Value]]) -> Table:
    """Return each block's breaking budgets, `broken`, as a line, an objective a column; the smallest is strong."""
    names = parts[0][0].objectives
    named = len({block.setting for block, _ in parts}) > 1
    lines: list[tuple[str | Value, ...]] = []
    for (block, summary), values in zip(parts, broken, strict=True):
        clean = float(summary.by_budget.value[0, 0])
        least = min((value.value for value in values if value.value == value.value), default=math.inf)
        cells = [replace(value, strong=value.value == least < math.inf) for value in values]
        where = (code(block.victim), *([code(block.name)] if named else []))
        lines.append((*where, Value(clean), *cells))
    header = ("victim", *([setting_axis(parts)] if named else []), "clean score", *(label_text(name) for name in names))
    caption = (
        f"Smallest tested budget ε at which an attack takes more than {100 * SHARE:g} % of the clean score, by "
        f"objective, for the optimizer that needs least. “> {budget_label(parts[0][0].budgets[-1])}”: no tested "
        "budget does. Without brackets, all draws of the bootstrap agree."
    )
    return Table("breaking", header, tuple(lines), len(header) - len(names) - 1, caption)


def _places(block: Block, means: Floats) -> NDArray[np.intp]:
    """Return at which budget [..., O] of means [..., M, N, K] each objective breaks: K - 1 for none, -1 if unknown."""
    scores = np.mean(means, axis=-3)
    clean = scores[..., :1]
    lost = 1.0 - scores[..., 1:] / np.where(clean > 0, clean, np.nan)
    found = []
    for name in block.objectives:
        most = np.max(lost[..., [attack.objective == name for attack in block.attacks], :], axis=-2)
        broken = most > SHARE
        first = np.where(broken.any(axis=-1), np.argmax(broken, axis=-1), broken.shape[-1])
        found.append(np.where(np.isnan(most).any(axis=-1), -1, first))
    return np.stack(found, axis=-1)


def _words(eps: float, block: Block) -> str:
    return budget_label(eps) if math.isfinite(eps) else f"> {budget_label(float(block.budgets[-1]))}"
