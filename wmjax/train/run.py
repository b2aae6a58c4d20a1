"""`train` a job: call the program again and again, look, write down; a run that was stopped goes on."""

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wmjax import envs
from wmjax.core.errors import InputError
from wmjax.core.files import lock, make_folder, read_file, write_atomically
from wmjax.core.jax_settings import fixed_settings
from wmjax.train import sizes
from wmjax.train.checkpoint import checkpoints, restore, save
from wmjax.train.collect import Task
from wmjax.train.curves import Curves
from wmjax.train.evaluate import clean_returns
from wmjax.train.job import Job
from wmjax.train.memory import check_memory
from wmjax.train.multi_seed import agents, begin, devices, go_on, placed
from wmjax.train.trainer import Plan, Training

UPDATES = 50
"""About how many updates a call makes: between calls a run is logged, saved and can be stopped."""

SAVE_EVERY = 600.0
"""Seconds between checkpoints."""

EVALUATIONS = 20
"""How often a run is evaluated, in equal parts of its steps."""

EVALUATION_SEEDS = range(10_000, 10_005)
"""Of the episodes of each: others than cards and studies use."""

Row = dict[str, Any]
"""A line of the log: `steps`, `updates`, `seconds`, and what was logged, a list with a number a seed each."""

_SINGLE = ("steps", "updates", "seconds")
_LARGEST = 1e39  # a float32 is smaller


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    steps: int  #: environment steps done
    total: int
    row: Row  #: the newest of the log

    def line(self) -> str:
        """Return the returns of the latest episodes, the mean of all seeds, in words."""
        scores = [score for score in self.row["episode/score"] if score is not None]
        return f"return {np.mean(scores):.0f}" if scores else "first episodes"


@dataclass(frozen=True)
class Trained:
    """The end of a run."""

    job: Job
    plan: Plan
    state: Training  #: [S, ...]
    log: list[Row]


@fixed_settings()
def train(job: Job, *, on_progress: Callable[[Progress], None] = lambda progress: None) -> Trained:
    """Train all seeds at once, from the last checkpoint on where there is one, and return the agents.

    A run that was killed and started again ends exactly as one that was not, on the same kind of device. An
    interruption takes effect after the call in progress, with a checkpoint. Raises InputError where memory is too
    small, or where the folder holds another run, is in use or cannot be written, and FloatingPointError where a loss is
    no longer finite.
    """
    mesh = devices(len(job.seeds))
    env = envs.make(job.task, backend="device")
    victim = sizes.victim(job.agent, job.size, env.spec.action_size)
    plan = Plan(victim, job.recipe, env.world, job.recipe.max_size // job.recipe.env_num)
    task = Task(dict(env.params), env.scene, jnp.int32(env.spec.episode_steps))
    keys = jax.vmap(jax.random.key)(np.asarray(job.seeds, np.uint32))
    # Whole calls only: every call is the same program, however the run was cut into pieces.
    length = max(1, UPDATES // plan.round[1])
    shapes = begin.eval_shape(plan, mesh, task, keys)
    check_memory(plan, shapes, mesh)
    with _claimed(job), checkpoints(job.folder / "checkpoints") as kept, _after_the_call() as interrupted:
        found = restore(kept, shapes, mesh)
        state, log = (begin(plan, mesh, task, keys), []) if found is None else (found[0], _checked(found[1], job))
        saved = time.monotonic()
        began = saved - (log[-1]["seconds"] if log else 0.0)
        with Curves(job.folder / "tensorboard", job.seeds, _steps(plan, state)) as curves:
            while (done := _steps(plan, state)) < job.steps:
                state, metrics = go_on(plan, mesh, length, task, placed(state, mesh))
                while not metrics["opt/loss"].is_ready():
                    time.sleep(0.005)  # Python hears a second interrupt only here, not while it waits for an array
                steps = _steps(plan, state)
                row: Row = {
                    "steps": steps,
                    "updates": int(state.learner.updates[0]),
                    "episode/score": _numbers(state.play.scores.mean(axis=1)),
                    **{name: _numbers(values) for name, values in metrics.items()},
                }
                if _parts(steps, job.steps) > _parts(done, job.steps):
                    row["episode/eval_score"] = _evaluated(plan, job, state)
                row["seconds"] = round(time.monotonic() - began, 1)
                if None in row["opt/loss"]:
                    raise FloatingPointError(f"the loss is no longer finite after {row['updates']} updates")
                log.append(row)
                curves.add(row)
                on_progress(Progress(steps, job.steps, row))
                stop = interrupted()  # asked once: none is raised before it is saved
                if stop or steps >= job.steps or time.monotonic() - saved > SAVE_EVERY:
                    save(kept, row["updates"], state, log)
                    saved = time.monotonic()
                if stop:
                    raise KeyboardInterrupt
    return Trained(job, plan, state, log)


def _evaluated(plan: Plan, job: Job, state: Training) -> list[float]:
    """Return the mean return of each agent's clean episodes."""
    played = (clean_returns(plan.victim, params, job.task, "device", EVALUATION_SEEDS) for params in agents(state))
    return [float(returns.mean()) for returns in played]


def _steps(plan: Plan, state: Training) -> int:
    """Return the environment steps that each seed has played."""
    return int(state.replay.count[0]) * plan.recipe.env_num * envs.EnvSpec.action_repeat


def _parts(steps: int, total: int) -> int:
    return EVALUATIONS * steps // total


def _numbers(values: jax.Array) -> list[float | None]:
    """Return an array [S] for JSON, which has no NaN."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in np.asarray(values)]


def _checked(log: Any, job: Job) -> list[Row]:
    """Return the log of a checkpoint, which anybody may have written; raises InputError where it is none of the job."""
    if not (isinstance(log, list) and log and all(_is_row(row, len(job.seeds)) for row in log)):
        raise InputError(f"{job.folder / 'checkpoints'}: the log there is not that of a run of {len(job.seeds)} seeds")
    return log


def _is_row(row: Any, seeds: int) -> bool:
    number = lambda x: type(x) in (int, float) and abs(x) < _LARGEST  # noqa: E731
    logged = lambda x: isinstance(x, list) and len(x) == seeds and all(y is None or number(y) for y in x)  # noqa: E731
    return (
        isinstance(row, dict)
        and row.keys() >= {*_SINGLE, "episode/score"}
        and all((number if name in _SINGLE else logged)(x) for name, x in row.items())
    )


@contextmanager
def _claimed(job: Job) -> Iterator[None]:
    """Have the folder for this process alone; raises InputError where another has it, or it holds another run."""
    make_folder(job.folder)
    with lock(job.folder):
        _check_identity(job)
        yield


def _check_identity(job: Job) -> None:
    """Write what the folder holds; raises InputError where it holds another run."""
    path = job.folder / "run.json"
    text = json.dumps(job.identity, indent=1, sort_keys=True)
    try:
        held = json.loads(read_file(path, 1 << 20))
    except FileNotFoundError:
        write_atomically(path, text.encode())
        return
    except InputError:
        raise
    except (ValueError, RecursionError):
        raise InputError(f"{path}: cannot be read; use another --out") from None
    wanted = json.loads(text)
    if held != wanted:
        held = held if isinstance(held, dict) else {}
        differ = [name for name in wanted | held if held.get(name) != wanted.get(name)]
        raise InputError(
            f"{job.folder}: holds another run, of other {' and '.join(differ) or 'fields'}; use another --out"
        )


@contextmanager
def _after_the_call() -> Iterator[Callable[[], bool]]:
    """Note interrupts instead of raising; a second one raises at once. Yields what tells whether there was one."""
    caught: list[int] = []

    def note(number: int, _: Any) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)

    heard = threading.current_thread() is threading.main_thread()  # Python has others hear no signals
    before = {kind: signal.signal(kind, note) for kind in (signal.SIGINT, signal.SIGTERM) if heard}
    try:
        yield lambda: bool(caught)
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
