"""How well `wmjax run --dry-run` tells the time: for the quickstart, and for a study that is ten times larger.

    python benchmarks/dry_run.py [--json FILE] [--set 'FIELD = VALUE'] [--times 1,10]

Each study is a dry run in a process of its own, and then a real one, both with the user's cache of programs; the real
one's time is that of its process, from start to end, with the report. The larger study has as many more seeds. A field
changed by --set, such as episode_steps = 25, is changed in both. Nothing else should be at work on the machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
SEEDS = 2
"""Of the quickstart."""

PREDICT = """
import json, sys
from wmjax import runtime
runtime.use_all_cores()
runtime.use_compilation_cache()
from wmjax.study.estimate import estimate
from wmjax.study.study_file import read_study
from wmjax.study.run_plan import prepare
found = estimate(prepare(read_study("quickstart", sys.argv[2:]), sys.argv[1]))
print(json.dumps({"predicted": found.wall, "parts": found.seconds, "agent_steps": found.steps,
                  "compiling": found.compiling, "predicted_bytes": found.disk_bytes, "memory": found.host_bytes}))
"""


def python(code: str, *arguments: str) -> str:
    """Return what a new Python process prints that runs `code`."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, check=True, stdout=subprocess.PIPE, encoding="utf-8"
    ).stdout


def compare(times: int, changes: list[str]) -> dict[str, Any]:
    """Return what was predicted for the quickstart with `times` its seeds, and what came; in seconds and bytes."""
    lines = [f'seeds = "20..{19 + times * SEEDS}"', *changes]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        begin = time.perf_counter()
        figures = json.loads(python(PREDICT, str(out), *lines).splitlines()[-1])
        figures["dry_run"] = time.perf_counter() - begin
        options = [part for line in lines for part in ("--set", line)]
        begin = time.perf_counter()
        python("from wmjax.cli import main; main()", "run", "quickstart", "--out", str(out), *options)
        figures["actual"] = time.perf_counter() - begin
        stored = [path.stat().st_size for part in ("rows", "traces") for path in (out / part).iterdir()]
    figures |= {"times": times, "ratio": figures["predicted"] / figures["actual"], "actual_bytes": sum(stored)}
    return figures | {"load": os.getloadavg()[0]}


def main() -> None:
    """Predict, run, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--set", action="append", default=[], metavar="'FIELD = VALUE'", help="change the studies")
    parser.add_argument("--times", default="1,10", help="how many times the quickstart's seeds (default 1,10)")
    options = parser.parse_args()
    table = Table(title="a dry run's prediction, and the run")
    columns = ("seeds", "agent steps", "dry run s", "predicted s", "actual s", "ratio", "predicted MB", "actual MB")
    for name in columns:
        table.add_column(name, justify="right")
    found = []
    for times in map(int, options.times.split(",")):
        found.append(row := compare(times, options.set))
        sizes = (f"{row[name] / 1e6:.1f}" for name in ("predicted_bytes", "actual_bytes"))
        seconds = (f"{row[name]:.1f}" for name in ("dry_run", "predicted", "actual"))
        table.add_row(str(times * SEEDS), f"{row['agent_steps']:,}", *seconds, f"{row['ratio']:.2f}", *sizes)
    Console(width=120).print(table)
    if options.json:
        options.json.write_text(json.dumps({"set": options.set, "studies": found}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
