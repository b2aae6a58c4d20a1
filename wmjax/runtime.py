"""What this machine is to JAX: the compilation cache, devices and their memory, versions of packages."""

import codecs
import importlib.metadata
import io
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from wmjax.core import machine
from wmjax.core.errors import InputError
from wmjax.core.files import plain_name

_PACKAGES = ("wmjax", "jax", "jaxlib", "flax", "numpy", "mujoco", "mujoco-mjx", "dm_control")
_SECONDS = 60
"""After which a back end that is tried out counts as hanging."""

_open = ExitStack()
_GL = ("", "egl", "glfw", "osmesa", "disable", "disabled", "off", "false", "0")


def cache_dir() -> Path | None:
    """Return the folder of compiled programs: `WMJAX_CACHE`, else `wmjax` in the user's cache folder.

    An empty variable counts as unset. None where the folder lies in the home of a user who has none.
    """
    given = os.environ.get("WMJAX_CACHE") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/wmjax"
    try:
        return Path(given).expanduser()
    except RuntimeError:
        return None


def check_gl() -> None:
    """Raise InputError for a value of MUJOCO_GL with which MuJoCo and dm_control could not even be imported."""
    given = os.environ.get("MUJOCO_GL", "")
    if given.lower() not in _GL:
        raise InputError(f"MUJOCO_GL is {given!r:.80}; allowed: {', '.join(filter(None, _GL))}, or MUJOCO_GL unset")


def use_compilation_cache() -> None:
    """Keep compiled programs on disk, where they are found by the next process."""
    import jax

    folder = cache_dir()
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The compiler takes the name too, and only in UTF-8; if need be that of a handle, which stays open.
        name = _open.enter_context(plain_name(folder))
    except OSError:
        return  # a read-only home only costs compile time; `wmjax doctor` reports it
    jax.config.update("jax_compilation_cache_dir", str(name))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def print_anything() -> None:
    """Have standard output take every text, whatever the locale: names of files as their bytes, `?` for the rest."""
    codecs.register_error("wmjax", _printed)
    if isinstance(sys.stdout, io.TextIOWrapper):  # not so in a notebook
        sys.stdout.reconfigure(errors="wmjax")


def _printed(error: UnicodeError) -> tuple[bytes, int]:
    """Return what is written for characters that the encoding lacks."""
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return b"".join(os.fsencode(x) if "\udc80" <= x <= "\udcff" else b"?" for x in lacking), error.end


def use_all_cores() -> None:
    """Give JAX one CPU device a core, each single-threaded: independent programs scale where threads do not.

    Takes effect only before JAX's first computation; flags that the user has set, also in a file, are kept. Raises
    InputError where XLA_FLAGS names a file that cannot be read.
    """
    wanted = {
        "--xla_force_host_platform_device_count": str(machine.cores()),
        "--xla_cpu_multi_thread_eigen": "false",
    }
    flags = machine.xla_flags()
    missing = [f"{name}={value}" for name, value in wanted.items() if not any(name in flag for flag in flags)]
    os.environ["XLA_FLAGS"] = " ".join([*flags, *missing])


def local_devices() -> list[Any]:
    """Return JAX's devices of this process; raises InputError where its back end does not start."""
    import jax

    try:
        return jax.local_devices()
    except Exception as error:  # JAX raises a RuntimeError for most back ends, and fails an assertion for CUDA's
        wanted = jax.config.values["jax_platforms"]
        reason = str(error).partition(" (set JAX_PLATFORMS")[0] or "it is not installed"
        raise InputError(
            f"JAX_PLATFORMS is {wanted!r:.80}, which does not start ({reason:.200}); available here: {_available()}"
        ) from None


def _available() -> str:
    """Return the platforms that JAX finds when it may choose; a process of its own asks, since a start is for good."""
    script = "import jax; print(*sorted({device.platform for device in jax.devices()}), sep=', ')"
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    command = [sys.executable, "-P", "-c", script]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, encoding="utf-8", errors="replace", timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "none"


def memory(devices: Sequence[Any]) -> int | None:
    """Return the bytes that each of `devices` has, CPUs an equal share; None where that is not known."""
    if devices[0].platform != "cpu":
        stats = [device.memory_stats() or {} for device in devices]
        return min((found["bytes_limit"] for found in stats if "bytes_limit" in found), default=None)
    return machine.memory() // len(devices)


def versions(*more: str) -> dict[str, str]:
    """Return the versions of the packages that all results depend on, and of `more`."""
    return {name: importlib.metadata.version(name) for name in (*_PACKAGES, *more)}
