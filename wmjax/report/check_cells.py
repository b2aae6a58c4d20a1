"""Rows by cell, for self-checks: which episodes differ in their seed only, and what a check found in them."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wmjax.metrics import valid_mean
from wmjax.report.condition import Setting, setting_name, told_axes
from wmjax.report.labels import budget_label, optimizer_label
from wmjax.report.load_results import Rows
from wmjax.report.markdown import code
from wmjax.report.scores import Attack, Floats, episode_returns, row_attacks
from wmjax.report.tables import attack_text


class Cell(NamedTuple):
    """Everything that names an episode but its seed."""

    victim: str
    task: str
    setting: Setting
    attack: Attack
    eps: float

    def clean(self) -> "Cell":
        """Return the clean cell of the same victim, task and defense."""
        setting = Setting("none", "none", "none", self.setting.defense, False)
        return Cell(self.victim, self.task, setting, Attack("clean", "none", 0, "none", 0), 0.0)


class Fired(NamedTuple):
    """A cell that a check points at."""

    cell: Cell
    numbers: Mapping[str, float]  #: what speaks against it, by name


@dataclass(frozen=True)
class Cells:
    """The episodes of a study by cell."""

    rows: Rows
    episodes: Mapping[Cell, NDArray[np.intp]]  #: positions in the columns; cells in the order of the rows
    scores: Floats  #: of every row: return / largest return, NaN where the outcome is not one

    def attacked(self) -> dict[Cell, NDArray[np.intp]]:
        """Return the cells of attacks that follow an objective with a budget above 0."""
        return {
            cell: places
            for cell, places in self.episodes.items()
            if cell.attack.objective not in ("clean", "random") and cell.eps > 0
        }

    def mean(self, column: str, cell: Cell) -> float:
        """Return the mean of a diagnostic over the cell's episodes; NaN where it has none."""
        return float(valid_mean(self.rows[column][self.episodes[cell]]))

    def by_seed(self, cell: Cell) -> dict[int, float]:
        """Return the scores that are one, by seed; empty for a cell without rows."""
        places = self.episodes.get(cell, np.zeros(0, np.intp))
        pairs = zip(self.rows["seed"][places].tolist(), self.scores[places].tolist(), strict=True)
        return {seed: score for seed, score in pairs if score == score}


def cells(rows: Rows) -> Cells:
    """Return the episodes of `rows` by cell."""
    settings = zip(*(rows[axis].tolist() for axis in Setting._fields), strict=True)
    places: dict[Cell, list[int]] = defaultdict(list)
    names = zip(rows["victim"], rows["task"], settings, row_attacks(rows), rows["eps"].tolist(), strict=True)
    for i, (victim, task, setting, attack, eps) in enumerate(names):
        place = Setting(*setting)
        place = place if place.transferred else place._replace(source="self")  # noise and clean episodes know none
        places[Cell(victim, task, place, attack, eps)].append(i)
    return Cells(
        rows, {cell: np.array(own) for cell, own in places.items()}, episode_returns(rows) / rows["max_return"]
    )


def cell_text(cell: Cell, study: Cells) -> str:
    """Return the cell's name in the report: `agent` on `task`, VSA by PGD-10, and so on, inert."""
    told = told_axes(other.setting for other in study.episodes if other.attack.objective != "clean")
    attack, label = cell.attack, optimizer_label(cell.attack.optimizer, cell.attack.steps)
    likes = {other.attack for other in study.episodes if other.attack[:3] == attack[:3]}
    label += f", {attack.noise} noise, draws: {attack.draws}" if len(likes) > 1 else ""
    return (
        f"{code(cell.victim)} on {code(cell.task)}, {code(setting_name(cell.setting, told))}: "
        f"{attack_text(attack.objective, label)}, ε = {budget_label(cell.eps)}"
    )
