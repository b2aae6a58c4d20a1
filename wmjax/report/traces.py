"""Reads recorded episodes, and finds those worth showing: of each objective the attack that left the lowest return."""

import json
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmjax.core.errors import InputError
from wmjax.core.files import check_file, visible
from wmjax.study.schema import CELL

_ARRAYS = {
    "frames": (np.uint8, 4),
    "seen": (np.uint8, 4),
    "reward": (np.floating, 1),
    "attacked": (np.bool_, 1),
}
"""Array name to (kind of number, axes)."""

_BYTES = 1 << 30
"""Of a file, unpacked, at most: eighty times those of a whole episode."""


@dataclass(frozen=True)
class Trace:
    """A recorded episode of T agent steps."""

    meta: Mapping[str, Any]  #: the columns of its cell, and `return`
    frames: NDArray[np.uint8]  #: [T, H, W, 3] what the camera saw
    seen: NDArray[np.uint8]  #: [T, H, W, 3] what the agent saw
    reward: NDArray[np.floating]  #: [T]
    attacked: NDArray[np.bool_]  #: [T] which frames were attacked


def lowest_pairs(folder: Path, most: int) -> list[tuple[Trace, Trace]]:
    """Return for each objective a clean episode and the attack that left the lowest return, lowest first, `most` pairs.

    Both are of the same victim, task, seed and defense. Empty where `folder`/traces holds no such pair. Raises
    InputError, naming the file, where a trace is not one.
    """
    files = visible(folder / "traces", ".npz")
    metas = {file: read_meta(file) for file in files}
    key = lambda meta: tuple(meta[name] for name in ("victim", "task", "seed", "defense"))  # noqa: E731
    metas = {file: meta for file, meta in metas.items() if np.isfinite(meta["return"])}
    clean = {key(meta): file for file, meta in metas.items() if meta["objective"] == "clean"}
    lowest: dict[str, tuple[float, Path]] = {}
    for file, meta in metas.items():
        if meta["objective"] != "clean" and meta["eps"] > 0 and key(meta) in clean:
            found = (meta["return"], file)
            lowest[meta["objective"]] = min(found, lowest.get(meta["objective"], found))
    pairs = []
    for _, file in sorted(lowest.values())[:most]:
        pair = read_trace(clean[key(metas[file])]), read_trace(file)
        if pair[0].frames.shape[1:] != pair[1].frames.shape[1:]:
            raise InputError(f"{file}: frames of another size than those of its clean episode")
        pairs.append(pair)
    return pairs


def members(file: Path, names: Iterable[str]) -> list[NDArray[Any]]:
    """Return the named arrays of a trace's file, unchecked; raises InputError, naming it, where they cannot be read."""
    arrays = []
    try:
        check_file(file, _BYTES)
        with zipfile.ZipFile(file) as archive:
            size = sum(member.file_size for member in archive.infolist())
            if size > _BYTES:
                raise InputError(f"{file}: not a readable trace ({size} bytes, at most {_BYTES})")
            for name in names:
                with archive.open(f"{name}.npy") as member:
                    arrays.append(np.lib.format.read_array(member, allow_pickle=False))
    except InputError:
        raise
    except (
        zipfile.BadZipFile,
        zlib.error,
        KeyError,
        ValueError,
        EOFError,
        OSError,
        RuntimeError,
        MemoryError,
    ) as error:
        raise InputError(f"{file}: not a readable trace ({error})") from error
    return arrays


def read_meta(file: Path) -> Mapping[str, Any]:
    """Return the row of a recorded episode; raises InputError, naming the file, where it is not one."""
    text = str(members(file, ("meta",))[0])
    try:
        meta = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: 'meta' is not JSON ({error})") from error
    words = ("victim", "task", "objective", "optimizer", "mode", "region", "frames", "defense", "source")
    numbers = ("steps", "adaptive", "eps", "seed", "return")
    found = meta if isinstance(meta, dict) else {}
    wrong = [name for name in words if not isinstance(found.get(name), str)]
    wrong += [name for name in numbers if not _is_number(found.get(name), finite=name != "return")]
    if wrong:
        raise InputError(f"{file}: 'meta' must hold {', '.join(CELL)} and return; missing or wrong: {', '.join(wrong)}")
    return meta


def _is_number(value: object, *, finite: bool) -> bool:
    """Whether the value is a number that fits into a column; JSON knows NaN and integers of any length."""
    return isinstance(value, int | float) and (abs(value) < 2**63 or (isinstance(value, float) and not finite))


def read_trace(file: Path) -> Trace:
    """Return a recorded episode; raises InputError, naming the file, where it is not one."""
    arrays = dict(zip(_ARRAYS, members(file, _ARRAYS), strict=True))
    steps = len(arrays["reward"]) if arrays["reward"].ndim else 0
    for name, (kind, axes) in _ARRAYS.items():
        array = arrays[name]
        if not np.issubdtype(array.dtype, kind) or array.ndim != axes or len(array) != steps or not array.size:
            raise InputError(
                f"{file}: {name!r} must hold {kind.__name__} on {axes} axes, the first of them agent steps"
            )
    if not np.isfinite(arrays["reward"]).all():
        raise InputError(f"{file}: 'reward' must be finite")
    if arrays["frames"].shape != arrays["seen"].shape or arrays["frames"].shape[3] != 3:
        raise InputError(f"{file}: 'frames' and 'seen' must be images of one size with three channels")
    return Trace(meta=read_meta(file), **arrays)
