"""The card of an agent that was trained here: what it is, how it came about, and what it is worth, in Markdown."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from wmjax import envs
from wmjax.agents.dreamer import Dreamer
from wmjax.core.files import write_atomically
from wmjax.train.recipe import Recipe

T = TypeVar("T")

Returns = Mapping[str, Sequence[float] | np.ndarray]
"""Of clean episodes, at least two: "device" and, where it was played there, "host"."""

_LEARNS_BY = {
    "dreamer": "reconstruction",
    "r2dreamer": "redundancy reduction",
    "infonce": "contrast",
    "dreamerpro": "prototypes",
}
_ROWS, _BARS = 10, 40
"""Stretches of a learning curve in the table, and in the line."""

_HEIGHTS = "▁▂▃▄▅▆▇█"
_WIDTH = 118


class Point(NamedTuple):
    """A point of a learning curve."""

    env_steps: int
    training: float | None  #: mean return of the newest training episodes; None before the first has ended
    evaluation: float | None  #: mean return of clean episodes; None where none were played


@dataclass(frozen=True)
class Facts:
    """What a card says."""

    name: str  #: of the weight file, without its suffix
    task: str
    victim: Dreamer
    size: str  #: "tiny", "1m" ...
    parameters: int  #: trainable ones
    recipe: Recipe
    seed: int  #: of the training run
    env_steps: int  #: all of them, those of the action repeat too
    updates: int
    seconds: float  #: that training took
    machine: str  #: "2 CPU cores", "one NVIDIA H200"
    versions: Mapping[str, str]  #: of wmjax, jax, mujoco
    command: str  #: that trained it
    seeds: range  #: of the episodes below
    trained: Returns
    untrained: Returns
    random: Returns  #: of random actions
    curve: Sequence[Point]  #: in the order of env_steps
    caveat: str | None = None  #: what its results must not be used for; studies print it


def write_card(path: Path, facts: Facts) -> None:
    """Write the card, whole or not at all; raises InputError where `path` cannot be written."""
    write_atomically(path, card(facts).encode())


def card(facts: Facts) -> str:
    """Return the card as Markdown."""
    parts = [
        f"# {facts.name}",
        textwrap.fill(facts.caveat, _WIDTH, initial_indent="> ", subsequent_indent="> ") if facts.caveat else "",
        _origin(facts),
        _worth(facts),
        _learning(facts) if facts.curve else "",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _origin(facts: Facts) -> str:
    victim, recipe, spec = facts.victim, facts.recipe, envs.spec(facts.task)
    channels = ", ".join(map(str, victim.depths))
    rows = {
        "agent": f"{victim.agent} ({_LEARNS_BY[victim.agent]}), continuous actions",
        "task": f"{facts.task}: {spec.image_size}x{spec.image_size} pixels from camera {spec.camera}, "
        f"action repeat {spec.action_repeat}, {spec.episode_steps} agent steps an episode",
        "size": f"{facts.size}: deter {victim.deter}, hidden {victim.hidden}, {victim.stoch} latent groups of "
        f"{victim.discrete} classes, {channels} channels, units {victim.units}; "
        f"{_count(facts.parameters)} trainable parameters",
        "training": f"{facts.env_steps:,} environment steps in {recipe.env_num} episodes side by side, "
        f"{facts.updates:,} updates of {recipe.batch_size} x {recipe.batch_length} frames, "
        f"train ratio {recipe.train_ratio}, learning rate {_rate(recipe.lr)}, seed {facts.seed}",
        "took": f"{_duration(facts.seconds)} on {facts.machine}",
        "versions": ", ".join(f"{package} {version}" for package, version in facts.versions.items()),
        "trained by": f"`{facts.command}`",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {what} | {text} |" for what, text in rows.items())])


def _worth(facts: Facts) -> str:
    """Return the table of returns, and by how much the agent is ahead."""
    players = {"trained": facts.trained, "untrained": facts.untrained, "random actions": facts.random}
    lines = [
        f"Clean return over {len(facts.seeds)} episodes, seeds {facts.seeds[0]} to {facts.seeds[-1]}, "
        f"of {envs.spec(facts.task).max_return:.0f} at most:",
        "",
        "| | played on | mean | standard deviation | least |",
        "|---|---|---|---|---|",
    ]
    for player, returns in players.items():
        for backend, values in returns.items():
            mean, deviation, least = np.mean(values), np.std(values, ddof=1), np.min(values)
            lines.append(f"| {player} | {backend} | {mean:.1f} | {deviation:.1f} | {least:.1f} |")
    ahead = [
        f"{by:.1f} ({errors:.1f} standard errors) over {other} on the {backend}"
        for other, returns in (("the untrained agent", facts.untrained), ("random actions", facts.random))
        for backend in returns
        for by, errors in [margin(facts.trained[backend], returns[backend])]
    ]
    text = f"Margin of the trained agent, in standard errors of the difference (Welch): {', '.join(ahead)}."
    return "\n".join([*lines, "", textwrap.fill(text, _WIDTH)])


def margin(ours: Sequence[float] | np.ndarray, theirs: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Return by how much our mean is above theirs, and the same in standard errors of the difference.

    The two samples, at least two values each, may differ in variance and size (Welch, Biometrika 34, 1947). Where
    neither varies, any difference is infinitely many standard errors.
    """
    gap = float(np.mean(ours) - np.mean(theirs))
    error = math.sqrt(sum(np.var(sample, ddof=1) / len(sample) for sample in (ours, theirs)))
    if error == 0.0:
        return gap, math.copysign(math.inf, gap) if gap else 0.0
    return gap, gap / error


def _learning(facts: Facts) -> str:
    """Return the learning curve as a line of bars and as a table, both of equal numbers of points."""
    highest = envs.spec(facts.task).max_return
    lines = [
        f"Learning curve, from 0 ({_HEIGHTS[0]}) to {highest:.0f} ({_HEIGHTS[-1]}):",
        "",
        f"`{sparkline([point.training for point in facts.curve], highest)}`",
        "",
        "| environment steps | training episodes, mean | evaluation, last |",
        "|---|---|---|",
    ]
    for part in _stretches(facts.curve, _ROWS):
        evaluations = [point.evaluation for point in part if point.evaluation is not None]
        training, last = _mean([point.training for point in part]), evaluations[-1] if evaluations else None
        lines.append(f"| {part[-1].env_steps:,} | {_number(training)} | {_number(last)} |")
    return "\n".join(lines)


def sparkline(values: Sequence[float | None], highest: float) -> str:
    """Return `values` in [0, `highest`] as a line of at most 40 bars, means of as many each; a space for None."""
    means = [_mean(part) for part in _stretches(values, _BARS)]
    heights = [None if mean is None else min(int(mean / highest * len(_HEIGHTS)), len(_HEIGHTS) - 1) for mean in means]
    return "".join(" " if height is None else _HEIGHTS[height] for height in heights)


def _stretches(values: Sequence[T], most: int) -> list[Sequence[T]]:
    """Cut `values`, at least one, into at most so many parts of equal length, give or take one."""
    parts = min(most, len(values))
    return [values[a:b] for a, b in pairwise(len(values) * i // parts for i in range(parts + 1))]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _count(parameters: int) -> str:
    return f"{parameters / 1e6:.1f} million" if parameters >= 1e6 else f"{parameters:,}"


def _rate(rate: float) -> str:
    """Return 0.0004 as 4e-4."""
    digits, power = f"{rate:e}".split("e")
    return f"{float(digits):g}e{int(power)}"


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{seconds / 60:.0f} minutes"
