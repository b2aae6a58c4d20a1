"""The resolved hydra config that a training run leaves beside its checkpoint: hints, and facts to check against."""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from wmjax.core.errors import InputError
from wmjax.victims.dreamer import Dreamer

_LARGEST = 1 << 20

_SIZES = {
    "model.deter": "deter",
    "model.hidden": "hidden",
    "model.discrete": "discrete",
    "model.units": "units",
    "model.rssm.deter": "deter",
    "model.rssm.hidden": "hidden",
    "model.rssm.discrete": "discrete",
    "model.rssm.blocks": "blocks",
    "model.rssm.dyn_layers": "dyn_layers",
    "model.rssm.img_layers": "img_layers",
    "model.rssm.obs_layers": "obs_layers",
    "model.encoder.cnn.kernel_size": "kernel_size",
    "model.encoder.cnn.minres": "minres",
    "model.actor.layers": "actor_layers",
    "model.critic.layers": "critic_layers",
    "model.reward.layers": "reward_layers",
    "model.cont.layers": "cont_layers",
    "model.critic.dist.bin_num": "bins",
}
"""Entries that the tensors tell as well, and which of the agent's sizes they are."""

_FIXED = {
    "model.act": "SiLU",
    "model.norm": True,
    "model.rssm.unimix_ratio": 0.01,
    "model.actor.dist.cont.name": "bounded_normal",
    "model.actor.dist.cont.min_std": 0.1,
    "model.actor.dist.cont.max_std": 1.0,
    "model.critic.dist.name": "symexp_twohot",
}
"""Entries that no tensor shows, and the only value of each that our inference graph computes."""


@dataclass(frozen=True)
class Hints:
    """What the tensors of a checkpoint do not tell."""

    stoch: int | None = None  #: latent groups; tensors only show groups x classes
    agent: str | None = None  #: r2dreamer and infonce have the same keys
    task: str | None = None
    action_repeat: int | None = None


@dataclass(frozen=True)
class Config:
    """A run's config; `tree` is empty where there is no file."""

    path: Path
    tree: Any

    def hints(self) -> Hints:
        """Return what the file tells; raises InputError for an entry of the wrong type."""
        return Hints(
            stoch=self._entry("model.rssm.stoch", int),
            agent=self._entry("model.rep_loss", str),
            task=self._entry("env.task", str),
            action_repeat=self._entry("env.action_repeat", int),
        )

    def check(self, victim: Dreamer) -> None:
        """Raise InputError where the file contradicts the agent's sizes, or asks for another inference graph."""
        for name, size in _SIZES.items():
            told, actual = self._find(name), getattr(victim, size)
            if told is not None and told != actual:
                raise InputError(f"{self.path}: {name} is {_brief(told)}, but {actual} in the checkpoint beside it")
        depth, factors = (self._find(f"model.encoder.cnn.{name}") for name in ("depth", "mults"))
        if depth is not None and isinstance(factors, list):
            told = [depth * x for x in factors] if all(type(x) is int for x in (depth, *factors)) else None
            if told != list(victim.depths):
                raise InputError(
                    f"{self.path}: model.encoder.cnn.depth times mults is {told or 'no list of whole numbers'}, "
                    f"but {list(victim.depths)} in the checkpoint beside it"
                )
        for name, only in _FIXED.items():
            told = self._find(name)
            if told is not None and told != only:
                raise InputError(f"{self.path}: {name} is {_brief(told)}; wmjax only runs agents with {only!r}")

    def _entry(self, name: str, kind: type) -> Any:
        value = self._find(name)
        if value is not None and type(value) is not kind:
            raise InputError(f"{self.path}: {name} is {_brief(value)}, expected {kind.__name__}")
        return value

    def _find(self, name: str, references: int = 8) -> Any:
        """Return the entry, followed through `${other.entry}`; None where it is absent or cannot be resolved."""
        value = self.tree
        for part in name.split("."):
            if not isinstance(value, dict):
                return None
            value = value.get(part)
        if not isinstance(value, str) or not value.startswith("${"):
            return value
        reference = re.fullmatch(r"\$\{([\w.]+)\}", value)
        return self._find(reference[1], references - 1) if reference and references else None


def read_config(path: Path) -> Config:
    """Return the config at `path`; raises InputError where the file is no config of the R2-Dreamer code."""
    if not path.is_file():
        return Config(path, {})
    try:
        import yaml
    except ImportError:
        raise InputError(f"reading {path} needs PyYAML: pip install 'wmjax[convert]'") from None
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError("too large")
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not all(isinstance(tree[part], dict) for part in ("env", "model")):
            raise ValueError("env and model are no sections")
    except (OSError, KeyError, TypeError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: not the config of an R2-Dreamer run ({reason:.160})") from None
    return Config(path, tree)


def merge(given: Hints, config: Config) -> Hints:
    """Complete what the caller gave by the config; raises InputError where the two name different agents."""
    told = config.hints()
    for name in ("stoch", "agent"):
        ours, theirs = getattr(given, name), getattr(told, name)
        if None not in (ours, theirs) and ours != theirs:
            raise InputError(f"{name} is {ours!r}, but {theirs!r} in {config.path}")
    pairs = {field.name: (getattr(given, field.name), getattr(told, field.name)) for field in fields(Hints)}
    return Hints(**{name: theirs if ours is None else ours for name, (ours, theirs) in pairs.items()})


def _brief(value: Any) -> str:
    # A YAML file may share parts so often that writing them out never ends.
    return f"{value!r:.60}" if isinstance(value, int | float | str) else f"a {type(value).__name__}"
