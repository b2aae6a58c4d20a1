"""wmjax measures how world-model agents break: attacks in closed loop, over whole grids, as batched JAX programs."""

import importlib
from typing import Any

__version__ = "0.1.0"

_MODULES = ("attacks", "envs", "metrics", "rollout", "runtime")
_FUNCTIONS = {
    "Study": "wmjax.study.spec",
    "convert": "wmjax.agents.dreamer.convert",
    "export": "wmjax.agents.dreamer.export",
    "load": "wmjax.agents.zoo",
    "run": "wmjax.study.run",
}

__all__ = ["Study", "attacks", "convert", "envs", "export", "load", "metrics", "rollout", "run", "runtime"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: a worker process that only steps an environment never pays for JAX.
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(_FUNCTIONS[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"wmjax.{name}")
    raise AttributeError(f"module 'wmjax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
