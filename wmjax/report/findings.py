"""What a reader must hear first, in plain language: the outcome, and every reason to distrust a number."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wmjax.report.checks import Finding
from wmjax.report.labels import budget_label
from wmjax.report.load_results import Rows
from wmjax.report.markdown import code, count, interval
from wmjax.report.scores import failed_rows, has_nauc, left_out_rows
from wmjax.report.tables import Missing, Parts, objective_text

_ENOUGH_SEEDS = 10
"""Percentile intervals of a mean over fewer cover clearly less than they claim: half the time with two seeds."""


def outcomes(parts: Parts) -> list[str]:
    """Return one sentence a block: the objective that hurt most, beside random noise and no attack."""
    lines = []
    for block, summary in parts:
        means = summary.by_objective
        what = "nAUC" if has_nauc(block) else "score"
        line = f"{code(block.victim)}, frames attacked: {code(block.name)}, ε up to {budget_label(block.budgets[-1])}. "
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


def warnings(
    rows: Rows, study: Mapping[str, Any], parts: Parts, missing: Sequence[Missing], findings: Sequence[Finding]
) -> list[str]:
    """Return every reason that these rows give to read the numbers with care, most general first."""
    lines = []
    if failed := int(failed_rows(rows).sum()):
        lines.append(
            f"**Failed: {count(failed, 'episode')}** of {len(rows['seed']):,} could not be played, listed below. "
            "Means and areas go over the others; the same `wmjax run` tries again."
        )
    if left_out := int(left_out_rows(rows).sum()):
        lines.append(
            f"**Left out: {count(left_out, 'episode')}** of {len(rows['seed']):,} met a non-finite action or state. "
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
    for finding in findings:
        if finding.fired:
            lines.append(
                f"**Self-check** {code(finding.name)} fired in {count(len(finding.fired), 'cell')}, listed below. "
                f"{finding.meaning}"
            )
    return lines
