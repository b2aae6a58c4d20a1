"""What this machine is to JAX: the compilation cache, devices and their memory, versions of packages."""

import codecs
import importlib.metadata
import io
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from wmjax.core.errors import InputError
from wmjax.core.files import plain_name

_PACKAGES = ("wmjax", "jax", "jaxlib", "flax", "numpy", "mujoco", "mujoco-mjx", "dm_control")
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

    Takes effect only before JAX's first computation; flags that the user has set are kept.
    """
    cores = len(os.sched_getaffinity(0))
    wanted = {
        "--xla_force_host_platform_device_count": str(cores),
        "--xla_cpu_multi_thread_eigen": "false",
    }
    flags = os.environ.get("XLA_FLAGS", "")
    missing = [f"{flag}={value}" for flag, value in wanted.items() if flag not in flags]
    os.environ["XLA_FLAGS"] = " ".join([flags, *missing]).strip()


def memory(devices: Sequence[Any]) -> int | None:
    """Return the bytes that each of `devices` has, CPUs an equal share; None where that is not known."""
    if devices[0].platform != "cpu":
        stats = [device.memory_stats() or {} for device in devices]
        return min((found["bytes_limit"] for found in stats if "bytes_limit" in found), default=None)
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")  # of a container
    if limit.exists() and (text := limit.read_text(encoding="utf-8").strip()).isdigit():
        whole = min(whole, int(text))
    return whole // len(devices)


def versions(*more: str) -> dict[str, str]:
    """Return the versions of the packages that all results depend on, and of `more`."""
    return {name: importlib.metadata.version(name) for name in (*_PACKAGES, *more)}
