"""Reads what a study left in its folder: the rows of all Parquet shards, and the manifest."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wmjax.core.errors import InputError
from wmjax.core.files import visible
from wmjax.study import store
from wmjax.study.schema import CELL, SCHEMA

Rows = Mapping[str, NDArray[Any]]
"""Columns of equal length by name: object arrays of str, or numeric arrays; ordered by cell."""


_LARGEST = 1e12
"""Beyond any return; the sums and ratios of what is smaller are numbers."""


@dataclass(frozen=True)
class Manifest:
    """How the rows came to be; every part may be empty."""

    study: Mapping[str, Any] = field(default_factory=dict)  #: the resolved study: its axes by name
    versions: Mapping[str, str] = field(default_factory=dict)  #: package name to version
    device: str = ""  #: kind of device
    notes: tuple[str, ...] = ()  #: sentences that a reader of the results must know
    started: str = ""  #: when the last run into the folder began, ISO 8601
    command: tuple[str, ...] | None = None  #: its command line; None where it was called from Python
    batch: int | None = None  #: episodes that shared a call; results depend on it in their last bits
    shard: str | None = None  #: "i/n": it was to play this part of the study
    git: Mapping[str, Any] | None = None  #: the checkout of wmjax: its "commit", and whether it is "dirty"
    python: str = ""  #: version
    platform: str = ""  #: operating system and processor
    earlier: tuple[Mapping[str, Any], ...] = ()  #: the same of runs before it, and of merged ones


def read_rows(folder: Path) -> Rows:
    """Return the rows of all `folder`/rows/*.parquet, ordered by cell whatever the order of files and rows.

    Where there is a manifest that lists the study's chunks, other files have no part in it.

    Raises InputError, naming the file, where the folder, its rows or a readable table of this version is missing,
    where a number is impossible, or where one cell has two rows.
    """
    if not os.path.isdir(folder):  # of a name that is too long, `Path.is_dir` raises
        raise InputError(f"{folder}: no such folder; give the folder that a study was written to")
    files = visible(folder / "rows", ".parquet")
    known = (store.read_manifest(folder) or {}).get("chunks")
    if known is not None:  # what else lies there is not the study's
        names = {f"{chunk}.parquet" for chunk in known}
        files = [file for file in files if file.name in names]
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
        # numpy takes a NUL at the end of a text for no part of it when it compares.
        return np.array([text.replace("\0", "\N{REPLACEMENT CHARACTER}") for text in column.to_pylist()], dtype=object)
    values = column.to_numpy()
    # Of the diagnostics: what is infinite has no part in a mean.
    return np.where(np.isfinite(values), values, np.nan) if pa.types.is_float32(column.type) else values


def _read_shard(file: Path) -> pa.Table:
    shard = store.read_shard(file)
    eps, largest, returns = (shard[name].to_numpy() for name in ("eps", "max_return", "return"))
    if not np.all((eps >= 0) & (eps <= 1)):
        raise InputError(f"{file}: column 'eps' must hold numbers in [0, 1]")
    if not np.all((largest > 1 / _LARGEST) & (largest < _LARGEST)):
        raise InputError(f"{file}: column 'max_return' must hold numbers from {1 / _LARGEST:g} to {_LARGEST:g}")
    if np.any(np.isfinite(returns) & (np.abs(returns) > _LARGEST)):
        raise InputError(f"{file}: column 'return' must hold numbers of at most {_LARGEST:g}")
    return shard


def read_manifest(folder: Path) -> Manifest:
    """Return what `folder`/manifest.json says, empty where there is none; InputError where it is not a manifest."""
    content = store.read_manifest(folder) or {}
    content = content | {"batch": content.get("identity", {}).get("batch")}
    manifest = Manifest(**{key: content[key] for key in vars(Manifest()) if key in content})
    words = ("victims", "objectives", "optimizers", "modes", "regions", "frames", "defenses", "sources")
    numbers = ("budgets", "seeds", "adaptive")
    fits = {
        "study": all(_is_list(manifest.study.get(axis, []), str) for axis in words)
        and all(_is_list(manifest.study.get(axis, []), int | float) for axis in numbers)
        and all(0 <= eps <= 1 for eps in manifest.study.get("budgets", []))
        and all(isinstance(manifest.study.get(count, 0), int) for count in ("steps", "draws")),
        "versions": all(isinstance(version, str) for version in manifest.versions.values()),
        "notes": _is_list(manifest.notes, str),
        "batch": manifest.batch is None or type(manifest.batch) is int,
        "command": manifest.command is None or _is_list(manifest.command, str),
        "git": manifest.git is None or _is_git(manifest.git),
        "earlier": _is_list(manifest.earlier, dict),
    }
    for key, good in fits.items():
        if not good:
            raise InputError(f"{folder / 'manifest.json'}: {key!r} is not what a study writes there")
    return manifest


def _is_list(value: object, kind: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, kind) for item in value)


def _is_git(value: Mapping[str, Any]) -> bool:
    return isinstance(value.get("commit"), str) and isinstance(value.get("dirty"), bool)
