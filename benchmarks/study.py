"""What a whole study costs beside its episodes alone: planning, starting, storing and reporting.

    python benchmarks/study.py [--seeds 8] [--backend host] [--json FILE]

The study attacks the shipped agent: PGD with 10 steps, five objectives, two budgets, whole episodes, its programs
already in the compilation cache. The wall time of `wmjax run`, its report included, is set beside what the bare loop
(`benchmarks/rollout.py`, the same agent, batch and attack, on all cores at a time) takes for as many agent steps.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # wmjax where it is not installed, and this folder

from rich.console import Console
from rich.table import Table

from benchmarks.rollout import SHIPPED, agent

TASK, BATCH, STEPS = "dmc_cartpole_balance", 4, 500
OBJECTIVES, BUDGETS = ("pda", "pea", "vsa", "lda", "dca"), ("4/255", "8/255")


def study(seeds: int, backend: str) -> str:
    """Return the study's file."""
    return f"""
victims = ["{SHIPPED}"]
objectives = {json.dumps(OBJECTIVES)}
optimizers = ["pgd"]
budgets = {json.dumps(BUDGETS)}
seeds = "0..{seeds - 1}"
episode_steps = {STEPS}
backend = "{backend}"
"""


def run(place: Path, seeds: int, backend: str) -> float:
    """Run the study from nothing; return its wall seconds."""
    file = place / f"study{seeds}.toml"
    file.write_text(study(seeds, backend), encoding="utf-8")
    start = time.perf_counter()
    command = [sys.executable, "-m", "wmjax", "run", str(file), "--out", str(place / str(seeds))]
    command += ["--batch", str(BATCH)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def bare(backend: str) -> tuple[float, float]:
    """Return attacked and clean agent steps a second of the bare loop, a process on each core, all at a time."""
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, get_context("spawn")) as processes:
        found = list(processes.map(agent, *zip(*[(backend, "1M", TASK, BATCH)] * cores, strict=True)))
    return sum(figures["attacked"] for figures in found), sum(figures["clean"] for figures in found)


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--backend", choices=("host", "device"), default="host")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    attacked_rate, clean_rate = bare(options.backend)
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), 1, options.backend)  # fills the cache
        wall = run(Path(folder), options.seeds, options.backend)
    attacked = (len(OBJECTIVES) * len(BUDGETS) * options.seeds + 1) * STEPS  # with the probe
    clean = options.seeds * STEPS
    alone = attacked / attacked_rate + clean / clean_rate
    figures = {
        "attacked agent steps": attacked,
        "clean agent steps": clean,
        "bare loop, attacked steps/s": attacked_rate,
        "bare loop, clean steps/s": clean_rate,
        "bare loop, s": alone,
        "study, s": wall,
        "study, attacked steps/s over its whole wall time": attacked / wall,
        "share of the bare loop's throughput": alone / wall,
    }
    table = Table(title=f"{options.backend}, {len(os.sched_getaffinity(0))} cores, batch {BATCH}", show_header=False)
    for name, figure in figures.items():
        table.add_row(name, f"{figure:,.2f}" if isinstance(figure, float) else f"{figure:,}")
    Console(width=100).print(table)
    if options.json:
        options.json.write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    main()
