"""Updates per second of training in wmjax and in PyTorch, side by side on this CPU: `python benchmarks/train.py`.

Every library does the same updates of the same random agent with the same replayed sequences, 8 of 32 frames, in
float32: world model, representation, imagination of 15 steps, actor, critic, optimizer. PyTorch uses a thread a core,
eager, and compiled as a whole by torch.compile; wmjax has its updates in one compiled loop, with all cores for one run
(`wmjax`) and with a run a core (`runs`: what all runs do together; left out on one core). Each library has its own
process, which sleeps while the others are measured; rounds alternate, and medians are shown. The first update's losses
must agree in both libraries, or the benchmark fails. On a busy machine `taskset -c 0` compares them on one core, and
processor seconds tell more than updates per second.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # its processes import `benchmarks` too, and wmjax where it is not installed

from benchmarks.attack_step import CONSOLE, Library, table  # noqa: E402
from benchmarks.sequences import random_sequences  # noqa: E402
from wmjax.agents.dreamer import AGENTS  # noqa: E402
from wmjax.train.sizes import SIZES  # noqa: E402

BATCH, LENGTH, LATENTS, ACTION = 8, 32, 32, 1
CORES = len(os.sched_getaffinity(0))


def agreement(torch: Library, wmjax: Library) -> float:
    """Return the largest relative difference of a loss term of the first update; fail if they are not the same."""
    ours, noise = wmjax("losses")
    theirs = torch("losses", noise)
    apart = {name: abs(ours[name] / term - 1) for name, term in theirs.items()}
    if max(apart.values()) > 1e-3:
        raise SystemExit(f"the libraries disagree about the losses, by these shares: {apart}")
    return max(apart.values())


def measure(
    libraries: dict[str, Library], agent: str, size: dict[str, int], updates: int, rounds: int, *, compiled: bool
) -> dict[str, Any]:
    """Return a row of figures for one agent."""
    sizes: dict[str, Any] = {"agent": agent, "stoch": LATENTS, "action": ACTION, **size}
    shapes = {name: sizes[name] for name in ("stoch", "discrete", "deter", "action")}
    sequences = random_sequences(updates, BATCH, LENGTH, **shapes)
    row: dict[str, Any] = {"agent": agent}
    with tempfile.TemporaryDirectory() as folder:
        for name, library in libraries.items():
            library("begin", sizes if name == "torch" else agent, sequences, f"{folder}/latest.pt")
    row["loss_difference"] = agreement(libraries["torch"], libraries["wmjax"])
    ways = {"eager": ("torch", "eager")} | {name: (name,) for name in libraries if name != "torch"}
    if compiled:
        row["compile_seconds"] = libraries["torch"]("compile_update")
        ways["compile"] = "torch", "compile"
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for round_ in range(rounds + 1):
        for way, (name, *mode) in ways.items():
            measured = libraries[name]("run", *mode)
            if round_ > 0:  # the first warms up
                times[way].append(measured)
    for way, measured in times.items():
        wall, cpu = (statistics.median(part) for part in zip(*measured, strict=True))
        done = updates * (CORES if way == "runs" else 1)
        row |= {f"{way}_per_second": done / wall, f"{way}_cpu_seconds": cpu / done}
    best = max(row[f"{way}_per_second"] for way in ways if ways[way][0] == "torch")
    return row | {f"{way}_over_torch": row[f"{way}_per_second"] / best for way in libraries if way != "torch"}


def speed_table(rows: list[dict[str, Any]], size: str) -> Any:
    """Return the libraries side by side."""
    columns = {
        "agent": ("\nagent", "s"),
        "eager_per_second": ("torch\neager", ".2f"),
        "compile_per_second": ("torch.\ncompile", ".2f"),
        "wmjax_per_second": ("\nwmjax", ".2f"),
        "wmjax_over_torch": ("wmjax over\nbest torch", ".2f"),
        "runs_per_second": (f"wmjax,\n{CORES} runs", ".2f"),
        "runs_over_torch": (f"{CORES} runs over\nbest torch", ".2f"),
    }
    title = f"Training the {size} agents on {BATCH} x {LENGTH} frames: updates per second, CPU cores: {CORES}"
    caption = f"'{CORES} runs': what {CORES} single-threaded runs at once do together" if CORES > 1 else None
    return table(title, caption, columns, rows)


def cost_table(rows: list[dict[str, Any]]) -> Any:
    """Return what an update costs, which other programs on the machine disturb less."""
    columns = {
        "agent": ("\nagent", "s"),
        "eager_cpu_seconds": ("torch\neager", ".2f"),
        "compile_cpu_seconds": ("torch.\ncompile", ".2f"),
        "wmjax_cpu_seconds": ("\nwmjax", ".2f"),
        "runs_cpu_seconds": ("wmjax,\na run a core", ".2f"),
        "compile_seconds": ("to compile in\ntorch, seconds", ".0f"),
    }
    return table("Processor seconds of an update", None, columns, rows)


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--size", choices=SIZES, default="tiny", help="of the agents (default tiny)")
    parser.add_argument("--agents", nargs="+", choices=AGENTS, default=AGENTS, help="default: all four")
    parser.add_argument("--updates", type=int, default=4, help="in a timed run (default 4)")
    parser.add_argument("--rounds", type=int, default=7, help="timed runs of each library (default 7)")
    parser.add_argument("--eager", action="store_true", help="leave out torch.compile, which takes minutes an agent")
    options = parser.parse_args()
    compiled = not options.eager and any(map(shutil.which, ("c++", "g++", "clang++")))
    if not compiled:
        CONSOLE.print("torch.compile is left out" + ("" if options.eager else ": no C++ compiler found"))
    libraries = {"torch": Library("benchmarks.train_torch")}
    for name in ("wmjax", "runs")[:CORES]:
        libraries[name] = Library("benchmarks.train_jax")
        libraries[name]("use_cores", name == "runs")
    rows = []
    for agent in options.agents:
        with CONSOLE.status(f"{agent}: torch.compile takes minutes" if compiled else agent):
            size = SIZES[options.size]
            rows.append(measure(libraries, agent, size, options.updates, options.rounds, compiled=compiled))
    CONSOLE.print(speed_table(rows, options.size))
    CONSOLE.print(cost_table(rows))
    if options.json:
        versions = {name: importlib.metadata.version(name) for name in ("jax", "torch", "numpy")}
        machine = {"cores": CORES, "processor": platform.processor() or platform.machine()}
        setting = {"size": options.size, "batch": BATCH, "length": LENGTH, "updates": options.updates}
        options.json.write_text(
            json.dumps({**machine, "versions": versions, **setting, "rows": rows}, indent=2) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
