"""One device and its environments: plays a chunk of episodes and gives back rows and recorded frames."""

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from wmjax import rollout
from wmjax.agents.base import Params
from wmjax.agents.dreamer import Dreamer
from wmjax.agents.zoo import load
from wmjax.attacks.defenses import named
from wmjax.attacks.optimizers import NO_STEPS, optimizer
from wmjax.attacks.regions import region
from wmjax.attacks.threat import Attack, Threat, threat
from wmjax.attacks.timing import Timing, timing
from wmjax.core.jax_settings import fixed_settings
from wmjax.envs import make
from wmjax.rollout.keys import digest, episode_keys
from wmjax.study.plan import Chunk, Episode

_SHARE = 0.5
"""Of the areas of memory that a process may map, how many are in use when compiled programs are let go."""


@dataclass(frozen=True)
class Played:
    """What a chunk gave."""

    rows: list[dict[str, Any]]  #: one an episode, see study/schema.py
    traces: dict[str, dict[str, np.ndarray]]  #: arrays of the recorded episodes, by name


class DeviceWorker:
    """Plays one chunk at a time; agents and environments stay for the next one where it needs the same."""

    def __init__(self, device: Any, workers: int, agents: Mapping[str, Path]) -> None:
        """Use `device`, `workers` processes for the environments, and the weight files `agents` by name."""
        self._device, self._workers, self._files = device, workers, agents
        self._agents: dict[str, tuple[Dreamer, Params]] = {}
        self._env: Any = None

    @fixed_settings()
    def play(self, chunk: Chunk, record: Callable[[Episode], bool], on_step: Callable[[int], None]) -> Played:
        """Play the chunk's episodes; `record` says which to keep frame by frame, `on_step` may raise to stop."""
        _make_room()
        first, padded = chunk.episodes[0], chunk.padded()
        victim, params = self._agent(first.victim)
        source, weights = (None, None) if first.source in ("none", "self") else self._agent(first.source)
        attack, when = attack_of(first, chunk.episode_steps, source)
        mask = when.mask & (first.objective != "clean")
        kept = [i for i, episode in enumerate(chunk.episodes) if record(episode)]
        start = time.perf_counter()
        drive: Callable[..., rollout.Rollout] = rollout.device if chunk.backend == "device" else rollout.host
        result = drive(
            victim,
            params,
            self._environment(first.task, chunk),
            attack,
            _threat(chunk, victim.image_size, when),
            mask,
            seeds=[episode.seed for episode in padded],
            keys=episode_keys([(episode.victim, episode.task, episode.seed) for episode in padded]),
            attack_keys=episode_keys([asdict(episode) for episode in padded]),
            source=weights,
            record=kept,
            on_step=on_step,
        )
        wall = (time.perf_counter() - start) / len(chunk.episodes)
        rows = [self._row(chunk, i, victim, attack, result, wall) for i in range(len(chunk.episodes))]
        traces = {_trace_name(chunk.episodes[i]): _trace(rows[i], result.traces[i]) for i in kept}
        return Played(rows, traces)

    def close(self) -> None:
        """End the environments."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def _agent(self, name: str) -> tuple[Dreamer, Params]:
        if name not in self._agents:
            victim, params = load(self._files[name])
            self._agents[name] = victim, jax.device_put(params, self._device)
        return self._agents[name]

    def _environment(self, task: str, chunk: Chunk) -> Any:
        if self._env is None or (self._env.spec.task, self._env.batch) != (task, chunk.batch):
            self.close()
            self._env = make(task, chunk.backend, chunk.batch, self._workers)
        return self._env

    def _row(
        self, chunk: Chunk, i: int, victim: Dreamer, attack: Attack, result: rollout.Rollout, wall: float
    ) -> dict[str, Any]:
        episode = chunk.episodes[i]
        diagnostics = {name: float(values[i]) for name, values in result.diagnostics.items()}
        if not episode.steps:  # there was no objective to climb
            diagnostics |= dict.fromkeys(("loss_first", "loss_last", "loss_error", "zero_grad"), float("nan"))
        if attack.optimizer.restarts == 1:
            diagnostics["restart_gap"] = float("nan")
        return (
            asdict(episode)
            | chunk.columns(victim.agent, self._device.device_kind)
            | {
                "return": float(result.returns[i]),
                "attacked": int(result.attacked[i]),
                "nan": bool(result.nan[i]),
                "error": "",
                **diagnostics,
                "wall_s": wall,
            }
        )


def attack_of(episode: Episode, steps: int, source: Dreamer | None) -> tuple[Attack, Timing]:
    """Return the static choices of an episode's attack, and when of `steps` agent steps it acts, if it does at all."""
    # Clean episodes take values that another program has too: on the device they share that of random noise.
    when = timing("full" if episode.objective == "clean" else episode.mode, steps)
    attack = Attack(
        optimizer(episode.optimizer, episode.steps) if episode.steps else NO_STEPS,
        "fresh" if episode.noise == "none" else episode.noise,
        named(episode.defense)[0],
        episode.adaptive,
        max(episode.draws, 1),
        rounded=episode.frames == "uint8",
        gap=when.gap,
        source=source,
    )
    return attack, when


def _threat(chunk: Chunk, image_size: int, when: Timing) -> Threat:
    """Return what the chunk's episodes are attacked with, the last one's repeated to fill up."""
    first, padded = chunk.episodes[0], chunk.padded()
    clean = first.objective == "clean"
    where = np.stack([region("all" if clean else episode.region, image_size) for episode in padded])
    names, budgets = [episode.objective for episode in padded], [episode.eps for episode in padded]
    _, strength, _ = named(first.defense)
    return threat(names, budgets, strength, region=where, threshold=when.threshold, most=when.most)


def _make_room() -> None:
    """Let go of compiled programs before they are more than Linux lets a process map; they come from disk again.

    A whole episode's program has thousands of mapped areas of memory, of the 65,530 that a process may have by default:
    a study of a few dozen ways of attacking would be killed.
    """
    try:
        areas = Path("/proc/self/maps").read_bytes().count(b"\n")
        most = int(Path("/proc/sys/vm/max_map_count").read_text(encoding="utf-8"))
    except OSError:  # not Linux
        return
    if areas > _SHARE * most:
        jax.clear_caches()


def _trace_name(episode: Episode) -> str:
    """Return a name that is the episode's alone, and a file's on every machine; what is in the file says the rest."""
    unique = digest(asdict(episode)).hex()[:16]
    victim = re.sub(r"[^\w.()-]", "_", episode.victim, flags=re.ASCII)
    return "__".join((victim, episode.task, episode.objective[:20], str(episode.seed), unique))


def _trace(row: Mapping[str, Any], trace: rollout.Trace) -> dict[str, np.ndarray]:
    frames = {name: value for name, value in vars(trace).items() if name != "diagnostics"}
    return frames | trace.diagnostics | {"meta": np.array(json.dumps(row))}
