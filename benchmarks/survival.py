"""A study of 2,110 episodes: undisturbed, killed five times and with a full disk, on 1, 2 and 4 devices. Same rows?

    python benchmarks/survival.py [--json FILE] [--seeds 68] [--steps 15] [--random-state 0]

Every run is the command `wmjax run` in a process of its own, on virtual CPU devices. The disturbed one is killed with
SIGKILL at five random moments, startup included; then its disk is full, which must end it with exit code 2 and one
message, and leave nothing half-written; then it ends. Its disk is a small tmpfs, which only the superuser can mount:
without, that part is left out. The benchmark fails where rows or recorded episodes differ from the undisturbed run's.
"""

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from wmjax import runtime
from wmjax.study.schema import CELL, TIMING
from wmjax.study.store import read_manifest, read_shard

COMMAND = "import sys; from wmjax.cli import main; sys.argv[0] = 'wmjax'; main()"
STUDY = """
name = "survival"
victims = ["dmc_cartpole_balance_r2dreamer_1m"]
objectives = ["random", "pda", "pea", "vsa", "lda", "dca"]
optimizers = ["fgsm"]
budgets = ["2/255", "4/255", "6/255", "8/255", "16/255"]
seeds = "1..{seeds}"
episode_steps = {steps}
"""
KILLS = 5
CONSOLE = Console(width=110)


class Study:
    """The command that runs a study into a folder."""

    def __init__(self, file: Path, out: Path, devices: int) -> None:
        self.out = out
        self._command = [sys.executable, "-c", COMMAND, "run", str(file), "--out", str(out), "--batch", "8"]
        flags = f"--xla_force_host_platform_device_count={devices} --xla_cpu_multi_thread_eigen=false"
        self._environment = os.environ | {"XLA_FLAGS": flags}

    def start(self) -> subprocess.Popen[str]:
        """Start the command."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self._command, env=self._environment, stdout=subprocess.DEVNULL, stderr=pipe, encoding="utf-8"
        )

    def finish(self, code: int = 0) -> str:
        """Run the command to its end, which must be `code`; return what it said on stderr."""
        process = self.start()
        _, said = process.communicate()
        if process.returncode != code:
            raise SystemExit(f"{self.out}: exit code {process.returncode}, expected {code}\n{said}")
        return said

    def shards(self) -> int:
        """Return how many chunks are stored."""
        return len(list(self.out.glob("rows/*.parquet")))

    def kill(self, after: float) -> int:
        """Start the command and kill it `after` seconds; return how many chunks are stored then."""
        process = self.start()
        try:
            process.wait(after)
        except subprocess.TimeoutExpired:
            process.kill()
        _, said = process.communicate()
        if process.returncode != -signal.SIGKILL:
            raise SystemExit(f"{self.out}: ended before it was killed, with exit code {process.returncode}\n{said}")
        return self.shards()


def outcome(out: Path) -> tuple[list[dict[str, Any]], dict[str, dict[str, np.ndarray]]]:
    """Return a study's rows, ordered by cell and without their timing, and its recorded episodes by name."""
    table = pa.concat_tables(read_shard(path) for path in sorted(out.glob("rows/*.parquet")))
    rows = table.sort_by([(name, "ascending") for name in CELL]).drop_columns(list(TIMING)).to_pylist()
    traces = {}
    for path in sorted(out.glob("traces/*.npz")):
        with np.load(path, allow_pickle=False) as arrays:
            traces[path.name] = {name: arrays[name] for name in arrays if name != "meta"}  # which has the timing
    return rows, traces


def same(one: tuple, other: tuple) -> bool:
    """Return whether two outcomes are equal to the last bit."""
    rows = repr(one[0]) == repr(other[0])  # NaN is equal to NaN there
    traces = one[1].keys() == other[1].keys() and all(
        arrays.keys() == other[1][name].keys()
        and all(array.tobytes() == other[1][name][key].tobytes() for key, array in arrays.items())
        for name, arrays in one[1].items()
    )
    return rows and traces


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[bool]:
    """Mount a disk of `size` bytes on `folder`, if this user can; yields whether it is there."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "wmjax-survival", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path, free: int) -> Path:
    """Leave `free` bytes on the disk, by a file that is returned."""
    ballast, state = disk / "ballast", os.statvfs(disk)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, state.f_bavail * state.f_frsize - free)
    return ballast


def used(disk: Path) -> int:
    """Return the bytes in use, in whole blocks."""
    return sum(path.lstat().st_blocks * 512 for path in disk.rglob("*"))


def disturb(study: Study, disk: Path | None, wall: float, size: int, moments: random.Random) -> dict[str, Any]:
    """Kill the study, fill its disk if it has one of its own, then let it end.

    `wall` is how many seconds it takes, `size` how many bytes its shards are in the end.
    """
    told: dict[str, Any] = {"kills": [], "full_disk": None}
    for _ in range(KILLS):
        moment = moments.uniform(0, wall / KILLS)
        stored = study.kill(moment)
        told["kills"].append({"after_s": moment, "chunks_stored": stored})
        CONSOLE.print(f"killed after {moment:.1f} s, {stored} chunks stored")
    if disk is not None:
        before = study.shards()
        ballast = fill(disk, (size - used(study.out / "rows")) // 2)
        said = study.finish(code=2)
        message = re.fullmatch(r"wmjax: \S+/(rows|traces)/\S+: cannot be written \(No space left on device\)\n", said)
        if not message or list(study.out.rglob(".*.part")):
            raise SystemExit(f"a full disk left something half-written, or ended the study with other words:\n{said}")
        told["full_disk"] = {"said": said.strip(), "chunks_before": before, "chunks_stored": study.shards()}
        CONSOLE.print(f"full disk, {study.shards()} chunks stored: {said.strip()}", markup=False)
        ballast.unlink()
    else:
        CONSOLE.print("no full disk: only the superuser can mount a small one")
    study.finish()
    return told


def main() -> None:
    """Run, compare, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=68, help="31 episodes each")
    parser.add_argument("--steps", type=int, default=15, help="agent steps an episode")
    parser.add_argument("--random-state", type=int, default=0, help="of the moments at which it is killed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    runtime.print_anything()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file, disk = folder / "study.toml", folder / "disk"
        file.write_text(STUDY.format(seeds=options.seeds, steps=options.steps), encoding="utf-8")
        disk.mkdir()

        def record(what: str, devices: int, start: float, out: Path, told: dict[str, Any]) -> tuple:
            found, wall = outcome(out), time.perf_counter() - start
            equal = same(found, reference or found)
            versions = (read_manifest(out) or {}).get("device")
            runs.append({"run": what, "devices": devices, "rows": len(found[0]), "wall_s": wall, "identical": equal})
            runs[-1] |= {"traces": len(found[1]), "device": versions, **told}
            CONSOLE.print(f"{what}, {devices} devices: {wall:.0f} s, {'same' if equal else 'OTHER'} rows")
            return found

        reference: tuple | None = None
        start = time.perf_counter()
        undisturbed = Study(file, folder / "undisturbed", 2)
        undisturbed.finish()
        reference = record("undisturbed", 2, start, undisturbed.out, {})
        wall, size = runs[0]["wall_s"], used(undisturbed.out / "rows")
        with small_disk(disk, 3 * used(undisturbed.out)) as mounted:
            start = time.perf_counter()
            study = Study(file, disk / "out", 2)
            told = disturb(study, disk if mounted else None, wall, size, random.Random(options.random_state))
            record("killed", 2, start, study.out, told)
        for devices in (1, 4):
            start = time.perf_counter()
            study = Study(file, folder / f"devices_{devices}", devices)
            study.finish()
            record("undisturbed", devices, start, study.out, {})
    table = Table(title=f"{runs[0]['rows']} episodes of {options.steps} steps on {len(os.sched_getaffinity(0))} cores")
    for heading in ("run", "devices", "rows", "recorded", "wall s", "kills", "full disks", "identical"):
        table.add_column(heading, justify="right")
    for run in runs:
        events = str(len(run.get("kills", ()))), "1" if run.get("full_disk") else "0"
        counts = str(run["devices"]), str(run["rows"]), str(run["traces"]), f"{run['wall_s']:.0f}"
        table.add_row(run["run"], *counts, *events, "yes" if run["identical"] else "NO")
    CONSOLE.print(table)
    if options.json:
        options.json.write_text(
            json.dumps({"seeds": options.seeds, "steps": options.steps, "runs": runs}, indent=2), encoding="utf-8"
        )
    if not all(run["identical"] for run in runs):
        raise SystemExit("the rows are not the same")


if __name__ == "__main__":
    main()
