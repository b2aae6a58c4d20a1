"""From a study's axes to episodes, and from episodes to chunks of one fixed shape that share a program."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, product
from typing import Any

import pyarrow as pa

import wmjax
from wmjax.agents.compatibility import misfits
from wmjax.agents.weights import Card
from wmjax.attacks.optimizers import optimizer
from wmjax.attacks.timing import timing
from wmjax.core.errors import InputError
from wmjax.envs import spec as env_spec
from wmjax.study.schema import SCHEMA, SCHEMA_VERSION
from wmjax.study.spec import Study

_MOST_EPISODES = 1_000_000  # memory for a million is about 1 GB; their results would be files by the hundred thousand

_AIMLESS: dict[str, Any] = {
    "optimizer": "none",
    "steps": 0,
    "noise": "none",
    "draws": 0,
    "source": "none",
    "adaptive": False,
}
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
    source: str
    frames: str
    region: str
    mode: str
    defense: str
    adaptive: bool
    eps: float
    seed: int

    @property
    def program(self) -> tuple:
        """What episodes of one chunk have in common; objective, region, budget and seed are batch axes."""
        attack = self.optimizer, self.steps, self.noise, self.draws, self.source, self.frames, self.mode
        return self.victim, self.task, *attack, self.defense, self.adaptive


@dataclass(frozen=True)
class Chunk:
    """Up to `batch` episodes of one program; the driver pads the last one, so that all have the same shape."""

    episodes: tuple[Episode, ...]
    batch: int
    episode_steps: int
    backend: str
    victim_sha256: str
    source_sha256: str  #: empty where the attack is computed on the victim itself, or on nothing

    @property
    def id(self) -> str:
        """Content hash: equal for equal work, on any machine and in any run."""
        text = json.dumps([SCHEMA_VERSION, asdict(self)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def work(self) -> float:
        """What the chunk is expected to cost, in agent steps of its batch: a gradient costs about as much as one."""
        first = self.episodes[0]
        when = timing("full" if first.mode == "none" else first.mode, self.episode_steps)
        attacked = min(int(when.mask.sum()), when.most)
        gradients = first.steps * optimizer(first.optimizer, first.steps).restarts * first.draws if first.steps else 0
        return self.episode_steps + attacked * gradients

    def columns(self, agent: str, device: str) -> dict[str, Any]:
        """Return what all its rows have in common, by column; `agent` is the victim's family, `device` a kind."""
        spec = env_spec(self.episodes[0].task)
        return {
            "agent": agent,
            "max_return": spec.max_return * self.episode_steps / spec.episode_steps,
            "length": self.episode_steps,
            "schema": SCHEMA_VERSION,
            "wmjax": wmjax.__version__,
            "device": device,
            "backend": self.backend,
            "victim_sha256": self.victim_sha256,
        }

    def padded(self) -> list[Episode]:
        """Return exactly `batch` episodes; the last one is repeated to fill up."""
        return [*self.episodes, *[self.episodes[-1]] * (self.batch - len(self.episodes))]


def episodes(study: Study, victims: Mapping[str, Card], sources: Mapping[str, Card] | None = None) -> list[Episode]:
    """Return every episode of the study, each once: the clean ones, every attacked cell, and the probes.

    A probe is an attack of budget 0: one for each way of attacking, with the first objective, region, mode and seed
    that the study lists for it. `victims` and `sources`, others than 'self', are the agents' cards by name. Raises
    InputError where a victim fits no task of the study, a task no victim, a source no victim's task, or for more than a
    million episodes.
    """
    pairs = [(victim, task) for victim, card in victims.items() for task in _tasks(study, victim, card)]
    if idle := set(study.tasks) - {task for _, task in pairs}:
        raise InputError(f"tasks: no victim of the study was trained on {', '.join(sorted(idle))}")
    through = {pair: _sources(study, *pair, sources or {}) for pair in pairs}
    if idle := {*(sources or {})} - {*victims}.union(*through.values()):
        raise InputError(
            f"sources: {', '.join(sorted(idle))} attacks no victim: "
            "none plays a task of its own, with the same action size, image size and action repeat"
        )
    budgets = [eps for eps in study.budgets if eps > 0]
    each = len(study.regions) * len(study.modes) * len(budgets) * len(study.seeds)
    count = 0
    for pair in pairs:
        attacked = sum(len(objectives) * each + 1 for objectives, _ in _ways(study, through[pair]))
        count += len(study.defenses) * len(study.seeds) + attacked
    if count > _MOST_EPISODES:
        raise InputError(f"the study has {count} episodes; at most {_MOST_EPISODES}, so split it up")
    found = []
    for victim, task in pairs:
        for defense, seed in product(study.defenses, study.seeds):
            found.append(Episode(victim, task, **_CLEAN, defense=defense, seed=seed))
        for objectives, way in _ways(study, through[victim, task]):
            cells = product(objectives, study.regions, study.modes, budgets, study.seeds)
            probe = objectives[0], study.regions[0], study.modes[0], 0.0, study.seeds[0]
            for objective, region, mode, eps, seed in (*cells, probe):
                found.append(Episode(victim, task, objective, region=region, mode=mode, eps=eps, seed=seed, **way))
    return found


def plan(
    study: Study, victims: Mapping[str, Card], sources: Mapping[str, Card], hashes: Mapping[str, str], batch: int
) -> list[Chunk]:
    """Return the study's chunks, the most work first; `hashes` are those of the victims' and the sources' files."""
    key = lambda episode: episode.program  # noqa: E731
    chunks = []
    for _, group in groupby(sorted(episodes(study, victims, sources), key=lambda e: (e.program, e)), key):
        members = list(group)
        for i in range(0, len(members), batch):
            part = tuple(members[i : i + batch])
            own, other = hashes[part[0].victim], hashes.get(part[0].source, "")
            chunks.append(Chunk(part, batch, study.episode_steps, study.backend, own, other))
    return sorted(chunks, key=lambda chunk: -chunk.work)


def _ways(study: Study, sources: Sequence[str]) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield each way of attacking, as columns of an episode, after the objectives that it is for."""
    searched = [objective for objective in study.objectives if objective != "random"]
    optimizers = study.attacks() if searched else []
    for frames, defense in product(study.frames, study.defenses):
        seen = {"frames": frames, "defense": defense}
        known = (False,) if defense == "none" else study.adaptive
        for (name, steps), source, adaptive in product(optimizers, sources, known):
            how = {"optimizer": name, "steps": steps, "noise": study.noise, "draws": study.draws, "source": source}
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
        for name, size in misfits(card, spec).items():
            raise InputError(f"victims: {victim} has {name} {size}, but {task} has {getattr(spec, name)}")
    return tasks


def _sources(study: Study, victim: str, task: str, cards: Mapping[str, Card]) -> list[str]:
    """Return which of the study's sources attack a victim on a task: 'self', and other agents that play the task."""

    def plays(card: Card) -> bool:
        return not misfits(card, env_spec(task)) and card.task in (None, task)

    own = ["self"] if "self" in study.sources or victim in cards else []
    return [*own, *(name for name, card in cards.items() if name != victim and plays(card))]


def failed_rows(chunk: Chunk, agent: str, device: str, error: str) -> list[dict[str, Any]]:
    """Return the rows of a chunk whose victim is of family `agent`; `error` says in a line what went wrong."""
    unknown = {column.name: float("nan") for column in SCHEMA if pa.types.is_floating(column.type)}
    known = chunk.columns(agent, device) | {"attacked": 0, "nan": False, "error": error}
    return [unknown | asdict(episode) | known for episode in chunk.episodes]
