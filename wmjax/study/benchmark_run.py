"""Plays a few agent steps of a study's chunks on all device workers at once, to see how long they take."""

import io
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple, TypeVar

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wmjax.agents.dreamer import Dreamer
from wmjax.attacks.threat import Attack
from wmjax.rollout.drivers import call_length
from wmjax.study.device_worker import DeviceWorker, Played
from wmjax.study.plan import Chunk
from wmjax.study.run_plan import Job
from wmjax.study.schema import SCHEMA

_SECONDS, _FEWEST, _MOST = 3.0, 3, 50
"""How long a kind of agent step is tried, and at least and most how often, where a step is a call of its own."""

_FRESH = "import jax, wmjax.study.run; jax.local_devices()"
"""What Python does before a study begins."""

T = TypeVar("T")


@dataclass(frozen=True)
class Program:
    """What chunks must have in common to share compiled programs."""

    victim: Dreamer
    attack: Attack
    batch: int
    world: str  #: the domain, where physics are part of the program: its tasks share one; else empty


@dataclass(frozen=True)
class Kind:
    """What agent steps of a batch must have in common to take equally long."""

    domain: str
    program: Program
    attacked: bool
    critic: bool  #: whether an objective of the batch asks for the values of actions


class Cost(NamedTuple):
    """What agent steps of one kind take; times are in seconds."""

    load: float  #: once a device worker: to trace the programs and load them from disk
    step: float  #: an agent step of the batch
    frame: float = 0.0  #: to write a recorded frame
    frame_bytes: float = 0.0  #: of one on disk


@dataclass(frozen=True)
class Tried:
    """What a trial told; times are in seconds, sizes in bytes."""

    python: float  #: until Python has loaded all that it needs
    start: float  #: of a device worker, from its first chunk, or one of another task, to the first frame
    reset: float  #: from a chunk's beginning to the first frame, where the task is that of the one before
    first: Mapping[Kind, float]  #: to trace programs and compile them, or load those that had been compiled before
    costs: Mapping[Kind, Cost]
    shard_bytes: float  #: of a chunk's rows on disk
    host_bytes: float  #: of memory, the most at a time, of this process
    device_bytes: float | None  #: the same of an accelerator

    @property
    def compiling(self) -> float:
        """What programs took that were not on disk."""
        return sum(max(0.0, self.first[kind] - cost.load) for kind, cost in self.costs.items())


@dataclass(frozen=True)
class _Play:
    """One chunk's times, in seconds."""

    reset: float  #: to the first frame
    rest: float  #: from there to the end
    call: float  #: of one call, or of all where there is one only
    played: Played


def try_out(job: Job, examples: Sequence[tuple[Kind, Chunk]]) -> Tried:
    """Play beginnings of chunks, one for each kind of agent step, on all device workers at the same time.

    Compiled programs are let go of on the way.
    """
    kinds = [kind for kind, _ in examples]
    lengths = [_length(job, chunk, _FEWEST) for _, chunk in examples]
    stop = threading.Event()

    def play(worker: DeviceWorker, chunk: Chunk, length: int) -> _Play:
        return _play(worker, _beginning(chunk, length), stop, record=job.study.traces != "none")

    def once(worker: DeviceWorker) -> list[_Play]:
        return [play(worker, chunk, n) for (_, chunk), n in zip(examples, lengths, strict=True)]

    def twice(worker: DeviceWorker) -> list[tuple[_Play, _Play]]:
        return [
            (play(worker, chunk, n), play(worker, chunk, n)) for (_, chunk), n in zip(examples, lengths, strict=True)
        ]

    before = list(zip(*_everywhere(job, once, stop), strict=True))
    shortest = lengths
    lengths = [
        _length(job, chunk, round(_SECONDS / fmean(play.call for play in plays)))
        for (_, chunk), plays in zip(examples, before, strict=True)
    ]
    jax.clear_caches()
    after = list(zip(*_everywhere(job, twice, stop), strict=True))
    step = [fmean(again.rest for _, again in pairs) / n for pairs, n in zip(after, lengths, strict=True)]
    load = [max(0.0, fmean(one.rest - two.rest for one, two in pairs)) for pairs in after]
    frames = [_recorded([play.played for pair in pairs for play in pair]) for pairs in after]
    costs = [Cost(late, each, *frame) for late, each, frame in zip(load, step, frames, strict=True)]
    first = [
        max(0.0, fmean(play.rest for play in plays) - n * each)
        for plays, n, each in zip(before, shortest, step, strict=True)
    ]
    plays = [play for pairs in after for pair in pairs for play in pair]
    peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use", 0) for device in job.devices]
    return Tried(
        python=_fresh(),
        start=fmean(one.reset for one, _ in after[0]) if after else 0.0,
        reset=fmean(two.reset for pairs in after for _, two in pairs) if after else 0.0,
        first=dict(zip(kinds, first, strict=True)),
        costs=dict(zip(kinds, costs, strict=True)),
        shard_bytes=fmean([_shard(play.played) for play in plays] or [0.0]),
        host_bytes=1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        device_bytes=float(max(peaks)) if job.devices[0].platform != "cpu" else None,
    )


def _length(job: Job, chunk: Chunk, wanted: int) -> int:
    """Return how many agent steps to try; on the device those of one call, whose number is part of the program."""
    if chunk.backend == "device":
        return call_length(job.study.episode_steps, chunk.batch)
    return min(max(wanted, _FEWEST), _MOST, job.study.episode_steps)


def _beginning(chunk: Chunk, length: int) -> Chunk:
    """Return the chunk as one of shorter episodes, all of whose frames are attacked if any are."""
    mode = chunk.episodes[0].mode
    rule = next((f"{gap}_gap(0)" for gap in ("policy", "value") if mode.startswith(gap)), "full")
    episodes = tuple(replace(e, mode=mode if mode == "none" else rule) for e in chunk.episodes)
    return replace(chunk, episodes=episodes, episode_steps=length)


def _everywhere(job: Job, task: Callable[[DeviceWorker], T], stop: threading.Event) -> list[T]:
    """Return what the task gives on every device worker, all at the same time."""
    device_workers = job.device_workers()
    with ThreadPoolExecutor(len(device_workers)) as pool:
        try:
            return list(pool.map(task, device_workers))
        except BaseException:
            stop.set()  # the other device workers' next step is their last
            raise
        finally:
            pool.shutdown()
            for worker in device_workers:
                worker.close()


class _Stopped(Exception):
    """Raised inside a device worker when the trial is to end early."""


def _play(worker: DeviceWorker, chunk: Chunk, stop: threading.Event, *, record: bool) -> _Play:
    calls = []

    def on_step(t: int) -> None:
        if stop.is_set():
            raise _Stopped
        calls.append(time.perf_counter())

    begin = time.perf_counter()
    recorded = max(chunk.episodes, key=lambda episode: episode.eps)
    played = worker.play(chunk, lambda episode: record and episode == recorded, on_step)
    end = time.perf_counter()
    call = calls[-1] - calls[-2] if len(calls) > 1 else end - calls[0]
    return _Play(calls[0] - begin, end - calls[0], call, played)


def _recorded(chunks: Sequence[Played]) -> tuple[float, float]:
    """Return the seconds that a recorded frame takes to write, and its bytes."""
    seconds, size, frames = 0.0, 0, 0
    for played in chunks:
        for arrays in played.traces.values():
            buffer = io.BytesIO()
            begin = time.perf_counter()
            np.savez_compressed(buffer, allow_pickle=False, **arrays)
            seconds += time.perf_counter() - begin
            size, frames = size + buffer.tell(), frames + len(arrays["reward"])
    return (seconds / frames, size / frames) if frames else (0.0, 0.0)


def _shard(played: Played) -> int:
    """Return the bytes of a chunk's rows on disk."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(played.rows, schema=SCHEMA), sink, write_page_checksum=True)
    return sink.getvalue().size


def _fresh() -> float:
    """Return the seconds in which a new Python process is ready for a study."""
    begin = time.perf_counter()
    # An accelerator's memory is this process's; the other would want most of it too.
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    subprocess.run([sys.executable, "-P", "-c", _FRESH], env=environment | {"PYTHONPATH": path}, check=True)
    return time.perf_counter() - begin
