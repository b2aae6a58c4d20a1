"""Environments: `make` one by its task's name."""

from wmjax.core.errors import unknown_name
from wmjax.envs.base import TASKS, EnvSpec, spec
from wmjax.envs.host import HostEnv, HostState, WorkerError

__all__ = ["TASKS", "EnvSpec", "HostEnv", "HostState", "WorkerError", "make", "spec"]

_BACKENDS = {"host": HostEnv}


def make(task: str, backend: str = "host", batch: int = 1, workers: int = 1) -> HostEnv:
    """Return an environment of B = `batch` episodes of `task`.

    Backend "host" runs C MuJoCo in `workers` processes. Raises InputError, listing the known ones, for an unknown task
    or backend, and where `batch` or `workers` is not a whole number from 1.
    """
    if backend not in _BACKENDS:
        raise unknown_name("backend", backend, _BACKENDS)
    return _BACKENDS[backend](spec(task), batch=batch, workers=workers)
