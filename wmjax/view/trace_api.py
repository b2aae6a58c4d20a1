"""Recorded episodes for the browser: which there are, their frames as one picture, and their numbers frame by frame."""

import io
import math
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from wmjax.core.errors import InputError
from wmjax.core.files import visible
from wmjax.report.traces import Trace, members, read_meta, read_trace
from wmjax.study.schema import CELL, SCHEMA

DIAGNOSTICS = {
    field.name: (field.metadata or {}).get(b"doc", b"").decode()
    for field in SCHEMA
    if str(field.type) == "float" and field.name != "wall_s"
}
"""What is measured in attacked frames, and what it is: columns of rows, and arrays [T] of recorded episodes."""

_PIXELS = 1 << 26
"""Of a picture, at most: thirty times those of a whole episode, and what any browser draws."""


def recorded(folder: Path) -> tuple[dict[tuple, Path], list[str]]:
    """Return the files of `folder`/traces by their episode, the columns CELL, and of the others why, in a sentence."""
    files: dict[tuple, Path] = {}
    bad = []
    for file in visible(folder / "traces", ".npz"):
        try:
            meta = read_meta(file)
            files[tuple(meta[name] for name in CELL)] = file
        except InputError as error:
            bad.append(f"A recorded episode is left out: {error}")
        except (KeyError, TypeError):  # a column that is missing, or a list
            bad.append(f"A recorded episode is left out: {file}: 'meta' does not name one")
    return files, bad


def numbers(file: Path) -> dict[str, Any]:
    """Return T, the pictures' layout, and every number by frame, None where it is not one or nothing was attacked.

    Raises InputError where the file is not a trace.
    """
    trace = _read(file)
    steps, height, width = trace.frames.shape[:3]
    nothing = ~trace.attacked
    return {
        "steps": steps,
        "width": width,
        "height": height,
        "across": _across(steps),
        "attacked": trace.attacked.astype(int).tolist(),
        "reward": _list(trace.reward),
        "return": _list(np.cumsum(trace.reward, dtype=np.float64)),
        "seen_differs": bool(np.any(trace.seen != trace.frames)),
        "diagnostics": {name: _list(np.where(nothing, np.nan, values)) for name, values in _diagnostics(file, steps)},
    }


@lru_cache(maxsize=16)
def picture(file: Path, what: str) -> bytes:
    """Return all `frames`, or all that was `seen`, as one PNG: row by row, `across` in a row.

    Raises InputError where the file is not a trace, or its frames are too many for a picture.
    """
    frames: NDArray[np.uint8] = getattr(_read(file), what)
    steps, height, width, _ = frames.shape
    across = _across(steps)
    down = -(-steps // across)
    sheet = np.zeros((down * across, height, width, 3), np.uint8)
    sheet[:steps] = frames
    sheet = sheet.reshape(down, across, height, width, 3).swapaxes(1, 2).reshape(down * height, across * width, 3)
    out = io.BytesIO()
    Image.fromarray(sheet).save(out, "PNG", compress_level=1)  # it only travels within this machine
    return out.getvalue()


@lru_cache(maxsize=4)
def _read(file: Path) -> Trace:
    trace = read_trace(file)
    if math.prod(trace.frames.shape[:3]) > _PIXELS or max(trace.frames.shape[1:3]) > 512:
        raise InputError(f"{file}: its frames are too many or too large to be shown")
    return trace


def _diagnostics(file: Path, steps: int) -> list[tuple[str, NDArray[np.floating]]]:
    """Return the diagnostics [T] that the file holds, by name; those of older ones are fewer."""
    try:
        with zipfile.ZipFile(file) as archive:
            held = [name for name in DIAGNOSTICS if f"{name}.npy" in archive.namelist()]
    except (OSError, zipfile.BadZipFile) as error:  # it was one a moment ago
        raise InputError(f"{file}: not a readable trace ({error})") from error
    found = list(zip(held, members(file, held), strict=True))
    for name, values in found:
        if not np.issubdtype(values.dtype, np.floating) or values.shape != (steps,):
            raise InputError(f"{file}: {name!r} must hold a number for each agent step")
    return found


def _across(steps: int) -> int:
    return math.ceil(math.sqrt(steps))


def _list(values: NDArray[np.floating]) -> list[float | None]:
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values.tolist()]
