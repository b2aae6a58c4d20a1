"""What is logged, for TensorBoard."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import scalar

from wmjax.core.errors import InputError
from wmjax.core.files import make_folder


class Curves:
    """An event folder a seed: DIR/seed_0 and so on. Points after `first` that an earlier run wrote are forgotten.

    Raises InputError where the disk is full or the folders cannot be written. The package's own SummaryWriter writes in
    a thread: where that fails it dies, and whoever adds the next points waits for ever.
    """

    def __init__(self, folder: Path, seeds: Sequence[int], first: int) -> None:
        """Open the folders for points from environment step `first` on."""
        self._folder, self._open = folder, ExitStack()
        make_folder(folder)
        with self._writing():
            self._files = [self._open.enter_context(closing(_opened(folder / f"seed_{seed}"))) for seed in seeds]
            begin = [Event(file_version="brain.Event:2")]
            if first:
                begin.append(Event(step=first, session_log=SessionLog(status=SessionLog.START)))
            for file in self._files:
                _write(file, begin)

    def add(self, row: Mapping[str, Any]) -> None:
        """Write the numbers of a row of the log, at its environment step."""
        lists = {name: values for name, values in row.items() if isinstance(values, list)}
        with self._writing():
            for i, file in enumerate(self._files):
                points = [scalar(name, values[i]) for name, values in lists.items() if values[i] is not None]
                _write(file, [Event(wall_time=time.time(), step=row["steps"], summary=point) for point in points])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._writing():
            self._open.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(f"{self._folder}: cannot be written ({error.strerror})") from None


def _opened(folder: Path) -> RecordWriter:
    make_folder(folder)
    return RecordWriter(str(folder.resolve() / f"events.out.tfevents.{time.time():.6f}"))


def _write(file: RecordWriter, events: Sequence[Event]) -> None:
    for event in events:
        file.write(event.SerializeToString())
    file.flush()
