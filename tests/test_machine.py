"""Cores and memory of a process under control groups, as the files of both versions tell them."""

import os
from pathlib import Path

import pytest

from wmjax.core import machine

GB = 1 << 30
ALL_CORES = len(os.sched_getaffinity(0))
ALL_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
UNLIMITED = 9223372036854771712
"""Version 1 writes the largest multiple of a page for no limit."""

V2 = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1_MEMORY = "33 29 0:30 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory"
V1_CPU = "34 29 0:31 / /sys/fs/cgroup/cpu,cpuacct rw shared:10 - cgroup cgroup rw,cpu,cpuacct"


@pytest.fixture
def root(tmp_path):
    """A function that makes a root folder of the mounts, the process's groups, and files by path."""

    def make(mounts: list[str], groups: list[str], files: dict[str, str]) -> Path:
        content = {"proc/self/mountinfo": mounts, "proc/self/cgroup": groups}
        for name, text in ({name: "\n".join(lines) for name, lines in content.items()} | files).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n", encoding="utf-8")
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("mounts", "groups", "files", "memory"),
    [
        pytest.param([V2], ["0::/"], {"memory.max": str(GB)}, GB, id="container"),
        pytest.param([V2], ["0::/"], {"memory.max": "max"}, ALL_MEMORY, id="no limit"),
        pytest.param([V2], ["0::/"], {}, ALL_MEMORY, id="no controller"),
        pytest.param([V2], ["0::/a/b"], {"a/memory.max": str(GB), "a/b/memory.max": "max"}, GB, id="group above"),
        pytest.param([V2], ["0::/a/b"], {"a/memory.max": "max", "a/b/memory.max": str(GB)}, GB, id="own group"),
        pytest.param([V2], ["0::/a/b"], {"a/memory.max": f"{GB}", "a/b/memory.max": f"{2 * GB}"}, GB, id="smallest"),
        pytest.param([V2], ["0::/a"], {"memory.max": str(GB), "b/memory.max": "1"}, GB, id="not a neighbour's"),
        pytest.param(
            [V2.replace(" / ", " /docker/1 ", 1)], ["0::/docker/1"], {"memory.max": str(GB)}, GB, id="mounted below"
        ),
        pytest.param([V2], ["0::/../../other"], {"memory.max": str(GB)}, GB, id="outside of the namespace"),
        pytest.param([V2], ["0::/a"], {"a/memory.max": str(1 << 60)}, ALL_MEMORY, id="more than there is"),
        pytest.param(["", "x", V2], ["", "0::/a", "y"], {"a/memory.max": str(GB)}, GB, id="strange lines"),
        pytest.param(
            [V1_MEMORY, V1_CPU],
            ["11:memory:/slurm/job_1/step_0", "4:cpu,cpuacct:/slurm", "0::/init"],
            {
                "memory/slurm/job_1/memory.limit_in_bytes": str(GB),
                "memory/slurm/job_1/step_0/memory.limit_in_bytes": str(UNLIMITED),
                "cpu,cpuacct/slurm/memory.limit_in_bytes": "1",
            },
            GB,
            id="Slurm, version 1",
        ),
        pytest.param(
            [V1_MEMORY, V2.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified ")],
            ["11:memory:/a", "0::/a"],
            {"memory/a/memory.limit_in_bytes": str(GB), "unified/a/memory.max": str(2 * GB)},
            GB,
            id="both versions",
        ),
    ],
)
def test_memory(mounts, groups, files, memory, root):
    files = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    assert machine.memory(root(mounts, groups, files)) == memory


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"a/cpu.max": "100000 100000"}, 1),
        ({"a/cpu.max": "50000 100000"}, 1),
        ({"a/cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "100000 100000", "a/cpu.max": "max 100000"}, 1),
        ({"a/cpu.max": "max 100000"}, ALL_CORES),
        ({"a/cpu.max": "100000"}, ALL_CORES),
        ({"a/cpu.max": "nonsense"}, ALL_CORES),
        ({}, ALL_CORES),
    ],
)
def test_cores(files, quota, root):
    files = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    assert machine.cores(root([V2], ["0::/a"], files)) == min(quota, ALL_CORES)


@pytest.mark.parametrize(("quota", "cores"), [("100000", 1), ("-1", ALL_CORES)])
def test_cores_of_version_1(quota, cores, root):
    folder = "sys/fs/cgroup/cpu,cpuacct/job"
    files = {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": "100000"}
    assert machine.cores(root([V1_CPU], ["4:cpu,cpuacct:/job"], files)) == cores


def test_without_linux(tmp_path):
    assert (machine.cores(tmp_path), machine.memory(tmp_path)) == (ALL_CORES, ALL_MEMORY)


def test_here():
    assert 1 <= machine.cores() <= ALL_CORES
    assert 0 < machine.memory() <= ALL_MEMORY
