"""Reads recorded episodes, and finds the one worth showing: the attack that left the lowest return."""

import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmjax.core.errors import InputError
from wmjax.grid.rows import CELL

_ARRAYS = {"frames": ("uint8", 4), "seen": ("uint8", 4), "reward": ("float32", 1), "attacked": ("bool", 1)}


@dataclass(frozen=True)
class Trace:
    """A recorded episode of T agent steps."""

    meta: Mapping[str, Any]  #: the columns of its cell, and `return`
    frames: NDArray[np.uint8]  #: [T, H, W, 3] what the camera saw
    seen: NDArray[np.uint8]  #: [T, H, W, 3] what the agent saw
    reward: NDArray[np.float32]  #: [T]
    attacked: NDArray[np.bool_]  #: [T] which frames were attacked


def lowest_pair(folder: Path) -> tuple[Trace, Trace] | None:
    """Return a clean episode and the attack on the same victim, task and seed that left the lowest return of all.

    None where `folder`/traces holds no such pair. Raises InputError, naming the file, where a trace is not one.
    """
    files = sorted(path for path in (folder / "traces").glob("*.npz") if not path.name.startswith("."))
    metas = {file: _meta(file) for file in files}
    key = lambda meta: (meta["victim"], meta["task"], meta["seed"])  # noqa: E731
    clean = {key(meta): file for file, meta in metas.items() if meta["objective"] == "clean"}
    attacked = [
        (meta["return"], file)
        for file, meta in metas.items()
        if meta["objective"] != "clean" and key(meta) in clean and np.isfinite(meta["return"])
    ]
    if not attacked:
        return None
    file = min(attacked)[1]
    pair = _trace(clean[key(metas[file])]), _trace(file)
    if pair[0].frames.shape[1:] != pair[1].frames.shape[1:]:
        raise InputError(f"{file}: frames of another size than those of its clean episode")
    return pair


def _members(file: Path, names: tuple[str, ...]) -> list[NDArray[Any]]:
    try:
        with zipfile.ZipFile(file) as archive:
            return [np.lib.format.read_array(archive.open(f"{name}.npy"), allow_pickle=False) for name in names]
    except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError, OSError, RuntimeError) as error:
        raise InputError(f"{file}: not a readable trace ({error})") from error


def _meta(file: Path) -> Mapping[str, Any]:
    text = str(_members(file, ("meta",))[0])
    try:
        meta = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: 'meta' is not JSON ({error})") from error
    words, numbers = ("victim", "task", "objective", "optimizer", "mode"), ("steps", "eps", "seed", "return")
    kinds = dict.fromkeys(words, str) | dict.fromkeys(numbers, int | float)
    wrong = [name for name, kind in kinds.items() if not isinstance(meta, dict) or not isinstance(meta.get(name), kind)]
    if wrong:
        raise InputError(f"{file}: 'meta' must hold {', '.join(CELL)} and return; missing or wrong: {', '.join(wrong)}")
    return meta


def _trace(file: Path) -> Trace:
    arrays = dict(zip(_ARRAYS, _members(file, tuple(_ARRAYS)), strict=True))
    steps = len(arrays["reward"]) if arrays["reward"].ndim else 0
    for name, (dtype, axes) in _ARRAYS.items():
        array = arrays[name]
        if array.dtype != dtype or array.ndim != axes or len(array) != steps or not array.size:
            raise InputError(f"{file}: {name!r} must be {dtype} with {axes} axes, the first as long as the episode")
    if arrays["frames"].shape != arrays["seen"].shape or arrays["frames"].shape[3] != 3:
        raise InputError(f"{file}: 'frames' and 'seen' must be images of one size with three channels")
    return Trace(meta=_meta(file), **arrays)
