"""This study's numbers beside those that arXiv 2606.16605 printed in tables 1 to 3, where the same cells exist."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from wmjax.metrics import interval, nauc, resampled_means, valid_mean
from wmjax.report.condition import USUAL
from wmjax.report.document import Part, Section, Table, Value
from wmjax.report.labels import objective_label
from wmjax.report.load_results import Rows
from wmjax.report.markdown import code
from wmjax.report.scores import DRAW, Block, Estimate, Floats, episode_returns
from wmjax.report.strongest import strongest
from wmjax.report.tables import Parts, estimate_value

BUDGETS = (0.0, 0.02, 0.04, 0.08, 0.12, 0.16)
"""The paper names them for the transfer study; its main study's are taken to be the same."""

OBJECTIVES = ("random", "pda", "pea", "dca", "vsa", "lda")
OPTIMIZERS = ("FGSM", "PGD-10")

TASKS: Mapping[str, tuple[str, ...]] = {
    "MetaWorld": tuple(
        f"metaworld_{name}"
        for name in (
            "coffee_pull", "reach", "reach_wall", "window_close", "window_open", "button_press", "handle_press",
            "plate_slide_back", "plate_slide_back_side", "plate_slide_side",
        )
    ),
    "DMC": tuple(
        f"dmc_{name}"
        for name in (
            "reacher_easy", "reacher_hard", "walker_walk", "walker_run", "walker_stand", "ball_in_cup_catch",
            "cartpole_balance", "cartpole_swingup", "finger_turn_easy", "hopper_stand",
        )
    ),
}  # fmt: skip

LARGEST = {"MetaWorld": 1.0, "DMC": 1000.0}
"""The largest return of a whole episode; shorter episodes are other cells."""

CLEAN: Mapping[tuple[str, str], float] = {
    ("MetaWorld", "dreamer"): 1.00, ("MetaWorld", "r2dreamer"): 0.98,
    ("MetaWorld", "infonce"): 1.00, ("MetaWorld", "dreamerpro"): 0.97,
    ("DMC", "dreamer"): 943.22, ("DMC", "r2dreamer"): 928.52,
    ("DMC", "infonce"): 903.34, ("DMC", "dreamerpro"): 859.03,
}  # fmt: skip
"""Table 1: mean clean success or return, by suite and family."""

NAUC: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("MetaWorld", "dreamer"): (0.916, 0.509, 0.469, 0.548, 0.476, 0.478),
    ("MetaWorld", "r2dreamer"): (0.873, 0.587, 0.468, 0.651, 0.497, 0.597),
    ("MetaWorld", "infonce"): (0.930, 0.519, 0.436, 0.656, 0.427, 0.571),
    ("MetaWorld", "dreamerpro"): (0.626, 0.323, 0.302, 0.389, 0.268, 0.379),
    ("DMC", "dreamer"): (0.804, 0.340, 0.369, 0.402, 0.319, 0.355),
    ("DMC", "r2dreamer"): (0.819, 0.351, 0.381, 0.421, 0.350, 0.391),
    ("DMC", "infonce"): (0.763, 0.319, 0.304, 0.382, 0.313, 0.354),
    ("DMC", "dreamerpro"): (0.597, 0.225, 0.243, 0.301, 0.210, 0.292),
}
"""Table 2: mean nAUC, by suite and family, of OBJECTIVES."""

STRONGEST: Mapping[str, int] = {"pda": 12, "pea": 28, "dca": 4, "vsa": 32, "lda": 4}
"""Table 3: of 80 pairs of victim and task, those in which the objective leaves the lowest nAUC."""

_PAIRS = 80
_READING = """\
Numbers of [arXiv 2606.16605](https://arxiv.org/abs/2606.16605) beside those of this study: same family, objectives,
optimizers, budgets and tasks; other trained agents and code, and the paper, which averages over 20 seeds, gives no
intervals. Where only some of the ten tasks of a benchmark are here, the two means go over different tasks: **partial**,
not to be compared closely. The paper names its budgets for the transfer study; those of its main study are taken to be
the same."""


class _Member(NamedTuple):
    """A victim on one of the paper's tasks: nAUC over the paper's budgets and optimizers."""

    family: str
    task: str
    value: Floats  #: [O] of OBJECTIVES; NaN for one that the study does not have
    drawn: Floats  #: [R, O]


def published_section(rows: Rows, parts: Parts) -> Section | None:
    """Return tables of numbers side by side; None where the study shares no cell with the paper."""
    blocks = [block for block, _ in parts if block.setting == USUAL and block.agent in {family for _, family in NAUC}]
    members = [member for block in blocks for member in _members(block)]
    each: list[Part] = [*_clean(rows), *_nauc(members), *_strongest(members)]
    return Section("Beside the published numbers", (_READING, *each)) if each else None


def _members(block: Block) -> list[_Member]:
    """Return the block's tasks that the paper has; none unless all its budgets and optimizers are there."""
    at = [np.flatnonzero(np.isclose(block.budgets, eps, rtol=0, atol=1e-12)) for eps in BUDGETS]
    if any(place.size == 0 for place in at) or not set(OPTIMIZERS) <= set(block.columns):
        return []
    scores = block.scores[..., [int(place[0]) for place in at]]
    means, draws = valid_mean(scores, axis=1), resampled_means(scores, np.random.default_rng(DRAW))

    def areas(values: Floats) -> Floats:
        """Return [..., M, O] of means [..., M, N, K]."""
        own = np.concatenate([nauc(BUDGETS, values), np.full((*values.shape[:-2], 1), np.nan)], axis=-1)
        places = [[block.position(name, column) for column in OPTIMIZERS] for name in OBJECTIVES]
        return np.mean(own[..., [[-1 if i is None else i for i in row] for row in places]], axis=-1)

    value, drawn = areas(means), areas(draws)
    whole = [(i, task) for i, task in enumerate(block.tasks) if block.scale[i] == LARGEST.get(_suite(task))]
    return [_Member(block.agent, _plain(task), value[i], drawn[:, i]) for i, task in whole]


def _plain(task: str) -> str:
    """Return the name of a task as TASKS has it."""
    return task.replace("-", "_")


def _suite(task: str) -> str:
    """Return the benchmark that a task belongs to; empty for none of the paper's."""
    return next((suite for suite, tasks in TASKS.items() if _plain(task) in tasks), "")


def _nauc(members: Sequence[_Member]) -> list[Part]:
    lines: list[tuple[str | Value, ...]] = []
    for (suite, family), printed in NAUC.items():
        own = [member for member in members if member.family == family and member.task in TASKS[suite]]
        value, drawn = _means(own, len(OBJECTIVES))
        if np.isnan(value).all():
            continue
        means = Estimate(value, *interval(drawn))
        tasks = {member.task for member in own}
        covered = f"{len(tasks)} of 10 tasks{'' if len(tasks) == 10 else ', **partial**'}"
        lines.append((suite, code(family), "paper", *(Value(number) for number in printed)))
        ours = (estimate_value(means[i], 1.0, 3) for i in range(len(OBJECTIVES)))
        lines.append((suite, code(family), f"here, {covered}", *ours))
    header = ("benchmark", "family", "", *map(objective_label, OBJECTIVES))
    caption = "Mean nAUC over tasks, FGSM and PGD-10 (table 2 of the paper)."
    return [Table("published_nauc", header, tuple(lines), 3, caption)] if lines else []


def _clean(rows: Rows) -> list[Part]:
    returns = episode_returns(rows)
    clean = (rows["objective"] == "clean") & (rows["defense"] == "none")
    names = np.array([_plain(task) for task in rows["task"]], object)
    lines: list[tuple[str | Value, ...]] = []
    for (suite, family), printed in CLEAN.items():
        own = clean & (rows["agent"] == family) & (rows["max_return"] == LARGEST[suite])
        tasks = [task for task in TASKS[suite] if np.any(own & (names == task))]
        if not tasks:
            continue
        # Each task draws its own seeds: they are strata of one mean.
        each = [returns[own & (names == task)] for task in tasks]
        drawn = [resampled_means(one[None], np.random.default_rng([DRAW, i]))[:, 0] for i, one in enumerate(each)]
        value = np.mean([valid_mean(one) for one in each], keepdims=True)
        means = Estimate(value, *interval(np.mean(drawn, axis=0)[:, None]))[0]
        whole = len(tasks) == len(TASKS[suite])
        told = "all 10" if whole else f"**partial**, {len(tasks)} of 10: {', '.join(map(code, tasks))}"
        digits = 2 if suite == "MetaWorld" else 1
        lines.append((suite, code(family), told, Value(printed, digits=digits), estimate_value(means, 1.0, digits)))
    header = ("benchmark", "family", "tasks here", "paper", "this study")
    caption = "Mean return or success without attack (table 1 of the paper)."
    return [Table("published_clean", header, tuple(lines), 3, caption)] if lines else []


def _strongest(members: Sequence[_Member]) -> list[Part]:
    if not members:
        return []
    guided = [OBJECTIVES.index(name) for name in STRONGEST]
    values = np.stack([member.value[guided] for member in members])
    counts, decided = strongest(values, np.stack([member.drawn[:, guided] for member in members], axis=1))
    if not decided:
        return []
    lines = tuple(
        (objective_label(name), Value(100 * printed / _PAIRS, digits=1), estimate_value(counts[i], 100 / decided, 1))
        for i, (name, printed) in enumerate(STRONGEST.items())
    )
    partial = "" if decided == _PAIRS else " **partial**:"
    caption = (
        f"Share of pairs of victim and task, in percent, in which the objective leaves the lowest nAUC (table 3 of the "
        f"paper);{partial} {_PAIRS} pairs in the paper, {decided} here."
    )
    return [Table("published_strongest", ("objective", "paper", "this study"), lines, 1, caption)]


def _means(members: Sequence[_Member], objectives: int) -> tuple[Floats, Floats]:
    """Return means over tasks, [O] and [R, O]; of several victims on one task their mean stands for it."""
    if not members:
        return np.full(objectives, np.nan), np.full((1, objectives), np.nan)
    by_task = [[member for member in members if member.task == task] for task in sorted({m.task for m in members})]
    value = np.mean([np.mean([member.value for member in own], axis=0) for own in by_task], axis=0)
    return value, np.mean([np.mean([member.drawn for member in own], axis=0) for own in by_task], axis=0)
