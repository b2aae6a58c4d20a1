"""Reads what a study left in its folder: the rows of all Parquet shards, and the manifest."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from wmjax.core.errors import InputError
from wmjax.grid import store
from wmjax.grid.rows import CELL, SCHEMA, SCHEMA_VERSION

Rows = Mapping[str, NDArray[Any]]
"""Columns of equal length by name: object arrays of str, or numeric arrays; ordered by cell."""


@dataclass(frozen=True)
class Manifest:
    """How the rows came to be; every part may be empty."""

    study: Mapping[str, Any] = field(default_factory=dict)  #: the resolved study: its axes by name
    versions: Mapping[str, str] = field(default_factory=dict)  #: package name to version
    device: str = ""  #: kind of device
    notes: tuple[str, ...] = ()  #: sentences that a reader of the results must know


def read_rows(folder: Path) -> Rows:
    """Return the rows of all `folder`/rows/*.parquet, ordered by cell whatever the order of files and rows.

    Raises InputError, naming the file, where the folder, its rows or a readable table of this version is missing,
    where a number is impossible, or where one cell has two rows.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give the folder that a study was written to")
    files = sorted(path for path in (folder / "rows").glob("*.parquet") if not path.name.startswith("."))
    tables = [_read_shard(file) for file in files]
    if not sum(map(len, tables)):
        raise InputError(f"{folder}: no rows in {folder / 'rows'}; run a study into this folder first")
    origin = np.repeat(np.arange(len(files)), [len(shard) for shard in tables])
    merged = pa.concat_tables(tables).append_column("file", pa.array(origin))
    merged = merged.sort_by([(name, "ascending") for name in CELL])
    rows = {name: _to_numpy(merged[name]) for name in merged.column_names}
    same = np.all([rows[name][1:] == rows[name][:-1] for name in CELL], axis=0)
    for index in np.flatnonzero(same)[:1]:
        cell = {name: rows[name][index : index + 1].tolist()[0] for name in CELL}
        one, two = (files[rows["file"][i]] for i in sorted((index, index + 1), key=lambda i: rows["file"][i]))
        raise InputError(f"{two}: holds an episode that {one} holds too: {cell}")
    return {name: rows[name] for name in SCHEMA.names}


def _to_numpy(column: pa.ChunkedArray) -> NDArray[Any]:
    if pa.types.is_string(column.type):
        return np.array(column.to_pylist(), dtype=object)
    return column.to_numpy()


def _read_shard(file: Path) -> pa.Table:
    try:
        with pq.ParquetFile(file) as parquet:
            shard = parquet.read()
        shard.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: not a readable Parquet file ({str(error).splitlines()[0]})") from error
    version = (shard.schema.metadata or {}).get(b"wmjax_schema", b"").decode("ascii", "replace")
    if version and version != str(SCHEMA_VERSION):
        raise InputError(f"{file}: rows of schema version {version}; this wmjax reads version {SCHEMA_VERSION}")
    if not version or not shard.schema.equals(SCHEMA):
        differing = set(SCHEMA).symmetric_difference(shard.schema)
        names = ", ".join(sorted({repr(field.name) for field in differing})) or "their order"
        raise InputError(f"{file}: not a table of wmjax rows (differs in {names})")
    eps, largest = shard["eps"].to_numpy(), shard["max_return"].to_numpy()
    if not np.all((eps >= 0) & (eps <= 1)):
        raise InputError(f"{file}: column 'eps' must hold numbers in [0, 1]")
    if not np.all(np.isfinite(largest) & (largest > 0)):
        raise InputError(f"{file}: column 'max_return' must hold finite numbers above 0")
    return shard.replace_schema_metadata(SCHEMA.metadata)


def read_manifest(folder: Path) -> Manifest:
    """Return what `folder`/manifest.json says, empty where there is none; InputError where it is not a manifest."""
    content = store.read_manifest(folder) or {}
    manifest = Manifest(**{key: content[key] for key in vars(Manifest()) if key in content})
    words = ("victims", "objectives", "optimizers", "modes", "regions", "frames", "defenses")
    numbers = ("budgets", "seeds", "adaptive")
    fits = {
        "study": isinstance(manifest.study, dict)
        and all(_is_list(manifest.study.get(axis, []), str) for axis in words)
        and all(_is_list(manifest.study.get(axis, []), int | float) for axis in numbers)
        and all(0 <= eps <= 1 for eps in manifest.study.get("budgets", []))
        and all(isinstance(manifest.study.get(count, 0), int) for count in ("steps", "draws")),
        "versions": isinstance(manifest.versions, dict),
        "device": isinstance(manifest.device, str),
        "notes": _is_list(manifest.notes, str),
    }
    for key, good in fits.items():
        if not good:
            raise InputError(f"{folder / 'manifest.json'}: {key!r} is not what a study writes there")
    return manifest


def _is_list(value: object, kind: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, kind) for item in value)
