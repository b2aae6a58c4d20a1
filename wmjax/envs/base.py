"""The contract of an environment, and the tasks of the benchmark by the names of the reference configs."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from wmjax.core.errors import InputError, unknown_name

GEOMETRY = ("geom_size", "geom_pos", "site_size", "site_pos")
"""The arrays of a model that may differ between episodes, [ngeom, 3] or [nsite, 3], by MuJoCo's names."""


@dataclass(frozen=True)
class EnvSpec:
    """What is fixed about a task.

    `action_repeat` environment steps make one agent step; an episode has `episode_steps` agent steps, and its
    return lies in [0, `max_return`].
    """

    task: str
    domain: str
    name: str
    action_size: int
    action_repeat: int = 2
    episode_steps: int = 500
    image_size: int = 64
    camera: int = 0
    max_return: float = 1000.0


def _dmc(domain: str, name: str, action_size: int) -> EnvSpec:
    short = f"dmc_{domain}_{name}"
    return EnvSpec(task=short, domain=domain, name=name, action_size=action_size)


TASKS: dict[str, EnvSpec] = {
    spec.task: spec
    for spec in (
        _dmc("ball_in_cup", "catch", 2),
        _dmc("cartpole", "balance", 1),
        _dmc("cartpole", "swingup", 1),
        _dmc("finger", "turn_easy", 2),
        _dmc("hopper", "stand", 4),
        _dmc("reacher", "easy", 2),
        _dmc("reacher", "hard", 2),
        _dmc("walker", "run", 6),
        _dmc("walker", "stand", 6),
        _dmc("walker", "walk", 6),
    )
}
"""The ten DeepMind Control tasks of the benchmark (arXiv 2606.16605), 64x64 RGB from camera 0, action repeat 2."""


_ALIASES = {"dmc_cup_catch": "dmc_ball_in_cup_catch"}
"""Names that other Dreamer code bases have for a task."""


def task_name(name: str) -> str:
    """Return the name by which TASKS has a task that other code bases spell otherwise; any other name as it is."""
    plain = name.replace("-", "_")
    plain = _ALIASES.get(plain, plain)
    return plain if plain in TASKS else name


def spec(task: str) -> EnvSpec:
    """Return the spec of a task, by any of its names; raises InputError, listing the known tasks, for other names."""
    name = task_name(task) if isinstance(task, str) else ""
    if name not in TASKS:
        if str(task).startswith("metaworld"):
            raise InputError(f"task {task!r:.80} cannot be played: MetaWorld agents can be converted only")
        raise unknown_name("task", task, TASKS)
    return TASKS[name]


def episode_seeds(seeds: Any, batch: int) -> np.ndarray:
    """Return `seeds` as an array [B] of integers in [0, 2**32); raises InputError for others."""
    seeds = np.asarray(seeds)
    if seeds.shape != (batch,) or seeds.dtype.kind not in "iu" or seeds.min() < 0 or seeds.max() >= 2**32:
        raise InputError(f"seeds must be {batch} integers in [0, 2**32), not {seeds!r:.80}")
    return seeds


def physics_states(batch: int, dtype: Any, **given: Any) -> dict[str, np.ndarray]:
    """Return the arguments of `state_at` that are not None as arrays [B, ...]; raises InputError for what cannot be."""
    with np.errstate(over="ignore"):  # what is too large for the dtype is not finite
        arrays = {name: np.asarray(values, dtype) for name, values in given.items() if values is not None}
    for name, values in arrays.items():
        if values.shape[:1] != (batch,):
            raise InputError(f"{name} must have a first axis of {batch}, not shape {values.shape}")
        if not np.isfinite(values).all():
            raise InputError(f"{name} has values that are not finite")
    return arrays


class Env(Protocol):
    """A batch of B episodes of one task. `reset` and `step` return a new state; frames are read with `image`."""

    spec: EnvSpec

    def reset(self, seeds: Any) -> Any:
        """Start B episodes, one a seed [B]."""

    def step(self, state: Any, action: np.ndarray) -> Any:
        """Apply `action` [B, A] in [-1, 1] for `action_repeat` environment steps; `reward` [B] is their sum."""

    def state_at(self, qpos: Any, qvel: Any, geom_size: Any = None, geom_pos: Any = None) -> Any:
        """Start B episodes in given physics states, qpos [B, nq] and qvel [B, nv], with given geoms [B, ngeom, 3]."""

    def image(self, state: Any) -> np.ndarray:
        """Return the frames [B, H, W, 3], uint8."""
