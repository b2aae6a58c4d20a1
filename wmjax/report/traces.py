"""Reads recorded episodes, and finds the one worth showing: the attack that left the lowest return."""

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
from wmjax.grid.rows import CELL

_ARRAYS = {
    "frames": (np.uint8, 4),
    "seen": (np.uint8, 4),
    "reward": (np.floating, 1),
    "attacked": (np.bool_, 1),
}
"""Array name to (kind of number, axes)."""


@dataclass(frozen=True)
class Trace:
    """A recorded episode of T agent steps."""

    meta: Mapping[str, Any]  #: the columns of its cell, and `return`
    frames: NDArray[np.uint8]  #: [T, H, W, 3] what the camera saw
    seen: NDArray[np.uint8]  #: [T, H, W, 3] what the agent saw
    reward: NDArray[np.floating]  #: [T]
    attacked: NDArray[np.bool_]  #: [T] which frames were attacked


def lowest_pair(folder: Path) -> tuple[Trace, Trace] | None:
    """Return a clean episode and the attack on the same victim, task, seed and defense that left the lowest return.

    None where `folder`/traces holds no such pair. Raises InputError, naming the file, where a trace is not one.
    """
    files = sorted(path for path in (folder / "traces").glob("*.npz") if not path.name.startswith("."))
    metas = {file: _meta(file) for file in files}
    key = lambda meta: tuple(meta[name] for name in ("victim", "task", "seed", "defense"))  # noqa: E731
    metas = {file: meta for file, meta in metas.items() if np.isfinite(meta["return"])}
    clean = {key(meta): file for file, meta in metas.items() if meta["objective"] == "clean"}
    attacked = [
        (meta["return"], file)
        for file, meta in metas.items()
        if meta["objective"] != "clean" and meta["eps"] > 0 and key(meta) in clean
    ]
    if not attacked:
        return None
    file = min(attacked)[1]
    pair = _trace(clean[key(metas[file])]), _trace(file)
    if pair[0].frames.shape[1:] != pair[1].frames.shape[1:]:
        raise InputError(f"{file}: frames of another size than those of its clean episode")
    return pair


def _members(file: Path, names: Iterable[str]) -> list[NDArray[Any]]:
    arrays = []
    try:
        with zipfile.ZipFile(file) as archive:
            for name in names:
                with archive.open(f"{name}.npy") as member:
                    arrays.append(np.lib.format.read_array(member, allow_pickle=False))
    except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError, OSError, RuntimeError) as error:
        raise InputError(f"{file}: not a readable trace ({error})") from error
    return arrays


def _meta(file: Path) -> Mapping[str, Any]:
    text = str(_members(file, ("meta",))[0])
    try:
        meta = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: 'meta' is not JSON ({error})") from error
    words = ("victim", "task", "objective", "optimizer", "mode", "region", "frames", "defense")
    numbers = ("steps", "adaptive", "eps", "seed", "return")
    kinds = dict.fromkeys(words, str) | dict.fromkeys(numbers, int | float)
    wrong = [name for name, kind in kinds.items() if not isinstance(meta, dict) or not isinstance(meta.get(name), kind)]
    if wrong:
        raise InputError(f"{file}: 'meta' must hold {', '.join(CELL)} and return; missing or wrong: {', '.join(wrong)}")
    return meta


def _trace(file: Path) -> Trace:
    arrays = dict(zip(_ARRAYS, _members(file, _ARRAYS), strict=True))
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
    return Trace(meta=_meta(file), **arrays)
