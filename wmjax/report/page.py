"""The report's sections, in reading order."""

from collections.abc import Sequence

from wmjax.report.breaking import breaking_budgets
from wmjax.report.check_cells import Cells, cell_text, cells
from wmjax.report.checks import Finding, check
from wmjax.report.condition import setting_order
from wmjax.report.curves import draw_curves
from wmjax.report.defense_recovery import recovery_section
from wmjax.report.directions import directions_section
from wmjax.report.document import Document, Figure, Part, Section, Table, Video
from wmjax.report.findings import warnings
from wmjax.report.load_results import Manifest, Rows
from wmjax.report.markdown import bullets, code, count, plain, prose
from wmjax.report.panels import tasks_section
from wmjax.report.published import published_section
from wmjax.report.ranking import ranking_section
from wmjax.report.reproduce import reproduce_section
from wmjax.report.scores import has_nauc
from wmjax.report.strongest import strongest_section
from wmjax.report.summary import broken_section, summary_section
from wmjax.report.tables import Parts, clean_table, diagnostics_table, missing_cells, nauc_table, returns_table
from wmjax.report.temporal import temporal_section
from wmjax.report.tested import tested_section
from wmjax.report.transfer import transfer_section

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
- **IQM**: the interquartile mean, of the middle half of all episodes' own nAUC (or score): a few odd episodes do not
  move it. Where it differs much from the mean, look at the episodes.
- **Brackets**: 95 % percentile intervals of a bootstrap over seeds: 2,000 draws, tasks as strata, the same draw for all
  attacks and budgets, so that differences are paired. They cover the choice of seeds, not the agent's training.
- **A dash** is a number that the rows cannot give: a cell without rows, or an interval from one seed.
"""

_DIAGNOSTICS = """\
Zero gradients: share of the attack's gradients that were exactly zero over the whole frame. Action change: L1 distance
to the action that the clean frame would have caused. Flips: share of frames on which that distance exceeds 0.1. Policy
KL: from the policy on the clean frame. Drift of z: squared distance of the latent to the clean frame's. Drift of h:
squared distance of the recurrent state to that of a twin that saw every frame unattacked and took the same actions.
Loss: what the attack maximises, at its start and its end.
"""


def assemble(rows: Rows, manifest: Manifest, parts: Parts, videos: Sequence[Video]) -> Document:
    """Return the report of a study's rows and manifest; `parts` are its blocks with their summaries."""
    missing, study = missing_cells(rows, manifest.study, parts), cells(rows)
    findings, broken = check(study), [breaking_budgets(block) for block, _ in parts]
    care = bullets([*map(prose, manifest.notes), *warnings(rows, manifest.study, parts, missing, findings)])
    sections = [
        summary_section(rows, manifest.notes, parts, broken, missing, findings),
        Section("Read this first", (care or "Nothing in these rows asks for special care.",)),
        broken_section(parts, broken),
        tested_section(rows, manifest, missing, parts),
        Section("Clean returns", (clean_table(rows),)),
        strongest_section(parts),
        *_attacked(parts),
        tasks_section(parts),
        temporal_section(parts),
        recovery_section(parts),
        transfer_section(parts),
        ranking_section(parts),
        directions_section(parts),
        published_section(rows, parts),
        Section("Inside the attacks", (diagnostics_table(rows, parts), _DIAGNOSTICS)) if parts else None,
        _checks(findings, study),
        _episodes(videos),
        Section("How the numbers are made", (_METHOD,)),
        reproduce_section(rows, manifest),
    ]
    name = str(manifest.study.get("name", ""))
    facts = [f"Study {code(name)}" if name else "", *(f"wmjax {prose(one)}" for one in sorted(set(rows["wmjax"])))]
    facts.append(f"run {prose(manifest.started[:10])}" if manifest.started else "")
    subtitle = " · ".join(filter(None, facts))
    return Document("Robustness under attack", subtitle, tuple(section for section in sections if section))


def _attacked(parts: Parts) -> list[Section]:
    """Return a section a setting, but for attacks computed on other agents, which have their own."""
    sections = []
    settings = {block.setting for block, _ in parts if not block.setting.transferred}
    for i, setting in enumerate(sorted(settings, key=setting_order), 1):
        own = [part for part in parts if part[0].setting == setting]
        number = "" if i == 1 else f"_{i}"
        alt = f"Return over budget, one curve an attack; frames attacked: {plain(own[0][0].name)}"
        found: list[Part] = [Figure(f"curves{number}", draw_curves(own), alt)]
        if has_nauc(own[0][0]):
            found.append(nauc_table(f"nauc{number}", own))
        else:
            found.append("There is no nAUC: a single budget has no area under its curve. The returns instead:")
        found.append(returns_table(f"returns{number}", own))
        sections.append(Section(f"Attacked: {code(own[0][0].name)}", tuple(found)))
    return sections


def _checks(findings: Sequence[Finding], study: Cells) -> Section:
    lines, details = [], ""
    for finding in findings:
        amount = len(finding.fired)
        result = f"**fired** in {count(amount, 'cell')}" if amount else "silent"
        result = f"not applicable: {finding.not_applicable}" if finding.not_applicable else result
        lines.append((code(finding.name), result, finding.meaning, finding.advice))
        if amount:
            found = [
                f"{cell_text(cell, study)}: {', '.join(f'{name} {value:.4g}' for name, value in numbers.items())}"
                for cell, numbers in finding.fired[:_FIRST]
            ]
            more = [f"and {count(amount - _FIRST, 'more cell')}"] if amount > _FIRST else []
            details += f"{code(finding.name)} fired in:\n\n{bullets([*found, *more])}\n\n"
    header = ("check", "here", "what it means when it fires", "what to do then")
    text = (
        "An attack that fails looks like an agent that resists. Each check asks one question that a sound attack on "
        "any agent would pass. One that fires does not say that the agent is weak: it says that some number here is no "
        "evidence that it is strong. A silent one proves nothing; it is one way less to be wrong."
    )
    table = Table("checks", header, tuple(lines), 4)
    return Section("Self-checks", (text, table, details) if details else (text, table))


def _episodes(videos: Sequence[Video]) -> Section:
    title = "Episodes, clean and attacked" if len(videos) > 1 else "One episode, clean and attacked"
    nothing = "No episodes were recorded as a clean and an attacked pair of one seed, so there is no video."
    if not videos:
        return Section(title, (nothing,))
    how = (
        "Left to right: the camera of the clean episode, the camera of the attacked one, what the attacked agent sees, "
        "and the perturbation, enlarged around grey. A frame around a picture marks an attacked step."
    )
    which = " For each objective, the recorded attack that left the lowest return." * (len(videos) > 1)
    return Section(title, (how + which, *videos))
