"""What a reader must hear first, in plain language: the outcome, and every reason to distrust a number."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wmjax.metrics import valid_mean
from wmjax.report.folder import Rows
from wmjax.report.markdown import code, count, interval
from wmjax.report.names import budget_label
from wmjax.report.scores import Block, Summary, attack_rows, episode_returns, has_nauc
from wmjax.report.tables import Missing, Parts, objective_text, optimizer_text

_ENOUGH_SEEDS = 10
"""Percentile intervals of a mean over fewer cover clearly less than they claim: half the time with two seeds."""


def outcomes(parts: Parts) -> list[str]:
    """Return one sentence a block: the objective that hurt most, beside random noise and no attack."""
    lines = []
    for block, summary in parts:
        means = summary.by_objective
        what = "nAUC" if has_nauc(block) else "score"
        line = f"{code(block.victim)}, frames attacked: {code(block.mode)}, ε up to {budget_label(block.budgets[-1])}. "
        if np.isnan(means.value).any():
            lines.append(line + "Not all objectives have all their cells, so which one does most harm is open.")
            continue
        worst = int(np.argmin(means.value))
        span = interval(float(means.low[worst]), float(means.high[worst]), 3)
        line += f"Most harm: **{objective_text(block.objectives[worst])}**, {what} {means.value[worst]:.3f} {span}"
        if "random" in block.objectives and block.objectives[worst] != "random":
            line += f"; random noise {means.value[block.objectives.index('random')]:.3f}"
        clean = float(summary.by_budget.value[0, 0])
        lines.append(line + ("." if np.isnan(clean) else f"; without attack {clean:.3f}."))
    return lines


def warnings(rows: Rows, study: Mapping[str, Any], parts: Parts, missing: Sequence[Missing]) -> list[str]:
    """Return every reason that these rows give to read the numbers with care, most general first."""
    lines = []
    failed = int(np.isnan(episode_returns(rows)).sum())
    if failed:
        lines.append(
            f"**Left out: {count(failed, 'episode')}** of {len(rows['seed']):,} met a non-finite action or state. "
            "Means and areas go over the others."
        )
    if missing:
        episodes = count(sum(cell.seeds for cell in missing), "episode")
        lines.append(
            f"**Missing: {episodes}** of the study, listed below. A number that needs a cell without any row is a dash."
        )
    there = set(rows["victim"])
    absent = [name for name in study.get("victims", ()) if not {name, Path(name).stem} & there]
    if absent:
        lines.append(f"**Missing: every episode** of {', '.join(map(code, absent))}.")
    seeds = np.unique(rows["seed"]).size
    if 1 < seeds < _ENOUGH_SEEDS:
        lines.append(
            f"**Few seeds**: with {seeds}, bootstrap intervals are too narrow and hold the truth less often than "
            "95 % of the time."
        )
    if any(np.isnan(summary.curves.low[~np.isnan(summary.curves.value)]).any() for _, summary in parts):
        lines.append("**No interval** where a cell has one seed: a single episode says nothing about the spread.")
    for block, summary in parts:
        lines += _zero_gradients(rows, block) + _weaker_than_random(block, summary)
    return lines


def _zero_gradients(rows: Rows, block: Block) -> list[str]:
    lines = []
    for attack, label in zip(block.attacks, block.labels, strict=True):
        share = rows["zero_grad"][attack_rows(rows, block, attack)]
        hit = int(np.sum(share > 0))
        if hit:
            lines.append(
                f"**Zero gradients**: {_attack(attack.objective, label)} on {code(block.victim)}, mode "
                f"{code(block.mode)}: {100 * float(valid_mean(share)):.3g} % of its gradients were exactly zero over "
                f"the whole frame ({hit} of {count(share.size, 'episode')}). A step along a zero gradient changes "
                "nothing, so this attack is weaker than its name says and no evidence of robustness."
            )
    return lines


def _weaker_than_random(block: Block, summary: Summary) -> list[str]:
    if summary.beyond_random is None:
        return []
    lines, random = [], block.position("random", "none")
    values = summary.by_attack.value
    what = "nAUC" if has_nauc(block) else "score"
    for i, (attack, label) in enumerate(zip(block.attacks, block.labels, strict=True)):
        gap = summary.beyond_random[i]
        if gap.value < 0:
            unsure = ", which the choice of seeds can explain" if gap.high >= 0 else ""
            lines.append(
                f"**Weaker than noise**: {_attack(attack.objective, label)} hurts {code(block.victim)}, mode "
                f"{code(block.mode)}, less than random noise does: {what} {values[i]:.3f} against "
                f"{values[random]:.3f}, paired difference {-gap.value:.3f} "
                f"{interval(-float(gap.high), -float(gap.low), 3)}{unsure}. Its gradients find nothing here that "
                "chance does not."
            )
    return lines


def _attack(objective: str, label: str) -> str:
    return objective_text(objective) if label == "none" else f"{objective_text(objective)}, by {optimizer_text(label)}"
