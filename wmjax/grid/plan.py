"""From a study's axes to episodes, and from episodes to chunks of one fixed shape that share a program."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby, product
from typing import Any

from wmjax.core.errors import InputError
from wmjax.envs import spec as env_spec
from wmjax.grid.rows import SCHEMA_VERSION
from wmjax.grid.spec import Study
from wmjax.victims.weights import Card

_MOST_EPISODES = 1_000_000  # memory for a million is about 1 GB; their results would be files by the hundred thousand

_AIMLESS: dict[str, Any] = {"optimizer": "none", "steps": 0, "noise": "none", "draws": 0, "adaptive": False}
_CLEAN: dict[str, Any] = {
    "objective": "clean",
    "frames": "none",
    "region": "none",
    "mode": "none",
    "eps": 0.0,
} | _AIMLESS
"""The columns of an episode whose attack has no objective, and of one that is not attacked."""


@dataclass(frozen=True, order=True, slots=True)
class Episode:
    """One episode of one cell: the columns of a row that name it."""

    victim: str
    task: str
    objective: str
    optimizer: str
    steps: int
    noise: str
    draws: int
    frames: str
    region: str
    mode: str
    defense: str
    adaptive: bool
    eps: float
    seed: int

    @property
    def program(self) -> tuple:
        """What episodes of one chunk have in common; objective, budget and seed are batch axes."""
        attack = self.optimizer, self.steps, self.noise, self.draws, self.frames, self.region, self.mode
        return self.victim, self.task, *attack, self.defense, self.adaptive


@dataclass(frozen=True)
class Chunk:
    """Up to `batch` episodes of one program; the driver pads the last one, so that all have the same shape."""

    episodes: tuple[Episode, ...]
    batch: int
    episode_steps: int
    backend: str
    victim_sha256: str

    @property
    def id(self) -> str:
        """Content hash: equal for equal work, on any machine and in any run."""
        text = json.dumps([SCHEMA_VERSION, asdict(self)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def padded(self) -> list[Episode]:
        """Return exactly `batch` episodes; the last one is repeated to fill up."""
        return [*self.episodes, *[self.episodes[-1]] * (self.batch - len(self.episodes))]


def episodes(study: Study, cards: Mapping[str, Card]) -> list[Episode]:
    """Return every episode of the study, each once: the clean ones, every attacked cell, and the probes.

    A probe is an attack of budget 0: one for each way of attacking, with the first objective, region, mode and seed
    that the study lists for it. `cards` are the victims' by name. Raises InputError where a victim fits no task of the
    study, or a task no victim, or for more than a million episodes.
    """
    pairs = [(victim, task) for victim, card in cards.items() for task in _tasks(study, victim, card)]
    if idle := set(study.tasks) - {task for _, task in pairs}:
        raise InputError(f"tasks: no victim of the study was trained on {', '.join(sorted(idle))}")
    budgets = [eps for eps in study.budgets if eps > 0]
    each = len(study.regions) * len(study.modes) * len(budgets) * len(study.seeds)
    count = len(study.defenses) * len(study.seeds) + sum(len(objectives) * each + 1 for objectives, _ in _ways(study))
    if len(pairs) * count > _MOST_EPISODES:
        raise InputError(f"the study has {len(pairs) * count} episodes; at most {_MOST_EPISODES}, so split it up")
    found = []
    for victim, task in pairs:
        for defense, seed in product(study.defenses, study.seeds):
            found.append(Episode(victim, task, **_CLEAN, defense=defense, seed=seed))
        for objectives, way in _ways(study):
            cells = product(objectives, study.regions, study.modes, budgets, study.seeds)
            probe = objectives[0], study.regions[0], study.modes[0], 0.0, study.seeds[0]
            for objective, region, mode, eps, seed in (*cells, probe):
                found.append(Episode(victim, task, objective, region=region, mode=mode, eps=eps, seed=seed, **way))
    return found


def plan(study: Study, cards: Mapping[str, Card], hashes: Mapping[str, str], batch: int) -> list[Chunk]:
    """Return the study's chunks, the longest first; `hashes` are those of the victims' files."""
    key = lambda episode: episode.program  # noqa: E731
    chunks = []
    for _, group in groupby(sorted(episodes(study, cards), key=lambda e: (e.program, e)), key):
        members = list(group)
        for i in range(0, len(members), batch):
            part = tuple(members[i : i + batch])
            chunks.append(Chunk(part, batch, study.episode_steps, study.backend, hashes[part[0].victim]))
    return sorted(chunks, key=lambda chunk: -chunk.episodes[0].steps)


def _ways(study: Study) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield each way of attacking, as columns of an episode, after the objectives that it is for."""
    searched = [objective for objective in study.objectives if objective != "random"]
    optimizers = study.attacks() if searched else []
    for frames, defense in product(study.frames, study.defenses):
        seen = {"frames": frames, "defense": defense}
        for (name, steps), adaptive in product(optimizers, (False,) if defense == "none" else study.adaptive):
            how = {"optimizer": name, "steps": steps, "noise": study.noise, "draws": study.draws}
            yield searched, how | seen | {"adaptive": adaptive}
        if "random" in study.objectives:
            yield ["random"], _AIMLESS | seen


def _tasks(study: Study, victim: str, card: Card) -> list[str]:
    """Return the tasks a victim plays: its own, or where it names none all that the study lists."""
    if card.task is None and not study.tasks:
        raise InputError(f"victims: {victim} does not say what it was trained on; list its task under tasks")
    if card.task is not None and study.tasks and card.task not in study.tasks:
        raise InputError(f"tasks: {victim} was trained on {card.task}, which is not listed")
    tasks = list(study.tasks) if card.task is None else [card.task]
    for task in tasks:
        spec = env_spec(task)
        sizes = (
            ("action_size", card.victim.action_size),
            ("image_size", card.victim.image_size),
            ("action_repeat", card.action_repeat),
        )
        for name, size in sizes:
            if getattr(spec, name) != size:
                raise InputError(f"victims: {victim} has {name} {size}, but {task} has {getattr(spec, name)}")
    return tasks
