"""Self-checks: what in a study's rows shows that an attack is weaker than it looks, or the engine at fault.

After AutoAttack's flags (arXiv 2003.01690) and the list of arXiv 1902.06705. Each check has a section of its name in
docs/self_checks.md: why it exposes false robustness, and what to do; the report says both in short.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from wmjax.report.check_cells import Cell, Cells, Fired
from wmjax.report.comparisons import (
    FALSE_ALARM,
    gradient_cells,
    not_monotone_in_budget,
    not_monotone_in_steps,
    random_beats_gradient,
)

ZERO_GRADIENT = 0.01
"""Mean share of gradients that are exactly zero: a step in a hundred lost costs an attack little, more is a wall."""

RESTART_GAP = 0.25
"""Share of the loss's rise that only further starts found: had there been one start, a quarter would be missing."""

SATURATED = 0.25
"""Mean share of the image's values driven to 0 or 1: as many had no room for the budget, on one side at least."""

LOSS_ERROR = 1e-3
"""Relative error of a recomputed loss: a hundred times what float32 loses between two programs (about 1e-5)."""

FLIPS = 0.01
"""Share of episodes whose recomputed loss may differ because a sampled latent sat on an edge: a flip needs two of its
logits to tie within rounding, about 1e-5 of their range, in one of the tens of groups; this is generous."""

_NO_GRADIENT = "no optimizer that follows a gradient in this study"


@dataclass(frozen=True)
class Finding:
    """What a check says of a study."""

    name: str  #: stable
    meaning: str  #: what it means that it fired, one sentence
    advice: str  #: what to do then
    fired: tuple[Fired, ...] = ()  #: empty: silent
    not_applicable: str = ""  #: why there was nothing to check; empty where there was


@dataclass(frozen=True)
class Check:
    """A question to all cells of a study: the cells that are at fault, or why it cannot be asked."""

    name: str
    meaning: str
    advice: str
    ask: Callable[[Cells], tuple[Fired, ...] | str]


def check(study: Cells) -> list[Finding]:
    """Return what every check says of a study's cells, in the order of CHECKS."""
    findings = []
    for one in CHECKS:
        answer = one.ask(study)
        why, fired = (answer, ()) if isinstance(answer, str) else ("", answer)
        findings.append(Finding(one.name, one.meaning, one.advice, fired, why))
    return findings


def _zero_gradient(study: Cells) -> tuple[Fired, ...] | str:
    shares = {cell: study.mean("zero_grad", cell) for cell in gradient_cells(study)}
    if not shares:
        return _NO_GRADIENT
    return tuple(Fired(cell, {"share": share}) for cell, share in shares.items() if share >= ZERO_GRADIENT)


def _loss_did_not_rise(study: Cells) -> tuple[Fired, ...] | str:
    losses = {cell: (study.mean("loss_first", cell), study.mean("loss_last", cell)) for cell in gradient_cells(study)}
    if not losses:
        return _NO_GRADIENT
    return tuple(
        Fired(cell, {"first loss": first, "last loss": last}) for cell, (first, last) in losses.items() if last <= first
    )


def _restart_gap(study: Cells) -> tuple[Fired, ...] | str:
    gaps = {cell: study.mean("restart_gap", cell) for cell in study.attacked()}
    gaps = {cell: gap for cell, gap in gaps.items() if not math.isnan(gap)}
    if not gaps:
        return "no optimizer with restarts in this study"
    fired = []
    for cell, gap in gaps.items():
        rise = study.mean("loss_last", cell) - study.mean("loss_first", cell)
        if gap > 0 and gap >= RESTART_GAP * rise:
            fired.append(Fired(cell, {"gap": gap, "rise of the loss": rise}))
    return tuple(fired)


def _zero_budget_differs(study: Cells) -> tuple[Fired, ...] | str:
    probes = {cell: own for cell, own in study.episodes.items() if cell.attack.objective != "clean" and cell.eps == 0}
    probes = {cell: own for cell, own in probes.items() if cell.clean() in study.episodes}
    if not probes:
        return "no attack of budget 0 beside a clean episode in this study"
    fired = []
    for cell, own in probes.items():
        clean = {int(study.rows["seed"][i]): float(study.rows["return"][i]) for i in study.episodes[cell.clean()]}
        for i in own:
            change, returned = float(study.rows["max_delta"][i]), float(study.rows["return"][i])
            before = clean.get(int(study.rows["seed"][i]), returned)
            # Both are not a number where both episodes broke; without attacked frames there is no change to measure.
            same = returned == before or (math.isnan(returned) and math.isnan(before))
            if change > 0 or not same:
                fired.append(Fired(cell, {"return": returned, "clean return": before, "largest change": change}))
    return tuple(fired)


def _stored_frame(study: Cells) -> tuple[Fired, ...] | str:
    errors: dict[Hashable, list[float]] = defaultdict(list)
    where: dict[Hashable, Cell] = {}
    for cell, own in study.attacked().items():
        # Budgets share a program and a fault in it, and together they tell chance from fault.
        where.setdefault(cell[:-1], cell)
        errors[cell[:-1]] += [error for error in study.rows["loss_error"][own].tolist() if error == error]
    counts = {kind: (sum(error > LOSS_ERROR for error in found), len(found)) for kind, found in errors.items() if found}
    if not counts:
        return "no loss was computed afresh in this study"
    return tuple(
        Fired(where[kind], {"episodes that differ": differ, "of": total, "largest error": max(errors[kind])})
        for kind, (differ, total) in counts.items()
        if _at_least(differ, total, FLIPS) <= FALSE_ALARM / len(counts)
    )


def _at_least(hits: int, trials: int, chance: float) -> float:
    """Return the probability of `hits` or more among independent `trials`."""
    log = lambda k: math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)  # noqa: E731
    spread = (math.exp(log(k) + k * math.log(chance) + (trials - k) * math.log1p(-chance)) for k in range(hits))
    return 1.0 - sum(spread)


def _saturated_pixels(study: Cells) -> tuple[Fired, ...] | str:
    shares = {cell: study.mean("saturated", cell) for cell in study.episodes if cell.eps > 0}
    if not shares:
        return "no attacked episodes in this study"
    return tuple(Fired(cell, {"share": share}) for cell, share in shares.items() if share >= SATURATED)


CHECKS = (
    Check(
        "zero-gradient",
        "Gradients were exactly zero over the whole frame, and a step along them changes nothing: the attack is weaker "
        "than its name says, and no evidence of robustness.",
        "Use fresh noise, a random start, an objective that reads probabilities (VSA, DCA) or an attack without "
        "gradients; do not quote these cells, unless the return is at its floor already.",
        _zero_gradient,
    ),
    Check(
        "random-beats-gradient",
        "Random noise of the same budget leaves a clearly lower return than the attack: its gradients find nothing "
        "that chance does not, or its objective is not what the return depends on.",
        "Look at the loss: if it hardly rose, average gradients over draws, take more steps or restarts; if it "
        "rose, judge the agent by the objective that hurts it most, never by this one.",
        random_beats_gradient,
    ),
    Check(
        "not-monotone-in-budget",
        "The return clearly rises with the budget, though the larger ball holds the smaller one: the attack fails to "
        "find what is there.",
        "Use more steps or an optimizer that adapts them (APGD), and read the curve as if it stayed at its lowest "
        "value; small rises can be real in closed loop.",
        not_monotone_in_budget,
    ),
    Check(
        "not-monotone-in-steps",
        "More steps leave a clearly higher return than fewer: the steps do not climb, or climb something that does not "
        "hurt the agent.",
        "Compare the losses: if more steps reach a lower loss, the optimizer fails, so use momentum, APGD or more "
        "draws; if a higher one, they fit what does not matter to the return.",
        not_monotone_in_steps,
    ),
    Check(
        "loss-did-not-rise",
        "The attack's own objective was no higher after its steps than before them: it did not attack.",
        "Look for zero gradients in the same cells, check the budget's units (8 grey levels are 8/255), and that "
        "the attacked region has something in it.",
        _loss_did_not_rise,
    ),
    Check(
        "restart-gap",
        "Further starts found much of the loss that the first one missed: one start is not enough here, and more may "
        "find more.",
        "Quote the attack with restarts and not the one without; take more steps until the gap closes.",
        _restart_gap,
    ),
    Check(
        "zero-budget-differs",
        "An attack that may change nothing changed the episode: what is measured is not the attack alone.",
        "Do not use the study: this is a fault of wmjax. Report it with the study's manifest.",
        _zero_budget_differs,
    ),
    Check(
        "stored-frame",
        "The loss of the frame that was shown is not the loss that the attack noted: what it optimised is not what the "
        "agent saw.",
        "Do not use the study: this is a fault of wmjax. Report it with the study's manifest.",
        _stored_frame,
    ),
    Check(
        "saturated-pixels",
        "Much of the image was driven to 0 or 1, and the budget cut off there: its units are wrong, or it is too large "
        "to mean anything.",
        "Check the budget's units, and stay with budgets of a few grey levels to a few dozen.",
        _saturated_pixels,
    ),
)
"""In the order of the report."""
