"""Environments: `make` one by its task's name."""

import importlib
from typing import Any

from wmjax.core.errors import unknown_name
from wmjax.core.numbers import whole
from wmjax.envs.base import TASKS, EnvSpec, spec
from wmjax.envs.host import HostEnv, HostState, WorkerError

__all__ = ["TASKS", "EnvSpec", "HostEnv", "HostState", "WorkerError", "make", "spec"]

BACKENDS = ("device", "host")


def make(task: str, backend: str = "host", batch: int = 1, workers: int = 1) -> Any:
    """Return an environment of B = `batch` episodes of `task`: a `HostEnv`, or a `DeviceEnv`.

    Backend "host" runs C MuJoCo and its renderer in `workers` processes; "device" runs MJX and a renderer in JAX.
    Raises InputError, listing the known ones, for an unknown task or backend, and where `batch` or `workers` is not a
    whole number from 1.
    """
    if backend not in BACKENDS:
        raise unknown_name("backend", backend, BACKENDS)
    if backend == "host":
        return HostEnv(spec(task), batch, workers)
    whole("workers", workers, 1)  # of no use here, but wrong all the same
    # Loaded on use: a worker process of the host never pays for JAX.
    return importlib.import_module("wmjax.envs.device").DeviceEnv(spec(task), batch)
