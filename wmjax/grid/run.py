"""Runs a study: a lane per device takes chunks of episodes and stores their rows, until none are left."""

import importlib.metadata
import json
import os
import queue
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax

from wmjax.core.errors import InputError
from wmjax.envs import WorkerError
from wmjax.grid.lane import Lane
from wmjax.grid.plan import Chunk, Episode, plan
from wmjax.grid.reading import read_study
from wmjax.grid.rows import SCHEMA_VERSION
from wmjax.grid.spec import Study
from wmjax.grid.store import Store
from wmjax.victims import zoo
from wmjax.victims.weights import file_sha256

_TRIES = 2
_PACKAGES = ("wmjax", "jax", "jaxlib", "flax", "numpy", "mujoco", "mujoco-mjx", "dm_control")


@dataclass(frozen=True)
class Progress:
    """How far a study is, in agent steps of its chunks; `message` where there is something to say."""

    done: int
    total: int
    message: str | None = None


@dataclass(frozen=True)
class Outcome:
    """Where the results are, and what a reader of them must know."""

    folder: Path
    episodes: int  #: rows that are there
    failed: dict[str, str] = field(
        default_factory=dict
    )  #: what went wrong in each failed chunk, in a line; its traceback is in errors/
    notes: tuple[str, ...] = ()  #: caveats of the victims


def run(
    study: Study | str | Path = "quickstart",
    out: str | Path | None = None,
    *,
    batch: int | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Run what is not yet done of a study and store it in `out` (default: runs/<name>).

    The study is one, the path of a TOML file, or the name of a shipped study.

    `batch` episodes share each compiled call (default: 4 on CPUs, 64 elsewhere). Results depend neither on the order of
    the chunks, nor on interruptions, nor on the number of devices; another batch size changes their last bits, so a
    folder keeps to one. A chunk that fails twice is reported and left out. `on_progress` is called from several
    threads. Raises InputError for a wrong study, an unusable folder or machine, or a full disk.
    """
    if not isinstance(study, Study):
        study = read_study(study)
    devices = jax.local_devices()
    if batch is None:
        batch = 4 if devices[0].platform == "cpu" else 64
    if not 1 <= batch <= 65536:
        raise InputError(f"batch is {batch}; allowed: 1 to 65536")
    victims = _victims(study)
    cards = {name: zoo.card(path) for name, path in victims.items()}
    hashes = {name: file_sha256(path) for name, path in victims.items()}
    chunks = plan(study, cards, hashes, batch)
    notes = tuple(note for note in map(zoo.caveat, victims.values()) if note)
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    identity = {
        "study": asdict(study),
        "victims": hashes,
        "batch": batch,
        "schema": SCHEMA_VERSION,
        "versions": versions,  # other pixels, physics or rounding are other results
    }
    manifest = {
        "identity": json.loads(json.dumps(identity)),  # as it will be read back
        "study": asdict(study),
        "versions": versions,
        "device": f"{len(devices)} x {devices[0].device_kind}",
        "notes": notes,
    }
    with Store(Path(out or Path("runs") / study.name), manifest) as store:
        work = _Work(store, study, chunks, on_progress)
        work.run(devices, victims)
        rows = sum(len(chunk.episodes) for chunk in chunks if chunk.id not in work.failed)
        return Outcome(store.folder, rows, work.failed, notes)


def _victims(study: Study) -> dict[str, Path]:
    """Return the weight files by name: a shipped agent's own, or the file's stem."""
    found: dict[str, Path] = {}
    for given in study.victims:
        path = zoo.locate(given)
        if path.stem in found:
            raise InputError(f"victims: two are called {path.stem}")
        if len(os.fsencode(path.stem)) > 100:
            raise InputError(f"victims: {path.stem[:40]}... is longer than a name can be (100 bytes)")
        found[path.stem] = path
    return found


class _Stopped(Exception):
    """Raised inside a lane when the study is to end early."""


class _Work:
    """The chunks still to do, taken by one thread a device."""

    def __init__(self, store: Store, study: Study, chunks: Sequence[Chunk], report: Callable[[Progress], None]) -> None:
        self.failed: dict[str, str] = {}
        self._store, self._study, self._report = store, study, report
        self._todo: queue.SimpleQueue[Chunk] = queue.SimpleQueue()
        for chunk in chunks:
            if not store.finished(chunk.id, len(chunk.episodes)):
                self._todo.put(chunk)
        self._total = len(chunks) * study.episode_steps
        self._done = self._total - self._todo.qsize() * study.episode_steps
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._fatal: list[BaseException] = []

    def run(self, devices: Sequence[Any], victims: dict[str, Path]) -> None:
        self._report(Progress(self._done, self._total))
        workers = max(1, len(os.sched_getaffinity(0)) // len(devices))
        lanes = [Lane(device, workers, victims) for device in devices]
        # Daemons: a second Ctrl-C leaves at once, whatever a lane is doing.
        over = [threading.Event() for _ in lanes]
        for lane, end in zip(lanes, over, strict=True):
            threading.Thread(target=self._drain, args=(lane, end), daemon=True).start()
        try:
            for end in over:
                # Not Thread.join: before Python 3.13 an interrupted one takes a running thread for dead.
                while not end.wait(0.2):
                    pass
        finally:
            self._stop.set()
            for end in over:
                end.wait()
        if self._fatal:
            raise self._fatal[0]

    def _drain(self, lane: Lane, end: threading.Event) -> None:
        try:
            while not self._stop.is_set() and not self._todo.empty():
                self._play(lane, self._todo.get_nowait())
        except (_Stopped, queue.Empty):
            pass
        except BaseException as error:
            # Not a chunk's fault, a full disk for one: the others would fare no better.
            self._fatal.append(error)
            self._stop.set()
        finally:
            lane.close()
            end.set()

    def _play(self, lane: Lane, chunk: Chunk) -> None:
        for attempt in range(1, _TRIES + 1):
            before, started = 0, False

            def on_step(t: int) -> None:
                nonlocal before, started
                if self._stop.is_set():
                    raise _Stopped
                self._advance(t - before)
                before, started = t, True

            try:
                played = lane.play(chunk, self._records, on_step)
            except (_Stopped, InputError):  # wrong input, such as MUJOCO_GL, is wrong for every chunk
                raise
            except Exception as error:
                lane.close()
                if isinstance(error, WorkerError) and not started and attempt == _TRIES:
                    raise  # environments do not even start: the installation is at fault, not the chunk
                self._advance(-before, self._blame(chunk, error, last=attempt == _TRIES))
            else:
                for name, arrays in played.traces.items():
                    self._store.write_trace(name, arrays)
                self._store.write_rows(chunk.id, played.rows)
                self._advance(self._study.episode_steps - before)
                return
        self._advance(self._study.episode_steps)

    def _records(self, episode: Episode) -> bool:
        """Return whether to keep an episode frame by frame: the first seed, clean and at the largest budget."""
        kept = episode.objective == "clean" or 0 < episode.eps == max(self._study.budgets)
        return kept and episode.seed == self._study.seeds[0]

    def _blame(self, chunk: Chunk, error: Exception, *, last: bool) -> str:
        summary = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        if last:
            self.failed[chunk.id] = summary
            self._store.write_error(chunk.id, "".join(traceback.format_exception(error)))
        what = " ".join(str(part) for part in chunk.episodes[0].program)
        return f"{what}: failed, {'given up' if last else 'trying again'}: {summary}"

    def _advance(self, steps: int, message: str | None = None) -> None:
        with self._lock:
            self._done += steps
            try:
                self._report(Progress(self._done, self._total, message))
            except BaseException as error:  # the caller's, and no fault of the chunk
                self._fatal.append(error)
                self._stop.set()
                raise _Stopped from error
