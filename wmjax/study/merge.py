"""Joins what several machines made of one study, each with `wmjax run STUDY --shard i/n`, in one folder."""

import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from wmjax.core.errors import InputError
from wmjax.core.files import visible
from wmjax.core.text import as_path
from wmjax.study.provenance import provenance
from wmjax.study.schema import SCHEMA_VERSION, TIMING
from wmjax.study.store import (
    SHARD_BYTES,
    Store,
    check_identity,
    difference,
    earlier,
    failed,
    read_manifest,
    read_shard,
)

_TRACE_BYTES, _ERROR_BYTES = 1 << 30, 1 << 20


@dataclass(frozen=True)
class Merged:
    """What is in the folder now, in chunks of episodes."""

    folder: Path
    played: int
    failed: int  #: no machine could play them; their rows say why
    missing: int  #: no machine has tried them
    left_out: tuple[str, ...] = ()  #: files that were not taken over, each with the reason


def merge(folders: Sequence[str | Path], out: str | Path, *, command: Sequence[str] | None = None) -> Merged:
    """Join the results of one study that lie in `folders`, and in `out` if it exists, in `out`.

    `out` is then a study's folder like any other: `run` goes on with what is missing. A chunk that several folders hold
    is taken once; where one of them could play it, the failures of others are forgotten. A file that is damaged, or is
    no chunk's, is left out and named. `command` is kept in the manifest. Raises InputError where a folder holds no
    study or another one, or where two hold different rows for one chunk; nothing is copied then.
    """
    parts, target = list({os.path.realpath(path): path for path in map(as_path, folders)}.values()), as_path(out)
    if not parts:
        raise InputError("no folders to merge; give those that `wmjax run` wrote to")
    manifests = [_manifest(part) for part in parts]
    for part, manifest in zip(parts, manifests, strict=True):
        if manifest["identity"] != manifests[0]["identity"]:
            differs = difference(manifests[0]["identity"], manifest["identity"])
            raise InputError(f"{part}: holds another study than {parts[0]} ({differs})")
    whole = _joined(manifests, command)
    check_identity(target, whole["identity"])
    others = [part for part in parts if os.path.realpath(part) != os.path.realpath(target)]
    chosen, unplayed, left_out = _choose([target, *others], {f"{chunk}.parquet" for chunk in whole["chunks"]})
    with Store(target, whole) as store:
        for path in chosen.values():
            if path.parents[1] == target:
                continue
            store.take(path, SHARD_BYTES)
            store.forget_error(path.stem)
            if path.name in unplayed:
                _try(left_out, store.take, path.parents[1] / "errors" / f"{path.stem}.txt", _ERROR_BYTES)
        for trace in (trace for part in others for trace in visible(part / "traces", ".npz")):
            if not (target / "traces" / trace.name).exists():
                _try(left_out, _take_trace, store, trace)
        played, missing = len(chosen) - len(unplayed), len(whole["chunks"]) - len(chosen)
        return Merged(target, played, len(unplayed), missing, tuple(left_out))


def _try(left_out: list[str], take: Callable[..., None], *arguments: Any) -> None:
    """Take a file over, or note why it is left out."""
    try:
        take(*arguments)
    except InputError as error:
        left_out.append(str(error))


def _take_trace(store: Store, path: Path) -> None:
    if path.is_file() and not zipfile.is_zipfile(path):
        raise InputError(f"{path}: not a recorded episode")
    store.take(path, _TRACE_BYTES)


def _manifest(folder: Path) -> dict[str, Any]:
    manifest = read_manifest(folder)
    if manifest is None:
        raise InputError(f"{folder}: holds no study; give folders that `wmjax run` wrote to")
    schema = manifest.get("identity", {}).get("schema", SCHEMA_VERSION)
    if schema != SCHEMA_VERSION:
        raise InputError(f"{folder}: rows of schema version {schema!r:.80}; this wmjax reads version {SCHEMA_VERSION}")
    for key in ("identity", "study", "versions", "chunks", "device", "notes"):
        if key not in manifest:
            raise InputError(f"{folder / 'manifest.json'}: {key!r} is missing")
    for key in ("chunks", "notes"):
        if not all(isinstance(item, str) for item in manifest[key]):
            raise InputError(f"{folder / 'manifest.json'}: {key!r} is not what a study writes there")
    return manifest


def _joined(manifests: Sequence[Mapping[str, Any]], command: Sequence[str] | None) -> dict[str, Any]:
    """Return the manifest of the whole; it is of one commit where all its parts are."""
    first = manifests[0]
    notes = [note for manifest in manifests for note in manifest["notes"]]
    same = all(manifest.get("git") == first.get("git") for manifest in manifests)
    return {
        **{key: first[key] for key in ("identity", "study", "versions", "chunks")},
        "notes": [note for i, note in enumerate(notes) if note not in notes[:i]],
        **provenance(command, None, ", ".join(dict.fromkeys(manifest["device"] for manifest in manifests))),
        "git": first.get("git") if same else None,
        "earlier": [run for manifest in manifests for run in earlier(manifest)],
    }


def _choose(folders: Sequence[Path], known: set[str]) -> tuple[dict[str, Path], set[str], list[str]]:
    """Return the file to take for each of the `known`, by its name, and the names of those whose chunk failed.

    The last is what is wrong with files that are not taken.
    """
    chosen: dict[str, Path] = {}
    unplayed: set[str] = set()
    left_out = []
    for path in (path for folder in folders for path in visible(folder / "rows")):
        if path.name not in known:
            left_out.append(f"{path}: no chunk of the study")
            continue
        try:
            shard = read_shard(path)
        except InputError as error:
            left_out.append(str(error))
            continue
        other = chosen.setdefault(path.name, path)
        if failed(shard):
            unplayed |= {path.name} if other == path else set()
        elif path.name in unplayed:
            chosen[path.name] = path
            unplayed.remove(path.name)
        elif other != path and _outcome(read_shard(other)) != _outcome(shard):
            raise InputError(f"{path}: holds other rows than {other}; one of the two machines computes wrongly")
    return chosen, unplayed, left_out


def _outcome(shard: pa.Table) -> str:
    """Return the rows as text, without what differs between two runs; NaN is equal to NaN there, and -0 is not 0."""
    return repr(shard.drop_columns(list(TIMING)).to_pylist())
