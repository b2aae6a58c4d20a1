"""A training run as it was asked for: checked before anything is compiled or written."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

from wmjax import envs, runtime
from wmjax.core.errors import InputError, unknown_name
from wmjax.core.jax_settings import arithmetic
from wmjax.core.numbers import whole
from wmjax.core.text import as_path
from wmjax.core.toml_overrides import toml_overrides
from wmjax.train import sizes
from wmjax.train.recipe import Recipe

_MOST_STEPS = 10**9
_MOST_SEEDS = 64


@dataclass(frozen=True)
class Job:
    """What to train, for how long, and where to."""

    task: str
    agent: str
    size: str
    seeds: tuple[int, ...]
    steps: int  #: environment steps a seed, those of the action repeat counted
    recipe: Recipe
    folder: Path

    @property
    def name(self) -> str:
        """What the agent is called."""
        return _name(self.task, self.agent, self.size)

    @property
    def command(self) -> str:
        """The command that trains it."""
        words = ["wmjax train --task", self.task, "--agent", self.agent, "--size", self.size, "--steps", self.steps]
        if self.seeds != (0,):
            words += ["--seeds", *self.seeds]
        usual = sizes.RECIPES[self.size]
        changed = {name: value for name, value in asdict(self.recipe).items() if value != getattr(usual, name)}
        words += [f"--set '{name} = {value!r}'" for name, value in changed.items()]
        return " ".join(map(str, words))

    @property
    def identity(self) -> dict[str, Any]:
        """What a folder holds one of; a run may be prolonged."""
        return {
            "task": self.task,
            "agent": self.agent,
            "size": self.size,
            "seeds": list(self.seeds),
            "recipe": asdict(self.recipe),
            "versions": runtime.versions("optax"),
            **arithmetic(runtime.local_devices()),
        }


def prepare(
    task: str,
    agent: str,
    size: str,
    *,
    seeds: Sequence[int] = (0,),
    steps: int | None = None,
    changes: Sequence[str] = (),
    out: str | Path | None = None,
) -> Job:
    """Return the job; `changes` are lines `field = value` on the size's recipe.

    Raises InputError for anything wrong.
    """
    spec = envs.spec(task)
    sizes.victim(agent, size, spec.action_size)
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        raise InputError(f"seeds is {seeds!r:.80}; expected a list of whole numbers")
    seeds = tuple(whole("seeds", seed, 0, 2**32 - 1) for seed in islice(seeds, _MOST_SEEDS + 1))
    if not 1 <= len(seeds) <= _MOST_SEEDS or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds are {seeds!r:.80}; allowed: 1 to {_MOST_SEEDS} different ones")
    recipe = _changed(sizes.RECIPES[size], changes)
    least = (recipe.batch_length + 2) * recipe.env_num * spec.action_repeat
    steps = whole("steps", sizes.STEPS[size] if steps is None else steps, 0)
    if not least < steps <= _MOST_STEPS:
        raise InputError(
            f"steps is {steps!r:.80}; allowed: more than {least}, which come before the first update, to {_MOST_STEPS}"
        )
    if recipe.max_size // recipe.env_num < recipe.batch_length + 2:
        raise InputError(f"max_size is {recipe.max_size}; {recipe.env_num} episodes need {least // spec.action_repeat}")
    folder = as_path(out or Path("runs") / "train" / _name(spec.task, agent, size))
    return Job(spec.task, agent, size, seeds, steps, recipe, folder)


def _name(task: str, agent: str, size: str) -> str:
    return f"{task}_{agent}_{size}"


def _changed(recipe: Recipe, changes: Sequence[str]) -> Recipe:
    known = {field.name: field.type for field in fields(Recipe)}
    values = toml_overrides(changes, "lr = 1e-4")
    for name, value in values.items():
        if name not in known:
            raise unknown_name("field of the recipe", re.sub(r"\W", "?", name)[:80], known)
        if known[name] is float and type(value) is int:
            values[name] = float(str(value))  # infinite where it is too large, which `float(value)` raises for
    return replace(recipe, **values)
