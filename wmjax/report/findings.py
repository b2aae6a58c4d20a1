"""What a reader must hear first, in plain language: the outcome, and every reason to distrust a number."""

import numpy as np

from wmjax.metrics import valid_mean
from wmjax.report.folder import Rows
from wmjax.report.markdown import code, count, interval
from wmjax.report.scores import Block, Summary, attack_rows, episode_returns, has_nauc
from wmjax.report.tables import Parts, missing_cells, objective_text, optimizer_text


def outcomes(parts: Parts) -> list[str]:
    """Return one sentence a block: the objective that hurt most, beside random noise and no attack."""
    lines = []
    for block, summary in parts:
        means = summary.by_objective
        what = "nAUC" if has_nauc(block) else f"mean score at ε = {block.budgets[-1]:.3g}"
        line = f"{code(block.victim)}, frames attacked: {code(block.mode)}. "
        if np.isnan(means.value).all():
            lines.append(line + f"No objective has all its cells, so there is no {what} yet.")
            continue
        worst = int(np.nanargmin(means.value))
        span = interval(float(means.low[worst]), float(means.high[worst]), 3)
        line += f"Most harm: **{objective_text(block.objectives[worst])}**, {what} {means.value[worst]:.3f} {span}"
        if "random" in block.objectives and block.objectives[worst] != "random":
            line += f"; random noise {means.value[block.objectives.index('random')]:.3f}"
        clean = float(summary.by_budget.value[0, 0])
        lines.append(line + ("." if np.isnan(clean) else f"; without attack {clean:.3f}."))
    return lines


def warnings(rows: Rows, parts: Parts) -> list[str]:
    """Return every reason that these rows give to read the numbers with care, most general first."""
    lines = []
    failed = int(np.isnan(episode_returns(rows)).sum())
    if failed:
        lines.append(
            f"**Left out: {count(failed, 'episode')}** of {len(rows['seed']):,} met a non-finite action or state. "
            "Means and areas go over the others."
        )
    missing = sum(cell[-1] for cell in missing_cells(parts))
    if missing:
        lines.append(
            f"**Missing: {count(missing, 'episode')}** of the study. Statistics that need a cell without any row "
            "show a dash; they are listed below."
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
    what = "nAUC" if has_nauc(block) else "mean score"
    for i, (attack, label) in enumerate(zip(block.attacks, block.labels, strict=True)):
        gap = summary.beyond_random[i]
        if gap.value < 0:
            unsure = ", which the choice of seeds can explain" if gap.high >= 0 else ""
            lines.append(
                f"**Weaker than noise**: {_attack(attack.objective, label)} hurts {code(block.victim)}, mode "
                f"{code(block.mode)}, less than random noise does: {what} {values[i]:.3f} against "
                f"{values[random]:.3f}, paired difference {-gap.value:.3f} "
                f"{interval(-float(gap.high), -float(gap.low), 3)}{unsure}. Its gradients find nothing here that chance "
                "does not."
            )
    return lines


def _attack(objective: str, label: str) -> str:
    return objective_text(objective) if label == "none" else f"{objective_text(objective)}, by {optimizer_text(label)}"
