"""Where a study's results live: Parquet shards that appear whole or not at all, a manifest, and a lock."""

import fcntl
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wmjax.core.errors import InputError
from wmjax.core.files import write_atomically
from wmjax.grid.rows import SCHEMA


class Store:
    """A study's folder, open for writing by one process at a time.

    rows/<chunk>.parquet holds the rows of a finished chunk, traces/ recorded episodes, errors/ the tracebacks of chunks
    that failed, manifest.json what was asked for and with which versions.
    """

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        """Open `folder`, making it if need be, for the study in `manifest["identity"]`.

        Raises InputError where it holds another study, is in use, or cannot be written.
        """
        self.folder = folder
        try:
            for name in ("rows", "traces", "errors"):
                (folder / name).mkdir(parents=True, exist_ok=True)
            self._lock = (folder / ".lock").open("w")
        except OSError as error:
            raise InputError(f"{folder}: cannot be written ({error.strerror})") from None
        try:
            self._claim(manifest)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder."""
        self._lock.close()

    def _claim(self, manifest: Mapping[str, Any]) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{self.folder}: another process is writing to it") from None
        except OSError as error:
            raise InputError(f"{self.folder}: cannot be locked ({error.strerror})") from None
        before = read_manifest(self.folder)
        if before is not None and before.get("identity") != manifest["identity"]:
            differs = _difference(manifest["identity"], before.get("identity"))
            raise InputError(f"{self.folder}: holds the results of another study; choose another folder ({differs})")
        write_atomically(self.folder / "manifest.json", json.dumps(manifest, indent=2).encode())

    def finished(self, chunk: str, rows: int) -> bool:
        """Return whether the chunk's shard is there, whole and of this schema; else it will be written again."""
        try:
            table = pq.read_table(self.folder / "rows" / f"{chunk}.parquet", page_checksum_verification=True)
        except (OSError, ValueError, pa.ArrowException):  # ValueError: damaged text in the file's schema
            return False
        return table.schema.equals(SCHEMA) and table.num_rows == rows

    def write_rows(self, chunk: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a chunk's rows, and forget that it ever failed."""
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(list(rows), schema=SCHEMA), sink, write_page_checksum=True)
        write_atomically(self.folder / "rows" / f"{chunk}.parquet", sink.getvalue())
        (self.folder / "errors" / f"{chunk}.txt").unlink(missing_ok=True)

    def write_trace(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Write one episode frame by frame, compressed."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        write_atomically(self.folder / "traces" / f"{name}.npz", buffer.getvalue())

    def write_error(self, chunk: str, text: str) -> None:
        """Keep the traceback of a chunk that failed."""
        write_atomically(self.folder / "errors" / f"{chunk}.txt", text.encode())


def _difference(ours: Any, theirs: Any, path: str = "") -> str:
    """Return where two unequal identities first differ, and how; values are cut to 80 characters."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = sorted(ours.keys() | theirs.keys())
        key = next(key for key in keys if key not in ours or key not in theirs or ours[key] != theirs[key])
        return _difference(ours.get(key), theirs.get(key), f"{path}.{key}" if path else key)
    return f"{path or 'identity'} is {ours!r:.80}, the folder has {theirs!r:.80}"


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a results folder, None where there is none; raises InputError where it is unreadable."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        raise InputError(f"{path}: not a manifest of wmjax") from None
    if not isinstance(manifest, dict):
        raise InputError(f"{path}: not a manifest of wmjax")
    return manifest
