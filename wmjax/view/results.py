"""What the page knows of a results folder: its cells by axis, and everything about one of them. All of it is JSON."""

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmjax.metrics import interval, normalised_drop, resampled_means, valid_mean
from wmjax.report.check_cells import Cell, Fired, cells
from wmjax.report.checks import check
from wmjax.report.labels import budget_label, objective_label
from wmjax.report.load_results import read_manifest, read_rows
from wmjax.report.markdown import plain
from wmjax.report.scores import DRAW, Block, Estimate, Summary, attack_rows, blocks, has_nauc, summarise
from wmjax.study.schema import CELL
from wmjax.view.cell_labels import ALWAYS, LABELS, digest, form, order, places, text, title
from wmjax.view.trace_api import DIAGNOSTICS, recorded

Json = dict[str, Any]

_LISTED = 30  # cells named with each self-check, at most


class Results:
    """A results folder, read once; ids of cells and recorded episodes are the same whenever it is read."""

    def __init__(self, folder: Path) -> None:
        """Read rows, manifest and traces; raises InputError, naming the file, where rows or manifest are wrong."""
        self.folder = folder
        self.rows, self.manifest = read_rows(folder), read_manifest(folder)
        self.name = plain(self.manifest.study.get("name") or folder.resolve().name)  #: the study's, else the folder's
        self._study = cells(self.rows)
        attacked = [cell for cell in self._study.episodes if cell.eps > 0]
        self._cells = {digest(cell): cell for cell in attacked or self._study.episodes}
        keys = zip(*(self.rows[name].tolist() for name in CELL), strict=True)
        at = {key: i for i, key in enumerate(keys)}
        files, self._bad = recorded(folder)
        self._trace = {at[key]: digest(key) for key in files if key in at}  # by row
        self.traces = {digest(key): file for key, file in files.items() if key in at}  #: recorded episodes by id

    def title(self) -> str:
        """Return what is attacked and how, for a folder of a single attack; foreign text."""
        cell = next(iter(self._cells.values()))
        return f"{title(cell)}: {cell.victim}, seed {self.rows['seed'][self._study.episodes[cell][0]]}"

    def overview(self) -> Json:
        """Return the axes with their values, the cells as positions on them, what to know, and the self-checks."""
        cells = [places(cell) for cell in self._cells.values()]
        # Noise has no optimizer and knows no defense: that it differs in such things is nothing to choose.
        guided = [cell for cell in cells if cell["objective"] != "random"] or cells
        axes, positions = [], []
        for name in cells[0]:
            values = sorted({cell[name] for cell in cells}, key=partial(order, name))
            at = {value: i for i, value in enumerate(values)}
            positions.append([at[cell[name]] for cell in cells])
            shown = name in ALWAYS or len({cell[name] for cell in guided}) > 1
            words = [text(name, value) for value in values]
            axes.append({"name": name, "label": LABELS.get(name, name), "shown": shown, "values": words})
        return {
            "name": self.name,
            "axes": axes,
            "cells": [
                {"id": id, "at": at, "recorded": any(int(i) in self._trace for i in self._study.episodes[cell])}
                for (id, cell), at in zip(self._cells.items(), zip(*positions, strict=True), strict=True)
            ],
            "first": min(self._cells, key=self._worth_showing),
            "notes": [plain(note) for note in (*self.manifest.notes, *self._bad)],
            "checks": [
                {
                    "name": finding.name,
                    "meaning": finding.meaning,
                    "fired": len(finding.fired),
                    "unasked": finding.not_applicable,
                    "cells": [self._link(fired) for fired in finding.fired[:_LISTED]],
                }
                for finding in self._findings
            ],
        }

    def cell(self, id: str) -> Json | None:
        """Return a cell's numbers, episodes, curve and findings; None where there is no such cell."""
        cell = self._cells.get(id)
        if cell is None:
            return None
        own, beside = (self._study.episodes.get(each, np.zeros(0, np.intp)) for each in (cell, cell.clean()))
        largest = float(self.rows["max_return"][own[0]])
        attacked, clean = self._mean(own), self._mean(beside)
        drop = normalised_drop(largest * clean.value, largest * attacked.value)
        block = self._block(cell, own[0])
        summary = None if block is None else summarise(block)
        return {
            "id": id,
            "title": title(cell),
            "about": f"{cell.victim} on {cell.task}",
            "form": form(cell) | {"length": int(self.rows["length"][own[0]])},
            "largest": largest,
            "return": _estimate(attacked, largest),
            "clean": _estimate(clean, largest),
            "drop": _number(float(drop)),
            "nauc": self._nauc(block, summary, cell) if block and summary else None,
            "facts": {name: _number(self._study.mean(name, cell)) for name in DIAGNOSTICS},
            "meanings": DIAGNOSTICS,
            "episodes": self._episodes(own, beside),
            "curve": self._curve(block, summary, cell) if block and summary else None,
            "findings": [
                {
                    "name": finding.name,
                    "meaning": finding.meaning,
                    "numbers": {name: _number(value) for name, value in fired.numbers.items()},
                }
                for finding in self._findings
                for fired in finding.fired
                if fired.cell == cell
            ],
        }

    def _worth_showing(self, id: str) -> tuple:
        """Return the sorting key of what to begin with: recorded, of the lowest return."""
        own = self._study.episodes[self._cells[id]]
        score = float(valid_mean(self._study.scores[own]))
        return not any(int(i) in self._trace for i in own), math.isnan(score), score, id

    @cached_property
    def _findings(self) -> list[Any]:
        return check(self._study)

    @cached_property
    def _blocks(self) -> list[Block]:
        return blocks(self.rows, self.manifest.study)

    def _link(self, fired: Fired) -> Json:
        id = digest(fired.cell)
        about = f"{title(fired.cell)}: {fired.cell.victim} on {fired.cell.task}"
        return {"id": id if id in self._cells else None, "title": about}  # probes are no cells of the page

    def _mean(self, own: NDArray[np.intp]) -> Estimate:
        scores = self._study.scores[own][None]
        draws = resampled_means(scores, np.random.default_rng(DRAW))
        return Estimate(valid_mean(scores, axis=1), *interval(draws))[0]

    def _episodes(self, own: NDArray[np.intp], beside: NDArray[np.intp]) -> list[Json]:
        clean = {int(self.rows["seed"][i]): int(i) for i in beside}
        return [
            {
                "seed": (seed := int(self.rows["seed"][i])),
                "error": self.rows["error"][i],
                "attacked": self._episode(int(i)),
                "clean": self._episode(clean.get(seed)),
            }
            for i in own
        ]

    def _episode(self, row: int | None) -> Json:
        if row is None:
            return {"return": None, "trace": None}
        return {"return": _number(self.rows["return"][row]), "trace": self._trace.get(row)}

    def _block(self, cell: Cell, row: int) -> Block | None:
        """Return the cell's task of the block that its curve is of; noise belongs to several, and any will do."""
        for block in self._blocks:
            if cell.attack in block.attacks and attack_rows(self.rows, block, cell.attack)[row]:
                at = [block.tasks.index(cell.task)]
                own = {name: getattr(block, name)[at] for name in ("scale", "scores", "missing")}
                return replace(block, tasks=(cell.task,), **own)
        return None

    def _nauc(self, block: Block, summary: Summary, cell: Cell) -> Json | None:
        if not has_nauc(block):
            return None
        return _estimate(summary.by_attack[block.attacks.index(cell.attack)], 1.0)

    def _curve(self, block: Block, summary: Summary, cell: Cell) -> Json:
        largest, curves = float(block.scale[0]), summary.curves[0]
        ids = {}
        for id, other in self._cells.items():
            noise = "random" in (cell.attack.objective, other.attack.objective)
            alike = other.setting == cell.setting or (noise and other.setting[:4] == cell.setting[:4])
            if alike and other[:2] == cell[:2]:
                ids[other.attack, other.eps] = id
        return {
            "labels": [budget_label(eps) for eps in block.budgets.tolist()],
            "budgets": block.budgets.tolist(),
            "largest": largest,
            "setting": block.name,
            "attacks": [
                {
                    "name": objective_label(attack.objective) + ("" if label == "none" else f" {label}"),
                    "chosen": attack == cell.attack,
                    "cells": [ids.get((attack, eps)) for eps in block.budgets.tolist()],
                    "value": _list(largest * curves.value[i]),
                    "low": _list(largest * curves.low[i]),
                    "high": _list(largest * curves.high[i]),
                }
                for i, (attack, label) in enumerate(zip(block.attacks, block.labels, strict=True))
            ],
        }


def _number(value: float) -> float | None:
    """Return the value with six digits, None where it is not finite: JSON knows no NaN."""
    return float(f"{float(value):.6g}") if math.isfinite(value) else None


def _list(values: Iterable[float]) -> list[float | None]:
    return [_number(value) for value in values]


def _estimate(estimate: Estimate, scale: float) -> Json:
    return {part: _number(scale * float(getattr(estimate, part))) for part in ("value", "low", "high")}
