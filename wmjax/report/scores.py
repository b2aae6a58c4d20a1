"""Rows as arrays: for each victim and setting the scores by task, seed, attack and budget, and their summary.

A score is return / largest return, so that the scale C of arXiv 2606.16605 is 1 for every task.
Axes: M tasks, S seeds, N attacks, O objectives, K budgets of which the first is 0, the clean cell.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wmjax.core.call_syntax import parse_call
from wmjax.metrics import interval, iqm, nauc, resampled_iqms, resampled_means, valid_mean
from wmjax.report.condition import Setting, attacked_rows, setting_name, setting_rows, study_settings, told_axes
from wmjax.report.labels import objective_order, optimizer_label
from wmjax.report.load_results import Rows
from wmjax.report.markdown import count

Floats = NDArray[np.float64]

DRAW = 0
"""Seed of every bootstrap: equal rows give equal reports, and blocks with the same seeds are paired too."""


class Attack(NamedTuple):
    """One curve: everything of a cell but victim, task, setting, budget and seed."""

    objective: str
    optimizer: str
    steps: int
    noise: str
    draws: int


@dataclass(frozen=True)
class Estimate:
    """A statistic and its 95 % bootstrap interval: three arrays of one shape; NaN where undefined."""

    value: Floats
    low: Floats
    high: Floats

    def __getitem__(self, index: Any) -> "Estimate":
        """Return the part of all three arrays at `index`."""
        return Estimate(self.value[index], self.low[index], self.high[index])


@dataclass(frozen=True)
class Block:
    """All attacked episodes of one victim in one setting, and the clean ones, which settings of one defense share."""

    victim: str
    agent: str  #: the family that the victim belongs to
    setting: Setting
    name: str  #: of the setting, as far as the study's differ; foreign text
    tasks: tuple[str, ...]  #: [M]
    attacks: tuple[Attack, ...]  #: [N] in the benchmark's order
    labels: tuple[str, ...]  #: [N] name of the attack's optimizer; two attacks of one objective differ in it
    budgets: Floats  #: [K] in image units, increasing, the first is 0
    scale: Floats  #: [M] largest return of the task
    scores: Floats  #: [M, S, N, K]; NaN where there is no row, or one whose outcome is not a return
    missing: NDArray[np.bool_]  #: [M, S, N, K] there is no row; a missing clean episode counts for every attack

    @property
    def objectives(self) -> tuple[str, ...]:
        """The O objectives, in the benchmark's order."""
        return tuple(dict.fromkeys(attack.objective for attack in self.attacks))

    @property
    def guided(self) -> list[int]:
        """Which of the objectives an attack can follow: all but random noise."""
        return [i for i, name in enumerate(self.objectives) if name != "random"]

    @property
    def columns(self) -> tuple[str, ...]:
        """The optimizers that an objective's mean goes over, by label."""
        steps = {label: attack.steps for attack, label in zip(self.attacks, self.labels, strict=True)}
        return tuple(sorted(steps.keys() - {"none"}, key=lambda label: (steps[label], label))) or ("none",)

    def position(self, objective: str, column: str) -> int | None:
        """Return which attack is `objective` by `column`; what needs no optimizer stands for each. None if missing."""
        own = {label: i for i, label in enumerate(self.labels) if self.attacks[i].objective == objective}
        return own.get(column, own.get("none"))


@dataclass(frozen=True)
class Summary:
    """What a report says about a block."""

    curves: Estimate  #: [M, N, K] mean score over seeds
    by_budget: Estimate  #: [N, K] mean score over seeds and tasks
    by_attack: Estimate  #: [N] robustness, mean over tasks
    by_objective: Estimate  #: [O] robustness, mean over tasks and optimizers (eq. 15)
    by_task: Estimate  #: [M, O] robustness, mean over optimizers
    overall: Estimate  #: [] robustness, mean over tasks, optimizers and objectives: noise too, as in the paper's "Avg."
    iqm_by_attack: Estimate  #: [N] interquartile mean over all episodes of all tasks, of each one's own robustness
    iqm_by_objective: Estimate  #: [O] the same, of each seed's mean over optimizers
    drawn: Floats  #: [R, M, O] the bootstrap draws of by_task


def has_nauc(block: Block) -> bool:
    """Whether the block has an area under its curve; else its robustness is the mean score at its only budget."""
    return block.budgets.size > 2


def episode_returns(rows: Rows) -> Floats:
    """Return every episode's return; NaN where the outcome is not one, or the episode could not be played."""
    return np.where(rows["nan"] | ~np.isfinite(rows["return"]) | failed_rows(rows), np.nan, rows["return"])


def failed_rows(rows: Rows) -> NDArray[np.bool_]:
    """Return which rows stand for an episode that could not be played, and so has no outcome."""
    return rows["error"] != ""


def left_out_rows(rows: Rows) -> NDArray[np.bool_]:
    """Return which rows are of an episode that was played, but met a non-finite action or state."""
    return np.isnan(episode_returns(rows)) & ~failed_rows(rows)


def attack_rows(rows: Rows, block: Block, attack: Attack) -> NDArray[np.bool_]:
    """Return which rows are episodes of `attack` in the block."""
    same = [rows[name] == value for name, value in zip(Attack._fields, attack, strict=True)]
    return np.all([*same, rows["victim"] == block.victim, setting_rows(rows, block.setting)], axis=0)


def blocks(rows: Rows, study: Mapping[str, Any]) -> list[Block]:
    """Return one block for each victim and setting, by victim, then setting.

    A study is a full grid: what it names, or what any row shows, is expected of every victim on its tasks. Axes that
    `study` does not name are taken from the rows alone.
    """
    attacked = attacked_rows(rows)
    kinds = row_attacks(rows)
    seen = {kinds[i] for i in np.flatnonzero(attacked)}
    attacks = sorted(seen | _unseen(study, seen), key=lambda attack: (objective_order(attack.objective), attack[1:]))
    budgets = np.unique([0.0, *rows["eps"][attacked], *(eps for eps in study.get("budgets", ()) if eps > 0)])
    if not attacks or budgets.size == 1:
        return []
    settings = study_settings(rows, study)
    told, seeds = told_axes(settings), expected_seeds(rows, study)
    return [
        _block(rows, kinds, victim, setting, setting_name(setting, told), tasks, attacks, budgets, seeds)
        for victim, setting in product(sorted(set(rows["victim"])), settings)
        if (tasks := _tasks(rows, victim, setting.source))
    ]


def _tasks(rows: Rows, victim: str, source: str) -> list[str]:
    """Return the victim's tasks that attacks computed on `source` belong to.

    All for the victim itself; for another agent those that it plays too, as a victim, or that a row shows.
    """
    own = rows["victim"] == victim
    if source == "self":
        return sorted(set(rows["task"][own]))
    known = {*rows["task"][own & (rows["source"] == source)]}
    return sorted(
        known if source == victim else known | {*rows["task"][rows["victim"] == source]} & {*rows["task"][own]}
    )


def expected_seeds(rows: Rows, study: Mapping[str, Any]) -> NDArray[np.int64]:
    """Return every seed that the study names or a row shows, increasing."""
    return np.unique(np.append(rows["seed"], np.array(study.get("seeds", ()), np.int64)))


def row_attacks(rows: Rows) -> list[Attack]:
    """Return every row's attack."""
    return [Attack(*kind) for kind in zip(*(rows[name].tolist() for name in Attack._fields), strict=True)]


def _unseen(study: Mapping[str, Any], seen: Iterable[Attack]) -> set[Attack]:
    """Return the study's attacks that have no row at all yet."""
    found = {Attack("random", "none", 0, "none", 0)} if "random" in study.get("objectives", ()) else set()
    for objective, text in product({*study.get("objectives", ())} - {"random"}, study.get("optimizers", ())):
        name, own = parse_call(text)
        steps = own[0] if own else 1 if name == "fgsm" else study.get("steps", 0)
        found.add(Attack(objective, name, int(steps), str(study.get("noise")), study.get("draws", 1)))
    known = {attack[:3] for attack in seen}
    return {attack for attack in found if attack[:3] not in known}


def clean_returns(rows: Rows, victim: str, task: str, defense: str) -> tuple[Estimate, int]:
    """Return the mean return of the clean episodes (eq. 12 before its mean over tasks), and their number."""
    same = [rows["objective"] == "clean", rows["victim"] == victim, rows["task"] == task, rows["defense"] == defense]
    chosen = np.all(same, axis=0)
    returns = episode_returns(rows)[chosen][None]
    estimate = Estimate(valid_mean(returns, axis=1), *interval(resampled_means(returns, np.random.default_rng(DRAW))))
    return estimate[0], int(np.sum(~np.isnan(returns)))


def summarise(block: Block) -> Summary:
    """Return the block's statistics; a statistic that a missing cell belongs to is NaN."""
    means, draws = valid_mean(block.scores, axis=1), resampled_means(block.scores, np.random.default_rng(DRAW))
    places = [[block.position(name, column) for column in block.columns] for name in block.objectives]
    indices = [[-1 if i is None else i for i in row] for row in places]

    def estimate(statistic: Callable[[Floats], Floats]) -> Estimate:
        """Apply a function of means [..., M, N, K] to the means and to every bootstrap draw of them."""
        return Estimate(statistic(means), *interval(statistic(draws)))

    def middle(values: Floats) -> Estimate:
        """Return the interquartile means of every episode's robustness [M, S, ...]."""
        return Estimate(iqm(values), *interval(resampled_iqms(values, np.random.default_rng(DRAW))))

    def robustness(values: Floats) -> Floats:
        """Return [...] of scores [..., K]."""
        return nauc(block.budgets, values) if has_nauc(block) else values[..., -1]

    def over_optimizers(values: Floats) -> Floats:
        """Return means [..., O] of values [..., N]."""
        padded = np.concatenate([values, np.full((*values.shape[:-1], 1), np.nan)], axis=-1)
        return np.mean(padded[..., indices], axis=-1)

    task, drawn = over_optimizers(robustness(means)), over_optimizers(robustness(draws))
    episodes = robustness(block.scores)
    return Summary(
        curves=estimate(lambda values: values),
        by_budget=estimate(lambda values: np.mean(values, axis=-3)),
        by_attack=estimate(lambda values: np.mean(robustness(values), axis=-2)),
        by_objective=Estimate(np.mean(task, axis=0), *interval(np.mean(drawn, axis=1))),
        by_task=Estimate(task, *interval(drawn)),
        overall=Estimate(np.mean(task, axis=(0, 1)), *interval(np.mean(drawn, axis=(1, 2)))),
        iqm_by_attack=middle(episodes),
        iqm_by_objective=middle(over_optimizers(episodes)),
        drawn=drawn,
    )


def _block(
    rows: Rows, kinds: list[Attack], victim: str, setting: Setting, name: str, tasks: list[str], attacks: list[Attack],
    budgets: Floats, seeds: NDArray[Any],
) -> Block:  # fmt: skip
    own = (rows["victim"] == victim) & np.isin(rows["task"], tasks)
    clean = own & (rows["objective"] == "clean") & (rows["defense"] == setting.defense)
    attacked = own & setting_rows(rows, setting)
    scores = np.full((len(tasks), len(seeds), len(attacks), len(budgets)), np.nan)
    missing = np.ones(scores.shape, bool)
    at_task = {task: i for i, task in enumerate(tasks)}
    at_attack = {attack: i for i, attack in enumerate(attacks)}
    at_seed, at_budget = np.searchsorted(seeds, rows["seed"]), np.searchsorted(budgets, rows["eps"])
    score = episode_returns(rows) / rows["max_return"]
    for i in np.flatnonzero(clean | attacked):
        which: Any = slice(None) if clean[i] else at_attack[kinds[i]]
        cell = (at_task[rows["task"][i]], at_seed[i], which, 0 if clean[i] else at_budget[i])
        scores[cell], missing[cell] = score[i], False
    scale = np.array([rows["max_return"][own & (rows["task"] == task)][0] for task in tasks])
    agent = str(rows["agent"][own][0])
    labels = tuple(_optimizer(attack, attacks) for attack in attacks)
    return Block(victim, agent, setting, name, tuple(tasks), tuple(attacks), labels, budgets, scale, scores, missing)


def _optimizer(attack: Attack, attacks: Iterable[Attack]) -> str:
    """Return the label of the attack's optimizer, with its latent noise and draws where these tell attacks apart."""
    label = optimizer_label(attack.optimizer, attack.steps)
    twins = [other for other in attacks if other[:3] == attack[:3]]
    if len({twin.noise for twin in twins}) > 1:
        label += f", {attack.noise} noise"
    if len({twin.draws for twin in twins}) > 1:
        label += f", {count(attack.draws, 'draw')}"
    return label
