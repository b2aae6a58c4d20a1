"""What a reader signs: what was tested, what broke and at which budget, what was not, and what speaks against it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from wmjax.report.breaking import SHARE, breaking_table
from wmjax.report.checks import Finding
from wmjax.report.condition import attacked_rows
from wmjax.report.document import Facts, Section, Signature, Value
from wmjax.report.findings import outcomes
from wmjax.report.labels import OBJECTIVES, budget_label, objective_label
from wmjax.report.load_results import Rows
from wmjax.report.markdown import bullets, code, count, prose, value_texts
from wmjax.report.scores import failed_rows, left_out_rows
from wmjax.report.tables import Missing, Parts, label_text

_SIGNATURE = Signature(
    ("Name", "Role", "Date", "Signature"),
    ("acceptable for its use", "acceptable with conditions", "not acceptable"),
)
_BENCHMARK = tuple(OBJECTIVES)[:6]
_OUTCOMES = 6  # sentences at most; further settings are in the table only


def summary_section(
    rows: Rows, notes: Sequence[str], parts: Parts, broken: Sequence[Sequence[Value]], missing: Sequence[Missing],
    findings: Sequence[Finding],
) -> Section:  # fmt: skip
    """Return what is to be signed; `broken` holds each block's breaking budgets."""
    facts = Facts(
        (
            *((("To be known", tuple(map(prose, notes))),) if notes else ()),
            ("Tested", (_tested(rows),)),
            ("What broke", _broke(parts, broken)),
            ("Not tested", (_untested(rows),)),
            ("Self-checks", (_checked(findings),)),
            ("Missing or failed", (_lacking(rows, missing),)),
        )
    )
    return Section("Summary", (facts, _SIGNATURE))


def broken_section(parts: Parts, broken: Sequence[Sequence[Value]]) -> Section | None:
    """Return the table of breaking budgets and the outcome of each setting; None without attacks."""
    if not parts:
        return None
    sentences = outcomes(parts)
    more = [f"{count(len(sentences) - _OUTCOMES, 'further setting')} in the table."] * (len(sentences) > _OUTCOMES)
    text = bullets([*sentences[:_OUTCOMES], *more])
    return Section("What broke, at which budget", (breaking_table(parts, broken), text))


def _tested(rows: Rows) -> str:
    attacked = attacked_rows(rows)
    episodes = f"{count(int(attacked.sum()), 'attacked episode')}, {int((~attacked).sum()):,} with nothing added"
    if not attacked.any():
        return f"{count(len(attacked), 'episode')} without attack. No attacked episodes yet."
    axes = [count(np.unique(rows[name][attacked]).size, noun) for name, noun in (("victim", "agent"), ("task", "task"))]
    objectives = ", ".join(label_text(name) for name in OBJECTIVES if name in rows["objective"][attacked])
    others = np.unique([name for name in rows["objective"][attacked] if name not in OBJECTIVES])
    objectives += f"{' and ' if objectives else ''}{count(others.size, 'other objective')}" if others.size else ""
    eps = np.unique(rows["eps"][attacked])
    return (
        f"{axes[0]} on {axes[1]}, attacked through the image by {objectives}, at {count(eps.size, 'budget')} up to "
        f"ε = {budget_label(eps[-1])}, on {count(np.unique(rows['seed']).size, 'seed')}: {episodes}."
    )


def _broke(parts: Parts, broken: Sequence[Sequence[Value]]) -> tuple[str, ...]:
    """Return a sentence a victim: the smallest budget of all settings that breaks it."""
    if not parts:
        return ("Nothing was attacked yet.",)
    lines = []
    for victim in dict.fromkeys(block.victim for block, _ in parts):
        own = [(block, values) for (block, _), values in zip(parts, broken, strict=True) if block.victim == victim]
        every = [(value.value, i) for i, (_, values) in enumerate(own) for value in values]
        known = [pair for pair in every if pair[0] == pair[0]]
        least, at = min(known, default=(np.inf, 0))
        block, values = own[at]
        if np.isfinite(least):
            names = [name for name, value in zip(block.objectives, values, strict=True) if value.value == least]
            shown, span = value_texts(next(value for value in values if value.value == least))
            where = f" (frames attacked: {code(block.name)})" if len(own) > 1 else ""
            lines.append(
                f"{code(victim)} loses more than {100 * SHARE:g} % of its clean score from **ε = {shown}**"
                f"{' ' if span else ''}{span} on, to {' and '.join(map(label_text, names))}{where}."
            )
        elif len(known) < len(every):
            lines.append(f"{code(victim)}: open, cells are missing or the clean score is 0.")
        else:
            largest = budget_label(block.budgets[-1])
            lines.append(
                f"{code(victim)}: no attack takes more than {100 * SHARE:g} % of the clean score up to ε = {largest}."
            )
    return tuple(lines)


def _untested(rows: Rows) -> str:
    """Return which attacks of this program are not among the rows, and what no study of it tests."""
    attacked = attacked_rows(rows)

    def has(column: str, *usual: Any) -> bool:
        return bool({*rows[column][attacked].tolist()} - {*usual})

    absent = [objective_label(name) for name in _BENCHMARK if name not in rows["objective"][attacked]]
    gaps = [
        (bool(absent), f"the benchmark's {', '.join(absent)}"),
        (not has("optimizer", "none", "fgsm"), "attacks of several steps"),
        ("square" not in rows["optimizer"][attacked], "attacks without gradients"),
        (not has("source", "self", "none"), "attacks computed on other agents"),
        (not has("mode", "full"), "attacks in part of the frames"),
        (not has("region", "all"), "attacks in part of the image"),
        (not has("defense", "none"), "defenses"),
        (has("defense", "none") and not rows["adaptive"][attacked].any(), "attackers that know the defense"),
    ]
    here = [text for gap, text in gaps if gap]
    largest = f"Budgets above ε = {budget_label(rows['eps'].max())}; " if attacked.any() else ""
    return (
        f"{largest}{', '.join(here)}{'; ' if here else ''}other tasks, agents and seeds. No study of wmjax tests "
        "changes of the physics, real cameras or robots, actions, rewards or training data."
    )


def _checked(findings: Sequence[Finding]) -> str:
    fired = [code(finding.name) for finding in findings if finding.fired]
    idle = sum(bool(finding.not_applicable) for finding in findings)
    said = f"**{len(fired)} fired**: {', '.join(fired)}. Read them before any number" if fired else "None fired"
    asked = len(findings) - idle
    return f"{said}. {asked} of {len(findings)} checks had something to ask of this study."


def _lacking(rows: Rows, missing: Sequence[Missing]) -> str:
    amounts = {
        "missing": sum(cell.seeds for cell in missing),
        "failed": int(failed_rows(rows).sum()),
        "left out, not finite": int(left_out_rows(rows).sum()),
    }
    told = [f"**{count(amount, 'episode')}** {name}" for name, amount in amounts.items() if amount]
    return f"{', '.join(told)}." if told else "None: every cell of the study has its episodes."
