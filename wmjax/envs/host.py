"""Environments on the host: batches of dm_control episodes on C MuJoCo, spread over worker processes."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from dataclasses import dataclass
from typing import Any, BinaryIO, Self

import numpy as np

from wmjax.core.errors import InputError
from wmjax.core.numbers import whole
from wmjax.envs import pipe
from wmjax.envs.base import EnvSpec, episode_seeds, physics_states

_THREADS = {
    "LP_NUM_THREADS": "0",  # Mesa draws in the calling thread: 5 % cheaper than in one of its own
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""Parallelism comes from the workers. What the user has set is kept."""


class WorkerError(RuntimeError):
    """A worker process failed or died. The message has its traceback, or its exit code and the end of its stderr."""


@dataclass(frozen=True, eq=False)
class HostState:
    """Where B episodes stand. The physics itself is in the worker processes: only the newest state can be stepped."""

    image: np.ndarray
    """Frames [B, H, W, 3], uint8. A diverged episode keeps its last good one."""
    reward: np.ndarray
    """Reward of the last agent step [B], float64, summed over the action repeat; 0 after a reset and once diverged."""
    steps: int
    """Agent steps done."""
    done: bool
    """Whether the episodes are over."""
    nan: np.ndarray
    """Episodes [B], bool, whose physics diverged, or that were given a non-finite action: they are frozen."""


class HostEnv:
    """B episodes of one task, stepped in parallel by worker processes with one GL context each.

    Results do not depend on `batch`, on `workers` or on an episode's place in the batch. The workers start at once and
    in the background; their failure to start shows in the first call. Different HostEnv objects may be used from
    different threads. Use it as a context manager, or `close` it; workers never outlive this process.
    """

    def __init__(self, spec: EnvSpec, batch: int, workers: int = 1) -> None:
        """Start the workers, at most one an episode."""
        self.spec = spec
        self.batch, workers = whole("batch", batch, 1), whole("workers", workers, 1)
        self._state: HostState | None = None
        self._workers = [_Worker(spec.task) for _ in range(min(workers, self.batch))]
        self._stop = weakref.finalize(self, _stop, self._workers)

    def reset(self, seeds: Any) -> HostState:
        """Start an episode a seed: `seeds` [B], integers in [0, 2**32); the same seed gives the same episode."""
        return self._call("reset", 0, seed=episode_seeds(seeds, self.batch).astype(np.int64))

    def state_at(
        self,
        qpos: Any,
        qvel: Any,
        geom_size: Any = None,
        geom_pos: Any = None,
        site_size: Any = None,
        site_pos: Any = None,
    ) -> HostState:
        """Start episodes in given physics states: qpos [B, nq], qvel [B, nv].

        The geometry, [B, ngeom, 3] or [B, nsite, 3], replaces that of the task's model file (reacher's target is a
        geom, finger's a site).
        """
        geometry = dict(geom_size=geom_size, geom_pos=geom_pos, site_size=site_size, site_pos=site_pos)
        return self._call("place", 0, **physics_states(self.batch, np.float64, qpos=qpos, qvel=qvel, **geometry))

    def step(self, state: HostState, action: Any) -> HostState:
        """Apply `action` [B, A], in [-1, 1], for the task's action repeat.

        Raises RuntimeError for a state that is not the newest one, or whose episodes are over; WorkerError for a
        worker that fails.
        """
        action = np.asarray(action, np.float64)
        if action.shape != (self.batch, self.spec.action_size):
            raise InputError(f"action must have shape {(self.batch, self.spec.action_size)}, not {action.shape}")
        if state is not self._state:
            raise RuntimeError("this state is stale: the physics has moved on; step the state that was returned last")
        if state.done:
            raise RuntimeError(f"the episodes are over after {state.steps} steps: reset first")
        return self._call("step", state.steps + 1, action=action)

    def image(self, state: HostState) -> np.ndarray:
        """Return the frames of `state` [B, H, W, 3], uint8."""
        return state.image

    def close(self) -> None:
        """End the workers. Safe to call twice; a closed environment can not be used again."""
        self._state = None
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: str, steps: int, **arrays: np.ndarray) -> HostState:
        if not self._stop.alive:
            raise RuntimeError("this environment is closed")
        self._state = None
        parts = {name: np.array_split(values, len(self._workers)) for name, values in arrays.items()}
        try:
            for i, worker in enumerate(self._workers):
                worker.send(method, {name: part[i] for name, part in parts.items()})
            answers = [worker.receive() for worker in self._workers]
        except BaseException:  # also Ctrl-C: an answer may be under way, and would be taken for that of the next call
            self.close()
            raise
        for header, _ in answers:
            if "input" in header:
                raise InputError(header["input"])
        image, reward, nan = (
            np.concatenate([part[name] for _, part in answers]) for name in ("image", "reward", "nan")
        )
        self._state = HostState(image, reward, steps, steps >= self.spec.episode_steps, nan)
        return self._state


class _Worker:
    """One worker process and the pipes to it."""

    def __init__(self, task: str) -> None:
        self.task = task
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115  a file, since a pipe that nobody reads would fill up
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "wmjax.envs.worker", task],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            env=_THREADS | os.environ | {"PYTHONPATH": path},
            process_group=0,  # a Ctrl-C in the terminal is for the parent alone
        )
        self.calls: BinaryIO = self.process.stdin  # type: ignore[assignment]
        self.answers: BinaryIO = self.process.stdout  # type: ignore[assignment]

    def send(self, method: str, arrays: dict[str, np.ndarray]) -> None:
        try:
            pipe.send(self.calls, {"method": method}, arrays)
        except BrokenPipeError:
            raise self._death() from None

    def receive(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        try:
            header, arrays = pipe.receive(self.answers)
        except EOFError:
            raise self._death() from None
        if "traceback" in header:
            text = header["traceback"].strip()
            raise WorkerError(f"a worker of {self.task} failed: {text.splitlines()[-1]}\n{text}")
        return header, arrays

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.answers, self.stderr):
            stream.close()
        with contextlib.suppress(BrokenPipeError):  # closing flushes what the worker did not take
            self.calls.close()

    def _death(self) -> WorkerError:
        code = self.process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        end = os.fstat(self.stderr.fileno()).st_size
        tail = os.pread(self.stderr.fileno(), 4000, max(0, end - 4000)).decode(errors="replace")
        return WorkerError(f"a worker of {self.task} {how}; the end of its stderr:\n{tail or '(empty)'}")


def _stop(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.stop()
