"""Self-checks that compare returns: noise beside gradients, budgets and steps with smaller ones.

Returns are noisy, so each comparison is a paired t test over seeds. A study makes hundreds; each is held to a level at
which a study without fault has one chance in a hundred to see any of a check's fire (Bonferroni).
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from wmjax.metrics import paired_p
from wmjax.report.check_cells import Cell, Cells, Fired
from wmjax.report.condition import noise_setting
from wmjax.report.labels import budget_label, optimizer_label
from wmjax.report.scores import Floats

FALSE_ALARM = 0.01
"""Chance that a check fires in a study without fault: rare enough that a reader takes it seriously."""

CLEAR = 0.05
"""Share of the largest return by which means must differ at least: less decides no comparison of agents."""

SEEDS = 3
"""Fewest seeds of a comparison: with two, no difference is beyond chance at such a level."""

WITHOUT_GRADIENT = frozenset({"none", "random_gaussian", "random_sign", "random_uniform", "square"})
"""Optimizers that only evaluate the objective, or not even that."""


class _Comparison(NamedTuple):
    """`stronger` should leave no higher a return than `weaker`."""

    stronger: Cell
    weaker: Cell


def random_beats_gradient(study: Cells) -> tuple[Fired, ...] | str:
    """Return the cells of gradient attacks that leave a clearly higher return than noise with the same budget."""
    noise = {
        (cell.victim, cell.task, cell.setting, cell.eps): cell
        for cell in study.episodes
        if cell.attack.objective == "random" and cell.eps > 0
    }
    pairs = []
    for cell in gradient_cells(study):
        # Noise knows no defense, so its episodes stand beside adaptive attacks too.
        beside = noise.get((cell.victim, cell.task, noise_setting(cell.setting), cell.eps))
        if beside is not None:
            pairs.append(_Comparison(cell, beside))
    if not pairs:
        return "no random noise beside an attack with gradients in this study"
    return _contradicted(study, pairs, lambda cell: "under random noise")


def not_monotone_in_budget(study: Cells) -> tuple[Fired, ...] | str:
    """Return for each attack the budget whose return rises most clearly above that of a smaller one, or of none."""
    curves: dict[Hashable, list[Cell]] = defaultdict(list)
    for cell in study.attacked():
        curves[cell[:-1]].append(cell)
    pairs = []
    for curve in curves.values():
        curve = sorted([curve[0].clean(), *curve], key=lambda cell: cell.eps)
        pairs += [_Comparison(larger, smaller) for smaller, larger in combinations(curve, 2)]
    if not pairs:
        return "no attack that follows an objective in this study"
    found = _contradicted(study, pairs, lambda cell: f"at ε = {budget_label(cell.eps)}")
    return _clearest(found, lambda cell: cell[:-1])


def not_monotone_in_steps(study: Cells) -> tuple[Fired, ...] | str:
    """Return the cells that leave a clearly higher return than the same optimizer with fewer steps.

    FGSM is PGD with one step.
    """
    kinds: dict[Hashable, list[Cell]] = defaultdict(list)
    for cell in study.attacked():
        kinds[_without_steps(cell)].append(cell)
    pairs = []
    for kind in kinds.values():
        ordered = sorted(kind, key=lambda cell: cell.attack.steps)
        pairs += [_Comparison(more, fewer) for fewer, more in combinations(ordered, 2)]
    if not pairs:
        return "no optimizer with several numbers of steps, and no FGSM beside PGD, in this study"
    found = _contradicted(study, pairs, lambda cell: f"by {optimizer_label(cell.attack.optimizer, cell.attack.steps)}")
    return _clearest(found, lambda cell: cell)


def gradient_cells(study: Cells) -> list[Cell]:
    """Return the attacked cells whose optimizer follows a gradient."""
    return [cell for cell in study.attacked() if cell.attack.optimizer not in WITHOUT_GRADIENT]


def _without_steps(cell: Cell) -> Cell:
    name = "pgd" if cell.attack.optimizer == "fgsm" else cell.attack.optimizer
    return cell._replace(attack=cell.attack._replace(optimizer=name, steps=0))


def _contradicted(study: Cells, pairs: Sequence[_Comparison], beside: Callable[[Cell], str]) -> tuple[Fired, ...] | str:
    """Return the comparisons whose stronger side clearly left the higher return, with the numbers that say so.

    `beside` names the return of the weaker side.
    """
    tested = [(pair, scores) for pair in pairs if (scores := _paired(study, pair)).shape[1] >= SEEDS]
    if not tested:
        return f"no two cells to compare share {SEEDS} seeds"
    # Three equal differences are luck where others vary: no spread is taken to be below the typical one.
    variances: dict[Hashable, list[float]] = defaultdict(list)
    for pair, (high, low) in tested:
        variances[pair.stronger[:2]].append(float(np.var(high - low, ddof=1)))
    fired = []
    for pair, (high, low) in tested:
        typical = float(np.sqrt(np.mean(variances[pair.stronger[:2]])))
        p = paired_p(high - low, least_sd=typical)
        if np.mean(high - low) >= CLEAR and p <= FALSE_ALARM / len(tested):
            scale = float(study.rows["max_return"][study.episodes[pair.stronger][0]])
            numbers = {"mean return": scale * float(high.mean()), beside(pair.weaker): scale * float(low.mean())}
            fired.append(Fired(pair.stronger, numbers | {"seeds": high.size, "p": p}))
    return tuple(fired)


def _paired(study: Cells, pair: _Comparison) -> Floats:
    """Return the scores [2, S] of both sides on the seeds that both have."""
    stronger, weaker = study.by_seed(pair.stronger), study.by_seed(pair.weaker)
    return (
        np.array([(stronger[seed], weaker[seed]) for seed in sorted(stronger.keys() & weaker.keys())]).reshape(-1, 2).T
    )


def _clearest(found: tuple[Fired, ...] | str, of: Callable[[Cell], Hashable]) -> tuple[Fired, ...] | str:
    """Keep the smallest p of those that are one and the same matter."""
    if isinstance(found, str):
        return found
    best: dict[Hashable, Fired] = {}
    for fired in sorted(found, key=lambda fired: -fired.numbers["p"]):
        best[of(fired.cell)] = fired
    return tuple(fired for fired in found if best[of(fired.cell)] is fired)
