"""The report's tables: clean returns, nAUC, returns by budget, diagnostics, and the cells without a row."""

from collections.abc import Sequence

import numpy as np

from wmjax.metrics import valid_mean
from wmjax.report.folder import Rows
from wmjax.report.markdown import MISSING, code, count, interval, number, table
from wmjax.report.names import OBJECTIVES
from wmjax.report.scores import Block, Estimate, Summary, attack_rows, clean_returns

Parts = Sequence[tuple[Block, Summary]]
"""Blocks, each with its summary, by victim, then mode."""

_DIAGNOSTICS = {
    "zero gradients": ("zero_grad", 3),
    "action change": ("action_change", 3),
    "policy KL": ("policy_kl", 3),
    "drift of z": ("drift_z", 2),
    "drift of h": ("drift_h", 2),
    "loss, first": ("loss_first", 3),
    "loss, last": ("loss_last", 3),
}
_LISTED = 40  # lines of missing cells at most


def objective_text(name: str) -> str:
    """Return `VSA, value suppression` for `vsa`; an unknown name as code."""
    return ", ".join(OBJECTIVES[name]) if name in OBJECTIVES else code(name)


def optimizer_text(label: str) -> str:
    """Return an optimizer's label; a dash where none is needed; a label with unusual characters as code."""
    return MISSING if label == "none" else label if label.replace("-", "").isalnum() else code(label)


def clean_table(rows: Rows) -> str:
    """Return the clean return of every victim on every task it has rows for."""
    lines = []
    for victim, agent, task in sorted(set(zip(rows["victim"], rows["agent"], rows["task"], strict=True))):
        mean, episodes = clean_returns(rows, victim, task)
        largest = float(rows["max_return"][(rows["victim"] == victim) & (rows["task"] == task)][0])
        shown = _estimate(mean, 1.0, _digits(largest))
        lines.append([code(victim), code(agent), code(task), shown, f"{largest:g}", str(episodes)])
    return table(["victim", "agent", "task", "clean return", "largest possible", "episodes"], lines, left=3)


def nauc_table(parts: Parts) -> str:
    """Return nAUC by victim and objective: the mean over optimizers, then each optimizer; the lowest mean is bold."""
    columns = list(dict.fromkeys(column for block, _ in parts for column in block.columns))
    lines = []
    for block, summary in parts:
        means = summary.by_objective
        for i, name in enumerate(block.objectives):
            strongest = not np.isnan(means.value).all() and i == np.nanargmin(means.value)
            mean = _estimate(means[i], 1.0, 3)
            places = [block.position(name, column) for column in columns]
            each = [MISSING if place is None else _estimate(summary.by_attack[place], 1.0, 3) for place in places]
            lines.append([code(block.victim), objective_text(name), f"**{mean}**" if strongest else mean, *each])
    return table(["victim", "objective", "mean", *(optimizer_text(column) for column in columns)], lines, left=2)


def returns_table(parts: Parts) -> str:
    """Return the mean return over tasks by budget; as a share of the largest return where tasks differ in that."""
    scales = np.unique(np.concatenate([block.scale for block, _ in parts]))
    scale = float(scales[0]) if scales.size == 1 else 1.0
    budgets = np.unique(np.concatenate([block.budgets for block, _ in parts]))
    lines = []
    for block, summary in parts:
        place = {eps: k for k, eps in enumerate(block.budgets)}
        for i, (attack, label) in enumerate(zip(block.attacks, block.labels, strict=True)):
            cells = [
                _estimate(summary.by_budget[i, place[eps]], scale, _digits(scale)) if eps in place else MISSING
                for eps in budgets
            ]
            lines.append([code(block.victim), objective_text(attack.objective), optimizer_text(label), *cells])
    header = ["victim", "objective", "optimizer", *(f"ε = {eps:.3g}" for eps in budgets)]
    return table(header, lines, left=3)


def diagnostics_table(rows: Rows, parts: Parts) -> str:
    """Return the means of the recorded diagnostics over the episodes at each block's largest budget."""
    lines = []
    for block, _ in parts:
        for attack, label in zip(block.attacks, block.labels, strict=True):
            chosen = attack_rows(rows, block, attack) & (rows["eps"] == block.budgets[-1])
            cells = [number(float(valid_mean(rows[name][chosen])), digits) for name, digits in _DIAGNOSTICS.values()]
            where = [code(block.victim), code(block.mode), f"{block.budgets[-1]:.3g}"]
            lines.append([*where, objective_text(attack.objective), optimizer_text(label), *cells])
    return table(["victim", "mode", "ε", "objective", "optimizer", *_DIAGNOSTICS], lines, left=5)


def missing_cells(parts: Parts) -> list[tuple[str, str, str, str, str, int]]:
    """Return victim, mode, task, attack, budget and number of seeds of all cells that lack rows; clean ones once."""
    found = {}
    for block, _ in parts:
        for task, name in enumerate(block.tasks):
            for i, (attack, label) in enumerate(zip(block.attacks, block.labels, strict=True)):
                for k, eps in enumerate(block.budgets):
                    seeds = int(block.missing[task, :, i, k].sum())
                    kind = (block.mode, f"{attack.objective}, {label}") if k else ("", "clean")
                    if seeds:
                        found[block.victim, *kind, name, float(eps)] = seeds
    return [(v, m, t, a, f"{e:.3g}", n) for (v, m, a, t, e), n in found.items()]


def missing_table(parts: Parts) -> str:
    """Return the cells that lack rows, the first of them where they are many."""
    cells = missing_cells(parts)
    lines = [[code(v), code(m) if m else MISSING, code(t), code(a), e, str(n)] for v, m, t, a, e, n in cells[:_LISTED]]
    more = len(cells) - len(lines)
    text = table(["victim", "mode", "task", "attack", "ε", "missing seeds"], lines, left=4)
    return text + (f"\n\n… and {count(more, 'more cell')}." if more else "")


def _estimate(part: Estimate, scale: float, digits: int) -> str:
    value, low, high = (scale * float(x) for x in (part.value, part.low, part.high))
    return MISSING if np.isnan(value) else f"{number(value, digits)} {interval(low, high, digits)}"


def _digits(scale: float) -> int:
    """Return the decimals that a return needs, of which `scale` is the largest possible."""
    return 3 if scale <= 1 else 2 if scale <= 10 else 0
