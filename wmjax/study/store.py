"""Where a study's results live: Parquet shards that appear whole or not at all, a manifest, and a lock."""

import io
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wmjax.core.errors import Damaged, InputError
from wmjax.core.files import lock, make_folder, read_file, remove_parts, write_atomically
from wmjax.study.provenance import PROVENANCE
from wmjax.study.schema import SCHEMA, SCHEMA_VERSION

_PARTS = ("rows", "traces", "errors")
SHARD_BYTES = 1 << 28
"""Of a chunk's file at most, and of its columns."""

_SHARD_ROWS, _MANIFEST_BYTES = 1 << 16, 1 << 26
_KINDS: dict[str, Any] = {
    "identity": dict,
    "study": dict,
    "versions": dict,
    "chunks": list,
    "notes": list,
    "started": str,
    "command": list | None,
    "shard": str | None,
    "git": dict | None,
    "python": str,
    "platform": str,
    "device": str,
    "earlier": list,
}
"""What a manifest's values are, where it has them."""


class Store:
    """A study's folder, open for writing by one process at a time.

    rows/<chunk>.parquet holds the rows of a chunk, traces/ recorded episodes, errors/ the tracebacks of chunks that
    failed, manifest.json what was asked for, with which versions, and where the rows come from: its `earlier` lists the
    provenance of runs before this one.
    """

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        """Open `folder`, making it if need be, for the study in `manifest["identity"]`.

        What a killed writer left half-written is removed. Raises InputError where the folder holds another study, is in
        use, or cannot be written.
        """
        self.folder = folder
        for name in _PARTS:
            make_folder(folder / name)
        self._lock = lock(folder)
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
        before = check_identity(self.folder, manifest["identity"])
        for part in (".", *_PARTS):
            remove_parts(self.folder / part)
        runs = [*manifest.get("earlier", ()), *([] if before is None else earlier(before))]
        others = [run for run in runs if _but_started(run) != _but_started(manifest)]
        unlike = [run for i, run in enumerate(others) if run not in others[:i]]
        write_atomically(self.folder / "manifest.json", json.dumps({**manifest, "earlier": unlike}, indent=2).encode())

    def finished(self, chunk: str, rows: int) -> bool:
        """Return whether the chunk's episodes were all played, as the function of this name."""
        return finished(self.folder, chunk, rows)

    def strays(self, chunks: Collection[str]) -> list[Path]:
        """Return what lies among the shards but belongs to none of `chunks`."""
        ours = {f"{chunk}.parquet" for chunk in chunks}
        return sorted(path for path in (self.folder / "rows").iterdir() if path.name not in ours)

    def write_rows(self, chunk: str, rows: Sequence[Mapping[str, Any]], traceback: str | None = None) -> None:
        """Write a chunk's rows, and the traceback of one that failed; of one that did not, forget that it ever did."""
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(list(rows), schema=SCHEMA), sink, write_page_checksum=True)
        write_atomically(self.folder / "rows" / f"{chunk}.parquet", sink.getvalue())
        if traceback is None:
            self.forget_error(chunk)
        else:  # paths may hold any bytes
            error = self.folder / "errors" / f"{chunk}.txt"
            write_atomically(error, traceback.encode(errors="backslashreplace"))

    def write_trace(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Write one episode frame by frame, compressed."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        write_atomically(self.folder / "traces" / f"{name}.npz", buffer.getvalue())

    def take(self, path: Path, most: int) -> None:
        """Take over a file of at most `most` bytes from another study's folder.

        Raises InputError where it cannot be read, or is a link: what that leads to is not the study's.
        """
        try:
            if path.is_symlink():
                raise InputError(f"{path}: is a link")
            content = read_file(path, most)
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None
        write_atomically(self.folder / path.parent.name / path.name, content)

    def forget_error(self, chunk: str) -> None:
        """Forget that a chunk ever failed."""
        (self.folder / "errors" / f"{chunk}.txt").unlink(missing_ok=True)


def check_identity(folder: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the folder's manifest, None where there is none; raises InputError where it is that of another study."""
    before = read_manifest(folder)
    if before is not None and before.get("identity") != identity:
        differs = difference(identity, before.get("identity"))
        raise InputError(f"{folder}: holds the results of another study; choose another folder ({differs})")
    return before


def finished(folder: Path, chunk: str, rows: int) -> bool:
    """Return whether the chunk's episodes were all played; not so where it failed, or was never tried.

    Raises Damaged, saying why, where its shard is to be made again, and InputError where it cannot be opened: making
    it again would not help.
    """
    path = folder / "rows" / f"{chunk}.parquet"
    try:
        content = read_file(path, SHARD_BYTES)
    except FileNotFoundError:
        return False
    shard = _shard(path, content)
    if len(shard) != rows:
        raise Damaged(f"{path}: has {len(shard)} rows, its chunk {rows}")
    return not failed(shard)


def read_shard(path: Path) -> pa.Table:
    """Return the rows of a chunk's file.

    Raises InputError, naming it, where it is missing or cannot be opened, and Damaged unless it is whole and of this
    schema.
    """
    try:
        return _shard(path, read_file(path, SHARD_BYTES))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None


def _shard(path: Path, content: bytes) -> pa.Table:
    try:
        with pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True) as parquet:
            groups = (parquet.metadata.row_group(i).total_byte_size for i in range(parquet.metadata.num_row_groups))
            if parquet.metadata.num_rows > _SHARD_ROWS or sum(groups) > SHARD_BYTES:
                raise Damaged(f"{path}: not the rows of one chunk: {parquet.metadata.num_rows}")
            shard = parquet.read()
        shard.validate(full=True)
    except Damaged:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:  # ValueError: damaged text in the file's schema
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise Damaged(f"{path}: not a readable Parquet file ({why})") from error
    version = (shard.schema.metadata or {}).get(b"wmjax_schema", b"").decode("ascii", "replace")
    if version and version != str(SCHEMA_VERSION):
        raise Damaged(f"{path}: rows of schema version {version}; this wmjax reads version {SCHEMA_VERSION}")
    if not version or not shard.schema.equals(SCHEMA):
        differing = set(SCHEMA).symmetric_difference(shard.schema)
        names = ", ".join(sorted({repr(field.name) for field in differing})) or "their order"
        raise Damaged(f"{path}: not a table of wmjax rows (differs in {names})")
    return shard.replace_schema_metadata(SCHEMA.metadata)


def failed(shard: pa.Table) -> bool:
    """Return whether an episode of the shard could not be played."""
    return any(shard["error"].to_pylist())


def difference(ours: Any, theirs: Any, path: str = "") -> str:
    """Return where two unequal identities first differ, and how; values are cut to 80 characters."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = sorted(ours.keys() | theirs.keys())
        key = next(key for key in keys if key not in ours or key not in theirs or ours[key] != theirs[key])
        return difference(ours.get(key), theirs.get(key), f"{path}.{key}" if path else key)
    return f"{path or 'identity'} is {ours!r:.80}, the folder has {theirs!r:.80}"


def earlier(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the provenance of every run that a manifest tells of, its own last."""
    return [*manifest.get("earlier", ()), {key: manifest.get(key) for key in PROVENANCE}]


def _but_started(run: Any) -> dict[str, Any]:
    return {key: run.get(key) for key in PROVENANCE if key != "started"} if isinstance(run, Mapping) else {}


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a results folder, None where there is none; raises InputError where it is unreadable."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(read_file(path, _MANIFEST_BYTES))
    except FileNotFoundError:
        return None
    except InputError:
        raise
    except (ValueError, RecursionError):
        raise InputError(f"{path}: not a manifest of wmjax") from None
    if not isinstance(manifest, dict):
        raise InputError(f"{path}: not a manifest of wmjax")
    for key, kind in _KINDS.items():
        if key in manifest and not isinstance(manifest[key], kind):
            raise InputError(f"{path}: {key!r} is not what a study writes there")
    return manifest
