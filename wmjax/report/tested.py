"""The section on what was tested: every axis of the study as its rows show it, and the cells without an outcome."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from wmjax.report.condition import attacked_rows
from wmjax.report.document import Section, Table
from wmjax.report.labels import budget_label, mode_order, objective_order, optimizer_label
from wmjax.report.load_results import Manifest, Rows
from wmjax.report.markdown import code, count, prose
from wmjax.report.scores import failed_rows, left_out_rows
from wmjax.report.tables import Missing, Parts, failed_table, missing_table

_UNUSUAL = {
    "region": ("regions", {"all"}),
    "frames": ("frames", {"float"}),
    "defense": ("defenses", {"none"}),
    "source": ("attacks computed on", {"self", "none"}),
}
"""Axes that an ordinary study leaves as they are: column to (name, what is usual)."""


def tested_section(rows: Rows, manifest: Manifest, missing: Sequence[Missing], parts: Parts) -> Section:
    """Return the section."""
    attacked, clean = attacked_rows(rows), rows["objective"] == "clean"
    optimizers = {
        optimizer_label(name, steps)
        for name, steps in zip(rows["optimizer"][attacked], rows["steps"][attacked].tolist(), strict=True)
    }
    hashes = sorted(set(zip(rows["victim"], rows["victim_sha256"], strict=True)))
    probes = int(np.sum(~attacked & ~clean))
    facts = {
        "victims": ", ".join(f"{code(name)} (sha256 {code(digest[:12])})" for name, digest in hashes),
        "tasks": _names(sorted(set(rows["task"]))),
        "objectives": _names(sorted(set(rows["objective"][attacked]), key=objective_order)),
        "optimizers": _names(sorted(optimizers - {"none"})),
        "modes": _names(sorted(set(rows["mode"][attacked]), key=mode_order)),
        **_unusual(rows, attacked),
        "budgets ε": ", ".join(map(budget_label, np.unique(rows["eps"]))),
        "seeds": _ranges(np.unique(rows["seed"])),
        "episodes": f"{int(attacked.sum()):,} attacked, {int(clean.sum()):,} clean, "
        + (f"{probes:,} attacked with ε = 0 as a check, " if probes else "")
        + f"of {_ranges(np.unique(rows['length']))} agent steps",
        "left out, not finite": count(int(left_out_rows(rows).sum()), "episode"),
        "failed": count(int(failed_rows(rows).sum()), "episode"),
        "missing": count(sum(cell.seeds for cell in missing), "episode"),
        "device": _names(sorted({*rows["device"], manifest.device} - {""})),
        "physics and pixels": _names(sorted(set(rows["backend"]))),
        "versions": ", ".join(
            [*(f"wmjax {prose(version)}" for version in sorted(set(rows["wmjax"])))]
            + [
                f"{prose(name)} {prose(version)}"
                for name, version in sorted(manifest.versions.items())
                if name != "wmjax"
            ]
        ),
    }
    lines = tuple((name, value or "none") for name, value in facts.items())
    tables = [
        Table("tested", ("axis", "tested"), lines, 2),
        missing_table(missing, parts) if missing else None,
        failed_table(rows),
    ]
    return Section("What was tested", tuple(table for table in tables if table is not None))


def _unusual(rows: Rows, attacked: NDArray[np.bool_]) -> dict[str, str]:
    """Return what is tested of the axes that an ordinary study leaves as they are."""
    found = {axis: {*rows[axis][attacked]} for axis in _UNUSUAL}
    found["source"] -= {"none"}  # of random noise
    return {name: _names(sorted(found[axis])) for axis, (name, usual) in _UNUSUAL.items() if found[axis] - usual}


def _names(names: Iterable[str]) -> str:
    return ", ".join(code(name) for name in names)


def _ranges(numbers: NDArray[np.integer]) -> str:
    """Return increasing integers in short: `20–39 (20)`, `3, 7`."""
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    text = ", ".join(f"{run[0]}–{run[-1]}" if run.size > 1 else f"{run[0]}" for run in runs)
    return f"{text} ({numbers.size})" if numbers.size > 2 else text
