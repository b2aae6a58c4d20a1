"""Runs a study: a device worker per device takes chunks of episodes and stores their rows, until none are left."""

import queue
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from wmjax import runtime
from wmjax.core.errors import Damaged, InputError
from wmjax.core.jax_settings import fixed_settings
from wmjax.core.text import printable
from wmjax.envs import WorkerError
from wmjax.study.device_worker import DeviceWorker
from wmjax.study.plan import Chunk, failed_rows
from wmjax.study.provenance import provenance
from wmjax.study.run_plan import Job, prepare
from wmjax.study.spec import Study
from wmjax.study.store import Store

_TRIES = 2


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
    episodes: int  #: that were played, of this shard where there is one
    failed: dict[str, str] = field(
        default_factory=dict
    )  #: what went wrong in each failed chunk, in a line; its traceback is in errors/
    notes: tuple[str, ...] = ()  #: caveats of the victims


@fixed_settings()
def run(
    study: Study | str | Path = "quickstart",
    out: str | Path | None = None,
    *,
    batch: int | None = None,
    shard: str | None = None,
    command: Sequence[str] | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Run what is not yet done of a study and store it in `out` (default: runs/<name>).

    The study is one, the path of a TOML file, or the name of a shipped study.

    `batch` episodes share each compiled call (default: see `batch_size`). Results depend neither on the order of
    the chunks, nor on interruptions, nor on the number of devices; another batch size changes their last bits, so a
    folder keeps to one. `shard` "1/3" is the first of three parts of about equal work, for a machine to play; `merge`
    joins them. A chunk that fails twice is reported, its rows say why, and the next run plays it again, as it does a
    chunk whose file is damaged. `command` is kept in the manifest. `on_progress` is called from several threads. Raises
    InputError for a wrong study, an unusable folder or machine, a chunk's file that cannot be opened, or a full disk;
    what is finished is kept.
    """
    job = prepare(study, out, batch=batch, shard=shard)
    device = f"{len(job.devices)} x {job.devices[0].device_kind}"
    manifest = {
        "identity": job.identity,
        "study": asdict(job.study),
        "versions": job.identity["versions"],
        "chunks": [chunk.id for chunk in job.chunks],
        "notes": job.notes,
        **provenance(command, shard, device),
    }
    with Store(job.folder, manifest) as store:
        strays = store.strays([chunk.id for chunk in job.chunks])
        messages = [f"{path}: belongs to no chunk of this study, and is left alone" for path in strays]
        if not job.chunks[job.part]:
            messages.append(f"shard {shard} has nothing to play: the study has {len(job.chunks)} chunks")
        work = _Work(store, job, on_progress)
        work.run(messages)
        rows = sum(len(chunk.episodes) for chunk in job.chunks[job.part] if chunk.id not in work.failed)
        return Outcome(store.folder, rows, work.failed, job.notes)


class _Stopped(Exception):
    """Raised inside a device worker when the study is to end early."""


class _Work:
    """The chunks still to do, taken by one thread a device."""

    def __init__(self, store: Store, job: Job, report: Callable[[Progress], None]) -> None:
        self.failed: dict[str, str] = {}
        self._store, self._job, self._report = store, job, report
        self._damaged: list[str] = []
        self._todo: queue.SimpleQueue[Chunk] = queue.SimpleQueue()
        chunks = job.chunks[job.part]
        for chunk in chunks:
            try:
                if store.finished(chunk.id, len(chunk.episodes)):
                    continue
            except Damaged as error:
                self._damaged.append(f"{error}; it is made again")
            self._todo.put(chunk)
        self._total = len(chunks) * job.study.episode_steps
        self._done = self._total - self._todo.qsize() * job.study.episode_steps
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._fatal: list[BaseException] = []

    def run(self, messages: Sequence[str]) -> None:
        for message in (None, *messages, *self._damaged):
            self._report(Progress(self._done, self._total, message))
        device_workers = self._job.device_workers()
        # Daemons: a second Ctrl-C leaves at once, whatever a device worker is doing.
        over = [threading.Event() for _ in device_workers]
        for worker, end in zip(device_workers, over, strict=True):
            threading.Thread(target=self._drain, args=(worker, end), daemon=True).start()
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

    def _drain(self, worker: DeviceWorker, end: threading.Event) -> None:
        try:
            while not self._stop.is_set() and not self._todo.empty():
                self._play(worker, self._todo.get_nowait())
        except (_Stopped, queue.Empty):
            pass
        except BaseException as error:
            # Not a chunk's fault, a full disk for one: the others would fare no better.
            self._fatal.append(error)
            self._stop.set()
        finally:
            worker.close()
            end.set()

    def _play(self, worker: DeviceWorker, chunk: Chunk) -> None:
        for attempt in range(1, _TRIES + 1):
            before, started = 0, False

            def on_step(t: int) -> None:
                nonlocal before, started
                if self._stop.is_set():
                    raise _Stopped
                self._advance(t - before)
                before, started = t, True

            try:
                played = worker.play(chunk, self._job.records, on_step)
            except (_Stopped, InputError):  # wrong input, such as MUJOCO_GL, is wrong for every chunk
                raise
            except Exception as error:
                worker.close()
                if isinstance(error, WorkerError) and not started and attempt == _TRIES:
                    raise  # environments do not even start: the installation is at fault, not the chunk
                self._advance(-before, self._blame(chunk, error, last=attempt == _TRIES))
            else:
                for name, arrays in played.traces.items():
                    self._store.write_trace(name, arrays)
                self._store.write_rows(chunk.id, played.rows)
                self._advance(self._job.study.episode_steps - before)
                return
        self._advance(self._job.study.episode_steps)

    def _blame(self, chunk: Chunk, error: Exception, *, last: bool) -> str:
        line = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"[:300]
        summary = printable(line, "\N{REPLACEMENT CHARACTER}")
        if last:
            self.failed[chunk.id] = summary
            family = self._job.cards[chunk.episodes[0].victim].victim.agent
            rows = failed_rows(chunk, family, runtime.local_devices()[0].device_kind, summary)
            self._store.write_rows(chunk.id, rows, "".join(traceback.format_exception(error)))
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
