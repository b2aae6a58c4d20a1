"""The cores and the memory that this process may use, the machine's or less in a container, and the flags of XLA.

Docker, Kubernetes, Slurm and systemd limit processes by control groups (cgroups): a tree of folders with limits as
files, where a group is limited by those above it too. Version 1 has a tree for each resource, version 2 one for all.
"""

import math
import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from wmjax.core.errors import InputError
from wmjax.core.files import read_file

_ROOT = Path("/")
_FLAGS_BYTES = 1 << 20


def cores(root: Path = _ROOT) -> int:
    """Return the number of CPU cores that this process may use; a part of a core counts as one.

    `root` is the root of the file system.
    """
    quotas = (_cpu_quota(group) for group in _groups("cpu", root))
    return min([len(os.sched_getaffinity(0)), *(math.ceil(quota) for quota in quotas if quota is not None)])


def memory(root: Path = _ROOT) -> int:
    """Return the bytes of memory that this process may use; `root` is the root of the file system."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = (_memory_limit(group) for group in _groups("memory", root))
    return min([whole, *(limit for limit in limits if limit is not None)])


def xla_flags() -> list[str]:
    """Return the flags in XLA_FLAGS, or in the file that it names, as XLA reads them.

    Raises InputError for a file that XLA could not read either, and would end the process.
    """
    text = os.environ.get("XLA_FLAGS", "").strip()
    if text and not text.startswith("-"):
        try:
            text = read_file(Path(text), _FLAGS_BYTES).decode(errors="replace")
        except (FileNotFoundError, InputError) as error:
            raise InputError(f"XLA_FLAGS is {text!r:.80}, neither flags nor a file of flags ({error!s:.120})") from None
    return text.split()


def _cpu_quota(group: Path) -> float | None:
    """Return the CPU time that a group may use, in cores; None for a group without a limit."""
    match [*_numbers(group / "cpu.max"), *_numbers(group / "cpu.cfs_quota_us"), *_numbers(group / "cpu.cfs_period_us")]:
        case quota, period:  # where there is no limit, the quota is the word "max", or -1
            return quota / period
    return None


def _memory_limit(group: Path) -> int | None:
    """Return a group's limit in bytes; None for a group without one."""
    return min(_numbers(group / "memory.max") + _numbers(group / "memory.limit_in_bytes"), default=None)


def _numbers(path: Path) -> list[int]:
    """Return the positive whole numbers in a file, none where it cannot be read."""
    try:
        words = path.read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return []
    return [int(word) for word in words if word.isdecimal() and int(word) > 0]


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folder of this process's group for "cpu" or "memory", and those of the groups above it."""
    try:
        memberships = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
        mounts = (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return
    for membership, mount in product(memberships, mounts):
        place, _, system = mount.partition(" - ")
        match [*membership.split(":", 2), *place.split(" ")[3:5], *system.split(" ", 2)]:
            case [_, controllers, path, top, folder, kind, _, options]:
                pass
            case _:  # a sandbox that imitates Linux
                continue
        version_2 = kind == "cgroup2" and not controllers
        version_1 = kind == "cgroup" and all(controller in names.split(",") for names in (controllers, options))
        if not version_1 and not version_2:
            continue
        # In a container the mount may begin at the container's own group, or the path lie outside of what is seen.
        seen = ".." not in path.split("/") and Path(path).is_relative_to(top)
        below = Path(path).relative_to(top) if seen else Path()
        mounted = root / folder.lstrip("/")
        yield from (mounted / group for group in (below, *below.parents))
