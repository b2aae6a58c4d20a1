"""The report's tables: clean returns, nAUC, returns by budget, diagnostics, and the cells without a row."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from wmjax.metrics import valid_mean
from wmjax.report.folder import Rows
from wmjax.report.markdown import MISSING, code, count, interval, number, table
from wmjax.report.names import OBJECTIVES, budget_label, objective_label
from wmjax.report.scores import Block, Estimate, Summary, attack_rows, clean_returns, expected_seeds

Parts = Sequence[tuple[Block, Summary]]
"""Blocks of one study, each with its summary, by victim, then setting; attacks, budgets and seeds are the same in all.
"""

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


def attack_text(objective: str, label: str) -> str:
    """Return `VSA, value suppression, by PGD-10` for an objective and its optimizer's label."""
    return objective_text(objective) if label == "none" else f"{objective_text(objective)}, by {optimizer_text(label)}"


def clean_table(rows: Rows) -> str:
    """Return the clean return of every victim on every task it has rows for; by defense where there are any."""
    columns = ["victim", "agent", "task", *(["defense"] if {*rows["defense"]} != {"none"} else [])]
    lines = []
    for names in sorted(set(zip(*(rows[column] for column in columns), strict=True))):
        victim, _, task, defense = (*names, "none")[:4]
        mean, episodes = clean_returns(rows, victim, task, defense)
        largest = float(rows["max_return"][(rows["victim"] == victim) & (rows["task"] == task)][0])
        shown = estimate_text(mean, 1.0, _digits(largest))
        lines.append([*map(code, names), shown, f"{largest:g}", str(episodes)])
    return table([*columns, "clean return", "largest possible", "episodes"], lines, left=len(columns))


def nauc_table(parts: Parts) -> str:
    """Return nAUC by victim and objective: the mean over optimizers, then each of several; the lowest is bold."""
    lines, columns = [], parts[0][0].columns
    for block, summary in parts:
        means = summary.by_objective
        for i, name in enumerate(block.objectives):
            strongest = not np.isnan(means.value).any() and i == np.argmin(means.value)
            mean = estimate_text(means[i], 1.0, 3)
            places = [block.position(name, column) for column in columns]
            each = [MISSING if place is None else estimate_text(summary.by_attack[place], 1.0, 3) for place in places]
            lines.append([code(block.victim), objective_text(name), f"**{mean}**" if strongest else mean, *each])
    header = ["victim", "objective", "mean", *(optimizer_text(column) for column in columns)]
    if len(columns) == 1:
        header, lines = [*header[:2], header[3]], [line[:3] for line in lines]
    return table(header, lines, left=2)


def returns_table(parts: Parts) -> str:
    """Return the mean return over tasks by budget; as a share of the largest return where tasks differ in that."""
    scales = np.unique(np.concatenate([block.scale for block, _ in parts]))
    scale = float(scales[0]) if scales.size == 1 else 1.0
    lines, budgets = [], parts[0][0].budgets
    for block, summary in parts:
        for i, (attack, label) in enumerate(zip(block.attacks, block.labels, strict=True)):
            cells = [estimate_text(summary.by_budget[i, k], scale, _digits(scale)) for k in range(budgets.size)]
            lines.append([code(block.victim), objective_text(attack.objective), optimizer_text(label), *cells])
    header = ["victim", "objective", "optimizer", *(f"ε = {budget_label(eps)}" for eps in budgets)]
    return table(header, lines, left=3)


def diagnostics_table(rows: Rows, parts: Parts) -> str:
    """Return the means of the recorded diagnostics over the episodes at each block's largest budget."""
    lines = []
    for block, _ in parts:
        for attack, label in zip(block.attacks, block.labels, strict=True):
            chosen = attack_rows(rows, block, attack) & (rows["eps"] == block.budgets[-1])
            cells = [number(float(valid_mean(rows[name][chosen])), digits) for name, digits in _DIAGNOSTICS.values()]
            where = [code(block.victim), code(block.name), budget_label(block.budgets[-1])]
            lines.append([*where, objective_text(attack.objective), optimizer_text(label), *cells])
    return table(["victim", _axis(parts), "ε", "objective", "optimizer", *_DIAGNOSTICS], lines, left=5)


class Missing(NamedTuple):
    """A cell that lacks the rows of some seeds."""

    victim: str
    setting: str
    task: str
    attack: str
    eps: float
    seeds: int  #: how many


def missing_cells(rows: Rows, study: Mapping[str, Any], parts: Parts) -> list[Missing]:
    """Return what the study asks for and has no rows: clean episodes first, then cells by block."""
    seeds, found = expected_seeds(rows, study), []
    defenses = sorted({*(block.setting.defense for block, _ in parts), *rows["defense"]})
    pairs = sorted(set(zip(rows["victim"], rows["task"], strict=True)))
    for (victim, task), defense in product(pairs, defenses):
        same = [rows["victim"] == victim, rows["task"] == task, rows["defense"] == defense]
        clean = np.all([*same, rows["objective"] == "clean"], axis=0)
        name = "none" if defense == "none" else f"none, defense {defense}"
        found.append(Missing(victim, name, task, "clean", 0.0, seeds.size - np.unique(rows["seed"][clean]).size))
    settings = {block.setting for block, _ in parts}
    for block, _ in parts:
        counts = block.missing.sum(axis=1)
        twin = block.setting.adaptive and block.setting._replace(adaptive=False) in settings
        for task, i, k in np.argwhere(counts[:, :, 1:]):
            objective = block.attacks[i].objective
            if not (twin and objective == "random"):  # its episodes belong to both settings
                attack = f"{objective_label(objective)}, {block.labels[i]}"
                eps, amount = float(block.budgets[k + 1]), int(counts[task, i, k + 1])
                found.append(Missing(block.victim, block.name, block.tasks[task], attack, eps, amount))
    return [cell for cell in found if cell.seeds]


def missing_table(cells: Sequence[Missing], parts: Parts) -> str:
    """Return the cells that lack rows, the first of them where they are many."""
    lines = [[*map(code, cell[:4]), budget_label(cell.eps), str(cell.seeds)] for cell in cells[:_LISTED]]
    text = table(["victim", _axis(parts), "task", "attack", "ε", "missing seeds"], lines, left=4)
    more = len(cells) - len(lines)
    return text + (f"\n\n… and {count(more, 'more cell')}." if more else "")


def estimate_text(part: Estimate, scale: float, digits: int) -> str:
    """Return `0.417 [0.367, 0.467]`, `scale` times the estimate; a dash where it is undefined."""
    value, low, high = (scale * float(x) for x in (part.value, part.low, part.high))
    return MISSING if np.isnan(value) else f"{number(value, digits)} {interval(low, high, digits)}"


def _axis(parts: Parts) -> str:
    """Return the heading of the settings' names: only their modes differ, or more does."""
    return "mode" if all(block.name == block.setting.mode for block, _ in parts) else "setting"


def _digits(scale: float) -> int:
    """Return the decimals that a return needs, of which `scale` is the largest possible."""
    return 3 if scale <= 1 else 1 if scale <= 100 else 0
