"""The report's page: its sections in reading order, as Markdown."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from wmjax.report.cells import Cells, cell_text, cells
from wmjax.report.checks import Finding, check
from wmjax.report.findings import outcomes, warnings
from wmjax.report.folder import Manifest, Rows
from wmjax.report.markdown import bullets, code, count, prose, table
from wmjax.report.names import budget_label, mode_order, objective_order, optimizer_label
from wmjax.report.recoveries import recovery_section
from wmjax.report.scores import episode_returns, has_nauc
from wmjax.report.settings import Setting, attacked_rows
from wmjax.report.tables import (
    Missing,
    Parts,
    clean_table,
    diagnostics_table,
    missing_cells,
    missing_table,
    nauc_table,
    returns_table,
)

_FIRST = 5
"""Cells shown of those in which a check fired."""

_METHOD = """\
- **Score**: return / largest possible return. A curve is the mean score over seeds at each budget ε; its first point,
  ε = 0, is the clean episode, which all attacks share. Lower means that the attack hurts more. Where tasks differ in
  their largest return, the table of mean returns holds scores.
- **nAUC**: the area under that curve by the trapezoidal rule, divided by the range of the budgets (equations 13 and 14
  of [arXiv 2606.16605](https://arxiv.org/abs/2606.16605)), so the mean score over budgets. It is not divided by the
  agent's own clean score: without effect of any attack, nAUC is the clean score. The mean of an objective goes over
  tasks and optimizers (equation 15); random noise needs no optimizer and stands for each.
- **Brackets**: 95 % percentile intervals of a bootstrap over seeds: 2,000 draws, tasks as strata, the same draw for all
  attacks and budgets, so that differences are paired. They cover the choice of seeds, not the agent's training.
- **A dash** is a number that the rows cannot give: a cell without rows, or an interval from one seed.
"""


def render(rows: Rows, manifest: Manifest, parts: Parts, figures: Mapping[Setting, str], episode: str) -> str:
    """Return the page. `figures` maps each setting to its picture; `episode` is the text on the video."""
    missing, study = missing_cells(rows, manifest.study, parts), cells(rows)
    findings = check(study)
    care = bullets([*map(prose, manifest.notes), *warnings(rows, manifest.study, parts, missing, findings)])
    sections = [
        ("# Robustness under attack", bullets(outcomes(parts)) or "No attacked episodes yet."),
        ("## Read this first", care or "Nothing in these rows asks for special care."),
        ("## What was tested", _tested(rows, manifest, missing, parts)),
        ("## Clean returns", clean_table(rows)),
        *(_attacked([part for part in parts if part[0].setting == setting], figures[setting]) for setting in figures),
        ("## Defenses", recovery_section(parts)),
        ("## Inside the attacks", _inside(rows, parts)),
        ("## Self-checks", _checks(findings, study)),
        ("## One episode, clean and attacked", episode),
        ("## How the numbers are made", _METHOD),
    ]
    return "".join(f"{heading}\n\n{body.strip()}\n\n" for heading, body in sections if body).rstrip() + "\n"


def _tested(rows: Rows, manifest: Manifest, missing: Sequence[Missing], parts: Parts) -> str:
    attacked, clean = attacked_rows(rows), rows["objective"] == "clean"
    optimizers = {
        optimizer_label(name, steps)
        for name, steps in zip(rows["optimizer"][attacked], rows["steps"][attacked].tolist(), strict=True)
    }
    hashes = sorted(set(zip(rows["victim"], rows["victim_sha256"], strict=True)))
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
        + (f"{probes:,} attacked with ε = 0 as a check, " if (probes := int(np.sum(~attacked & ~clean))) else "")
        + f"of {_ranges(np.unique(rows['length']))} agent steps",
        "left out, not finite": count(int(np.isnan(episode_returns(rows)).sum()), "episode"),
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
    text = table(["", ""], [[name, value or "none"] for name, value in facts.items()], left=2)
    return text + (f"\n\nCells without rows:\n\n{missing_table(missing, parts)}" if missing else "")


def _unusual(rows: Rows, attacked: NDArray[np.bool_]) -> dict[str, str]:
    """Return what is tested of the axes that an ordinary study leaves as they are."""
    usual = {"region": {"all"}, "frames": {"float"}, "defense": {"none"}}
    found = {axis: {*rows[axis][attacked]} for axis in usual}
    facts = {axis: _names(sorted(found[axis])) for axis in usual if found[axis] - usual[axis]}
    return {{"region": "regions", "defense": "defenses"}.get(axis, axis): text for axis, text in facts.items()}


def _attacked(own: Parts, picture: str) -> tuple[str, str]:
    """Return heading and text of one setting's section."""
    text = f"![Return over budget, one curve an attack]({picture})\n\n"
    if has_nauc(own[0][0]):
        text += "nAUC, mean over tasks; lower means more harm, the lowest mean of a victim is bold.\n\n"
        text += f"{nauc_table(own)}\n\nMean return by budget:\n\n"
    else:
        text += "There is no nAUC: a single budget has no area under its curve. The returns instead:\n\n"
    return f"## Attacked: {code(own[0][0].name)}", text + returns_table(own)


def _inside(rows: Rows, parts: Parts) -> str:
    if not parts:
        return ""
    return (
        "Means over attacked frames and episodes at the largest budget.\n\n"
        f"{diagnostics_table(rows, parts)}\n\n"
        "Zero gradients: share of the attack's gradients that were exactly zero over the whole frame. Action change: "
        "L1 distance to the action that the clean frame would have caused. Policy KL: from the policy on the clean "
        "frame. Drift of z: squared distance of the latent to the clean frame's. Drift of h: squared distance of the "
        "recurrent state to that of a twin that saw every frame unattacked and took the same actions. Loss: what the "
        "attack maximises, at its start and its end."
    )


def _checks(findings: Sequence[Finding], study: Cells) -> str:
    lines, details = [], ""
    for finding in findings:
        amount = len(finding.fired)
        result = f"**fired** in {count(amount, 'cell')}" if amount else "silent"
        result = f"not applicable: {finding.not_applicable}" if finding.not_applicable else result
        lines.append([code(finding.name), result, finding.meaning])
        if amount:
            cells = [
                f"{cell_text(cell, study)}: {', '.join(f'{name} {value:.4g}' for name, value in numbers.items())}"
                for cell, numbers in finding.fired[:_FIRST]
            ]
            more = [f"and {count(amount - _FIRST, 'more cell')}"] if amount > _FIRST else []
            details += f"\n\n{code(finding.name)} fired in:\n\n{bullets([*cells, *more])}"
    return (
        "What would show that an attack is weaker than it looks, or that the measurement is at fault. "
        "`docs/self_checks.md` says of each why, and what to do.\n\n"
        f"{table(['check', 'here', 'what it means when it fires'], lines, left=3)}{details}"
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(code(name) for name in names)


def _ranges(numbers: NDArray[np.integer]) -> str:
    """Return increasing integers in short: `20–39 (20)`, `3, 7`."""
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    text = ", ".join(f"{run[0]}–{run[-1]}" if run.size > 1 else f"{run[0]}" for run in runs)
    return f"{text} ({numbers.size})" if numbers.size > 2 else text
