"""The report's tables: clean returns, nAUC, returns by budget, diagnostics, and the cells without an outcome."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from wmjax.metrics import valid_mean
from wmjax.report.condition import Setting, noise_setting, setting_name, told_axes
from wmjax.report.document import Table, Value
from wmjax.report.labels import OBJECTIVES, budget_label, objective_label, optimizer_label
from wmjax.report.load_results import Rows
from wmjax.report.markdown import MISSING, code, prose
from wmjax.report.scores import (
    Block,
    Estimate,
    Summary,
    attack_rows,
    clean_returns,
    expected_seeds,
    failed_rows,
)

Parts = Sequence[tuple[Block, Summary]]
"""Blocks of one study, each with its summary, by victim, then setting; attacks, budgets and seeds are the same in all.
"""

Lines = tuple[tuple[str | Value, ...], ...]

_DIAGNOSTICS = {
    "zero gradients": ("zero_grad", 3),
    "action change": ("action_change", 3),
    "flips": ("flip", 3),
    "policy KL": ("policy_kl", 3),
    "drift of z": ("drift_z", 2),
    "drift of h": ("drift_h", 2),
    "loss, first": ("loss_first", 3),
    "loss, last": ("loss_last", 3),
}
_LISTED = 40  # lines of missing or failed cells at most
_LETTERS = 200  # of why an episode failed, at most


def objective_text(name: str) -> str:
    """Return `VSA, value suppression` for `vsa`; an unknown name as code."""
    return ", ".join(OBJECTIVES[name]) if name in OBJECTIVES else code(name)


def label_text(objective: str) -> str:
    """Return `VSA` for `vsa`; an unknown name as code."""
    return objective_label(objective) if objective in OBJECTIVES else code(objective)


def optimizer_text(label: str) -> str:
    """Return an optimizer's label; a dash where none is needed; a label with unusual characters as code."""
    return MISSING if label == "none" else label if label.replace("-", "").isalnum() else code(label)


def attack_text(objective: str, label: str) -> str:
    """Return `VSA, value suppression, by PGD-10` for an objective and its optimizer's label."""
    return objective_text(objective) if label == "none" else f"{objective_text(objective)}, by {optimizer_text(label)}"


def clean_table(rows: Rows) -> Table:
    """Return the clean return of every victim on every task it has rows for; by defense where there are any."""
    columns = ["victim", "agent", "task", *(["defense"] if {*rows["defense"]} != {"none"} else [])]
    lines: list[tuple[str | Value, ...]] = []
    for names in sorted(set(zip(*(rows[column] for column in columns), strict=True))):
        victim, _, task, defense = (*names, "none")[:4]
        mean, episodes = clean_returns(rows, victim, task, defense)
        largest = float(rows["max_return"][(rows["victim"] == victim) & (rows["task"] == task)][0])
        shown = estimate_value(mean, 1.0, _digits(largest))
        words = (f"{largest:g}", "", "")
        lines.append((*map(code, names), shown, Value(largest, words=words), Value(episodes, digits=0)))
    header = (*columns, "clean return", "largest possible", "episodes")
    return Table("clean", header, tuple(lines), len(columns), "Mean return without attack.")


def nauc_table(name: str, parts: Parts) -> Table:
    """Return nAUC by victim and objective: the mean over optimizers, then each of several; the lowest is strong."""
    lines: list[tuple[str | Value, ...]] = []
    columns = parts[0][0].columns
    for block, summary in parts:
        means = summary.by_objective
        for i, objective in enumerate(block.objectives):
            strongest = not np.isnan(means.value).any() and i == np.argmin(means.value)
            mean = estimate_value(means[i], 1.0, 3, strong=strongest)
            middle = estimate_value(summary.iqm_by_objective[i], 1.0, 3)
            places = [block.position(objective, column) for column in columns]
            each = [MISSING if at is None else estimate_value(summary.by_attack[at], 1.0, 3) for at in places]
            numbers = [mean, middle, *each] if len(columns) > 1 else [mean, middle]
            lines.append((code(block.victim), objective_text(objective), *numbers))
    labels = [optimizer_text(column) for column in columns]
    header = ("victim", "objective", *(["mean", "IQM", *labels] if len(columns) > 1 else [*labels, "IQM"]))
    caption = "nAUC, mean over tasks; lower means more harm, the lowest mean of a victim is bold."
    return Table(name, header, tuple(lines), 2, caption)


def returns_table(name: str, parts: Parts) -> Table:
    """Return the mean return over tasks by budget; as a share of the largest return where tasks differ in that."""
    scales = np.unique(np.concatenate([block.scale for block, _ in parts]))
    scale = float(scales[0]) if scales.size == 1 else 1.0
    lines: list[tuple[str | Value, ...]] = []
    budgets = parts[0][0].budgets
    for block, summary in parts:
        for i, (attack, label) in enumerate(zip(block.attacks, block.labels, strict=True)):
            cells = [estimate_value(summary.by_budget[i, k], scale, _digits(scale)) for k in range(budgets.size)]
            lines.append((code(block.victim), objective_text(attack.objective), optimizer_text(label), *cells))
    header = ("victim", "objective", "optimizer", *(f"ε = {budget_label(eps)}" for eps in budgets))
    what = "Mean return by budget." if scales.size == 1 else "Mean score by budget: returns over the largest possible."
    return Table(name, header, tuple(lines), 3, what)


def diagnostics_table(rows: Rows, parts: Parts) -> Table:
    """Return the means of the recorded diagnostics over the episodes at each block's largest budget."""
    lines: list[tuple[str | Value, ...]] = []
    for block, _ in parts:
        for attack, label in zip(block.attacks, block.labels, strict=True):
            chosen = attack_rows(rows, block, attack) & (rows["eps"] == block.budgets[-1])
            cells = [
                Value(float(valid_mean(rows[name][chosen])), digits=digits) for name, digits in _DIAGNOSTICS.values()
            ]
            where = [code(block.victim), code(block.name)]
            lines.append((*where, objective_text(attack.objective), optimizer_text(label), *cells))
    caption = (
        f"Means over attacked frames and episodes at the largest budget, ε = {budget_label(parts[0][0].budgets[-1])}."
    )
    header = ("victim", setting_axis(parts), "objective", "optimizer", *_DIAGNOSTICS)
    return Table("diagnostics", header, tuple(lines), 4, caption)


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
        twin = block.setting != noise_setting(block.setting) in settings
        for task, i, k in np.argwhere(counts[:, :, 1:]):
            objective = block.attacks[i].objective
            if not (twin and objective == "random"):  # its episodes belong to both settings
                attack = f"{objective_label(objective)}, {block.labels[i]}"
                eps, amount = float(block.budgets[k + 1]), int(counts[task, i, k + 1])
                found.append(Missing(block.victim, block.name, block.tasks[task], attack, eps, amount))
    return [cell for cell in found if cell.seeds]


def missing_table(cells: Sequence[Missing], parts: Parts) -> Table:
    """Return the cells that lack rows, budgets that lack as many in one line; the first lines where they are many."""
    found: dict[tuple[tuple[str, ...], int], list[float]] = {}
    for cell in cells:
        found.setdefault((cell[:4], cell.seeds), []).append(cell.eps)
    lines: Lines = tuple(
        (*map(code, names), _budgets(eps), Value(seeds, digits=0)) for (names, seeds), eps in found.items()
    )
    header = ("victim", setting_axis(parts), "task", "attack", "ε", "missing seeds")
    return Table("missing", header, lines[:_LISTED], 5, f"Cells without rows{_of(len(lines))}.")


def failed_table(rows: Rows) -> Table | None:
    """Return the cells whose episodes could not be played, and why; the first of them where they are many."""
    failed = np.flatnonzero(failed_rows(rows))
    if not failed.size:
        return None
    settings = [Setting(*place) for place in zip(*(rows[axis] for axis in Setting._fields), strict=True)]
    told = told_axes(settings[i] for i in failed if rows["objective"][i] != "clean")
    found: dict[tuple[str, ...], list[float]] = {}
    for i in failed:
        label = optimizer_label(rows["optimizer"][i], int(rows["steps"][i]))
        attack = f"{objective_label(rows['objective'][i])}, {label}"
        names = (rows["victim"][i], setting_name(settings[i], told), rows["task"][i], attack)
        why = prose(str(rows["error"][i])[:_LETTERS])
        found.setdefault((*map(code, names), why), []).append(float(rows["eps"][i]))
    lines: Lines = tuple(
        (*cell, _budgets(sorted({*eps})), Value(len(eps), digits=0)) for cell, eps in sorted(found.items())
    )
    header = ("victim", "setting", "task", "attack", "why", "ε", "episodes")
    return Table("failed", header, lines[:_LISTED], 6, f"Cells whose episodes could not be played{_of(len(lines))}.")


def _budgets(budgets: Sequence[float]) -> str:
    return ", ".join(map(budget_label, budgets))


def _of(lines: int) -> str:
    return f", the first {_LISTED} of {lines:,} lines" if lines > _LISTED else ""


def estimate_value(part: Estimate, scale: float, digits: int, *, strong: bool = False) -> Value:
    """Return `scale` times the estimate, with its interval, as a number of a table."""
    value, low, high = (scale * float(x) for x in (part.value, part.low, part.high))
    return Value(value, low, high, digits, interval=True, strong=strong)


def setting_axis(parts: Parts) -> str:
    """Return the heading of the settings' names: only their modes differ, or more does."""
    return "mode" if all(block.name == block.setting.mode for block, _ in parts) else "setting"


def _digits(scale: float) -> int:
    """Return the decimals that a return needs, of which `scale` is the largest possible."""
    return 3 if scale <= 1 else 1 if scale <= 100 else 0
