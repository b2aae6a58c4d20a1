"""Who is compared with whom: victims that play the same tasks, or families whose members play one task each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from wmjax.metrics import interval
from wmjax.report.scores import Block, Estimate, Floats, Summary

_MOST = 8
"""Victims side by side: more colours and markers cannot be told apart."""


@dataclass(frozen=True)
class Lineup:
    """The robustness of a victim, or of all victims of a family, in one setting, by pairs of victim and task."""

    name: str  #: of the victim, or of the family; foreign text
    tasks: tuple[str, ...]  #: [P] one a pair
    value: Floats  #: [P, O] mean over optimizers
    drawn: Floats  #: [R, P, O] its bootstrap draws

    def estimate(self, statistic: Callable[[Floats], Floats]) -> Estimate:
        """Apply a function of [..., P, O] to the values and to every bootstrap draw of them."""
        return Estimate(statistic(self.value), *interval(statistic(self.drawn)))

    def by_objective(self) -> Estimate:
        """Return means over pairs, [O]."""
        return self.estimate(lambda values: np.mean(values, axis=-2))

    def overall(self) -> Estimate:
        """Return the mean over pairs and objectives, []: random noise too, as in the paper's column "Avg."."""
        return self.estimate(lambda values: np.mean(values, axis=(-2, -1)))

    def on(self, tasks: Sequence[str]) -> "Lineup":
        """Return the pairs of some tasks."""
        chosen = np.isin(self.tasks, tasks)
        kept = tuple(task for task in self.tasks if task in tasks)
        return Lineup(self.name, kept, self.value[chosen], self.drawn[:, chosen])


def by_victim(parts: Sequence[tuple[Block, Summary]]) -> bool:
    """Whether victims are compared one by one: all play the same tasks, and there are few of them."""
    return len({block.tasks for block, _ in parts}) == 1 and len({block.victim for block, _ in parts}) <= _MOST


def lineups(parts: Sequence[tuple[Block, Summary]]) -> list[Lineup]:
    """Return who is compared in one setting, of which `parts` are the blocks: victims, or else families, by name."""
    alone, found = by_victim(parts), []
    members = [(block.victim if alone else block.agent, block, summary) for block, summary in parts]
    for name in sorted({name for name, _, _ in members}):
        own = [(block, summary) for other, block, summary in members if other == name]
        tasks = tuple(task for block, _ in own for task in block.tasks)
        value = np.concatenate([summary.by_task.value for _, summary in own])
        # Blocks share their draws of seeds, so seeds are paired over victims too.
        found.append(Lineup(name, tasks, value, np.concatenate([summary.drawn for _, summary in own], axis=1)))
    return found


def common_tasks(every: Sequence[Lineup]) -> list[str]:
    """Return the tasks that all of them play."""
    return sorted(set.intersection(*(set(one.tasks) for one in every)))
