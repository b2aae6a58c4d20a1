"""Frames per second of a PGD-10 value attack on the 12M agent: PyTorch eager and compiled, and wmjax, side by side.

    python benchmarks/attack_step.py [--json FILE] [--batches 1,16,64] [--quick]

A frame is one environment step: the agent's h_t and clean pass once, then ten forward and backward passes. PyTorch uses
a thread a core; wmjax a single-threaded device a core. Each library has its own process, which sleeps while the other
is measured; repeats alternate, and medians are shown. The losses must agree, or the benchmark fails.

A second table is about objectives: the program of all of them, with which every study attacks, over one that computes
the value alone, made for this comparison; and over itself where it climbs `critic`, which costs only where it is asked
for. Both must find the same frames.
"""

import argparse
import importlib
import importlib.metadata
import json
import multiprocessing
import os
import platform
import shutil
import statistics
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
CONSOLE = Console()


class Library:
    """A module of benchmark functions, in a process of its own."""

    def __init__(self, module: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(module, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def __call__(self, name: str, *args: Any) -> Any:
        """Call the module's function `name` there, and wait."""
        self.pipe.send((name, args))
        try:
            return self.pipe.recv()
        except EOFError:
            raise SystemExit("a benchmark process died; its traceback is above") from None


def serve(module: str, pipe: Connection) -> None:
    """Answer calls until the other end closes."""
    functions = importlib.import_module(module)
    while True:
        try:
            name, args = pipe.recv()
        except EOFError:
            return
        pipe.send(getattr(functions, name)(*args))


def agreement(torch: Library, wmjax: Library, batch: int) -> dict[str, float]:
    """Return how far the two libraries' losses and attacks are apart; fail if they do not compute the same.

    Both must give the same loss to clean frames and to the frames that wmjax attacked. The two attacks' own frames
    differ where a gradient's sign hangs on rounding, so what they reach is only similar.
    """
    clean, attacked = torch("losses", "eager", batch)
    our_clean, our_attacked, image = wmjax("losses", batch)
    same = torch("loss_of", image)
    other = wmjax("value_images", batch)
    apart = float(np.mean(np.abs(image - other) > 1e-6))
    difference = max(float(np.max(np.abs(a / b - 1))) for a, b in ((our_clean, clean), (our_attacked, same)))
    gain, our_gain = float(np.mean(attacked - clean)), float(np.mean(our_attacked - our_clean))
    if not (difference < 1e-3 and 0 < gain < 2 * our_gain):
        raise SystemExit(
            f"the libraries disagree: losses by {difference:.1e}, attacks gain {gain:.3g} and {our_gain:.3g}"
        )
    if apart > 0.01:
        raise SystemExit(f"two programs of wmjax attack alike, and {apart:.1%} of their pixels differ")
    return {"loss_difference": difference, "torch_gain": gain, "gain_difference": our_gain / gain - 1}


def measure(batches: list[int], repeats: int, *, compiled: bool) -> list[dict[str, Any]]:
    """Return a row of figures for every batch size."""
    torch, wmjax = Library("benchmarks.attack_step_torch"), Library("benchmarks.attack_step_jax")
    with tempfile.TemporaryDirectory() as folder:
        torch("save_checkpoint", f"{folder}/latest.pt")
        wmjax("load_checkpoint", f"{folder}/latest.pt")
    ways: dict[str, tuple[Library, str]] = {"eager": (torch, "eager")}
    if compiled:
        ways["compile"] = torch, "compile"
    ways |= {"wmjax": (wmjax, "all"), "value": (wmjax, "value"), "critic": (wmjax, "critic")}
    rows = []
    for batch in batches:
        row: dict[str, Any] = {"batch": batch}
        with CONSOLE.status(f"batch {batch}: warming up (torch.compile takes a minute)"):
            row |= agreement(torch, wmjax, batch)
            for library, mode in ways.values():
                library("attack", mode, batch)
        times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for repeat in range(repeats):
            with CONSOLE.status(f"batch {batch}: repeat {repeat + 1} of {repeats}"):
                for way, (library, mode) in ways.items():
                    times[way].append(library("attack", mode, batch))
        for way, measured in times.items():
            wall, cpu = (statistics.median(part) for part in zip(*measured, strict=True))
            row |= {f"{way}_fps": batch / wall, f"{way}_cpu_ms_per_frame": 1000 * cpu / batch}
        row["all_over_value"] = ratio(times["wmjax"], times["value"])
        row["critic_over_all"] = ratio(times["critic"], times["wmjax"])
        rows.append(row)
    for row in rows:
        for way in ways.keys() & {"eager", "compile"}:
            row[f"over_{way}"] = row["wmjax_fps"] / row[f"{way}_fps"]
        if compiled and batches[0] == 1:
            row["over_compile_loop"] = row["wmjax_fps"] / rows[0]["compile_fps"]
    return rows


def ratio(one: list[tuple[float, float]], other: list[tuple[float, float]]) -> float:
    """Return the median over repeats of a way's processor seconds over another's."""
    return statistics.median(a / b for (_, a), (_, b) in zip(one, other, strict=True))


def speed_table(rows: list[dict[str, Any]]) -> Table:
    """Return the libraries side by side."""
    columns = {
        "batch": ("batch", "d"),
        "eager_fps": ("torch\neager", ".1f"),
        "compile_fps": ("torch.\ncompile", ".1f"),
        "wmjax_fps": ("\nwmjax", ".1f"),
        "over_eager": ("over\neager", ".2f"),
        "over_compile": ("over\ncompile", ".2f"),
        "over_compile_loop": ("over compile,\nbatch 1", ".2f"),
        "gain_difference": ("gain of\nthe attack", "+.1%"),
    }
    title = f"PGD-10 value attack on the 12M agent: frames per second on {len(os.sched_getaffinity(0))} CPU cores"
    caption = "'over': wmjax over that column; 'gain of the attack': by how much wmjax's attack raises the loss more"
    return table(title, caption, columns, rows)


def objective_table(rows: list[dict[str, Any]]) -> Table:
    """Return what it costs that one program serves all objectives."""
    columns = {
        "batch": ("batch", "d"),
        "value_fps": ("value\nalone", ".1f"),
        "wmjax_fps": ("\nall", ".1f"),
        "critic_fps": ("all, at work\non critic", ".1f"),
        "all_over_value": ("time of all\nover value", ".2f"),
        "critic_over_all": ("time of critic\nover others", ".2f"),
    }
    return table("wmjax's program of all objectives: frames per second", None, columns, rows)


def table(title: str, caption: str | None, columns: dict[str, tuple[str, str]], rows: list[dict[str, Any]]) -> Table:
    """Return those of the columns that were measured: heading and format by key."""
    shown = {key: column for key, column in columns.items() if key in rows[0]}
    result = Table(title=title, caption=caption)
    for heading, _ in shown.values():
        result.add_column(heading, justify="right")
    for row in rows:
        result.add_row(*(format(row[key], style) for key, (_, style) in shown.items()))
    return result


def batch_sizes(text: str) -> list[int]:
    """Parse `1,16,64`."""
    sizes = [int(part) for part in text.split(",")]
    if min(sizes) < 1:
        raise ValueError
    return sizes


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--batches", type=batch_sizes, default=[1, 16, 64], help="comma-separated (default 1,16,64)")
    parser.add_argument("--quick", action="store_true", help="3 repeats of batches 1 and 16 only")
    options = parser.parse_args()
    compiled = any(map(shutil.which, ("c++", "g++", "clang++")))
    if not compiled:
        CONSOLE.print("no C++ compiler found: torch.compile is left out")
    batches, repeats = ([1, 16], 3) if options.quick else (options.batches, 11)
    rows = measure(batches, repeats, compiled=compiled)
    CONSOLE.print(speed_table(rows))
    CONSOLE.print(objective_table(rows))
    if options.json:
        versions = {name: importlib.metadata.version(name) for name in ("jax", "torch", "numpy")}
        machine = {"cores": len(os.sched_getaffinity(0)), "processor": platform.processor() or platform.machine()}
        options.json.write_text(
            json.dumps({**machine, "versions": versions, "rows": rows}, indent=2) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # the benchmark processes import `benchmarks`, and wmjax where it is not installed
    main()
