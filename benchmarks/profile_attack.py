"""Where the time of a PGD-10 attack on the 12M agent goes on a CPU, layer by layer, in the program that studies run.

    python benchmarks/profile_attack.py [--json FILE] [--batch N] [--quick]

A single-threaded device a core, all at work on attacks of their own, N frames each (4, as in a study). JAX's profiler
times the operations of the compiled attack, and their names say which layer they belong to; one that several layers
were fused into counts for the last of them. That the layers account for the time is checked against the same attack
untraced, with 10 and with 20 iterations. Rates are in GFLOP/s a core, beside that of a large float32 matrix product
measured in between:

- plain: the products of the plain algorithm, over the time. Wide convolutions run with 0.4 of them (wmjax/core/
  convolution.py), so that this rate can be above what the core can do.
- done: the products that the program really makes, over the same time.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # wmjax where it is not installed, and this folder

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import compiled
from benchmarks.attack_step_jax import DEVICES, step
from benchmarks.compiled import KINDS, REST, layer
from benchmarks.frames import EPS, STEPS, random_frames
from benchmarks.rollout import SHIPPED, SIZES
from wmjax import attacks, load
from wmjax.agents.base import Params
from wmjax.agents.dreamer import Dreamer

SIDE = 2048
"""Of the matrices whose product gives the rate to compare with."""

ONCE = "once a frame"

Work = Callable[[int], Any]
"""What a device does, by its number."""


def plain(victim: Dreamer, params: Params) -> tuple[dict[str, float], float]:
    """Return the plain algorithm's FLOPs for one frame: of each layer's forward pass, and of all that comes once.

    An input gradient has as many as the forward pass. Once come h_t, the prior, all products with h_t, the clean pass.
    """
    pixels = [(victim.image_size >> stage) ** 2 for stage in range(len(victim.depths))]
    encoder = [size * _flops(params["encoder"][f"stage{stage}"]) for stage, size in enumerate(pixels)]
    rssm = {name: _flops(part) for name, part in params["rssm"].items()}
    posterior = rssm.pop("obs_embed") + rssm.pop("obs_tail")
    with_deter = 2.0 * victim.deter * victim.units
    heads = {f"{name} head": _flops(params[name]) - with_deter for name in ("actor", "value")}
    loop = {f"encoder {stage} {KINDS['conv']}": flops for stage, flops in enumerate(encoder)}
    loop |= {"posterior net": posterior} | heads
    return loop, sum(rssm.values()) + len(heads) * with_deter + sum(loop.values())


def _flops(params: Params) -> float:
    """Return the FLOPs of multiplying by every kernel once."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return 2.0 * sum(leaf.size for path, leaf in leaves if path[-1].key == "kernel")


def programs(victim: Dreamer, params: Params, batch: int, steps: int) -> tuple[Work, str]:
    """Return the attack of `steps` iterations on a batch of frames a device, and the text of its program."""
    groups, classes = victim.latent_shape
    frames = random_frames(batch, stoch=groups, discrete=classes, deter=victim.deter, action=victim.action_size)
    attack = attacks.Attack(attacks.optimizer("pgd", steps), noise="shared")
    given = params, frames, jax.random.key(0), attacks.threat(["vsa"] * batch, [EPS] * batch)
    calls = [jax.device_put(given, device) for device in DEVICES]
    made = [step.lower(attack, victim, *call).compile() for call in calls]
    return lambda worker: made[worker](*calls[worker]), made[0].as_text() or ""


def matmul() -> Work:
    """Return a large float32 product on every device."""
    product = jax.jit(lambda a: a @ a)
    matrices = [jax.device_put(np.ones((SIDE, SIDE), np.float32), device) for device in DEVICES]
    return lambda worker: product(matrices[worker])


def seconds(work: Work) -> tuple[float, float]:
    """Return how long all devices take that do their work once at the same time, and their mean processor time."""
    with ThreadPoolExecutor(len(DEVICES)) as pool:
        wall, cpu = time.perf_counter(), time.process_time()
        list(pool.map(lambda worker: jax.block_until_ready(work(worker)), range(len(DEVICES))))
        return time.perf_counter() - wall, (time.process_time() - cpu) / len(DEVICES)


def traced(work: Work, repeats: int, module: str) -> dict[str, tuple[float, float]]:
    """Return how often each operation of `module` runs in one call, and the seconds that it takes, the median."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for _ in range(repeats):
                seconds(work)
        (file,) = Path(folder).rglob("*.xplane.pb")
        profile = jax.profiler.ProfileData.from_file(str(file))
    found = defaultdict(list)
    for event in (event for plane in profile.planes for line in plane.lines for event in line.events):
        about = dict(event.stats)
        if about.get("hlo_module") == module:
            found[about["hlo_op"]].append(event.duration_ns / 1e9)
    calls = repeats * len(DEVICES)
    return {name: (len(times) / calls, statistics.median(times)) for name, times in found.items()}


def spent(program: compiled.Program, times: dict[str, tuple[float, float]]) -> dict[tuple[str, str], np.ndarray]:
    """Return [seconds, FLOPs done] of one call, by layer and direction; what is not in the attack's loop is ONCE."""
    loop = dict(compiled.reached(program, compiled.loop_body(program)))
    total: dict[tuple[str, str], np.ndarray] = defaultdict(lambda: np.zeros(2))
    for operations in program.values():
        for name, operation in operations.items():
            if name in times and not operation.calls:
                count, each = times[name]
                way = "gradient" if "transpose(" in operation.source else "forward"
                key = (layer(operation.source), way) if name in loop else (ONCE, "forward")
                total[key] += count * np.array([each, compiled.flops(program, operation)])
    return total


def profile(batch: int, repeats: int) -> dict[str, Any]:
    """Measure everything; times are in ms, of a device's batch, and rates in GFLOP/s."""
    shipped, _ = load(SHIPPED)
    victim = replace(shipped, **SIZES["12M"])
    params = jax.jit(victim.init)(jax.random.key(0))
    attack, text = programs(victim, params, batch, STEPS)
    twice, _ = programs(victim, params, batch, 2 * STEPS)
    works = {"attack": attack, "twice": twice, "matmul": matmul()}
    for work in works.values():
        seconds(work)
    taken = np.array([[seconds(work) for work in works.values()] for _ in range(repeats)])
    (attack_s, twice_s, matmul_s), (attack_cpu, twice_cpu, matmul_cpu) = np.median(taken, axis=0).T
    found = spent(compiled.read(text), traced(attack, repeats, text.split()[1].rstrip(",")))

    loop, once = plain(victim, params)
    whole, product = batch * (once + 2 * STEPS * sum(loop.values())), 2 * SIDE**3
    names = [f"encoder {stage} {kind}" for stage in range(len(victim.depths)) for kind in KINDS.values()]
    layers = [
        _row(name, batch * loop.get(name, 0.0), {way: found[name, way] / STEPS for way in ("forward", "gradient")})
        for name in (*names, *[name for name in loop if name not in names], REST)
    ]
    iteration = sum(row["forward_ms"] + row["gradient_ms"] for row in layers)
    for row in layers:
        row["share"] = (row["forward_ms"] + row["gradient_ms"]) / iteration
    return {
        "devices": len(DEVICES),
        "batch": batch,
        "layers": layers,
        "iteration_ms": iteration,
        "iteration_untraced_ms": 1e3 * (twice_s - attack_s) / STEPS,
        "iteration_processor_ms": 1e3 * (twice_cpu - attack_cpu) / STEPS,
        "once_ms": 1e3 * found[ONCE, "forward"][0],
        "attack_ms": 1e3 * attack_s,
        "attack_processor_ms": 1e3 * attack_cpu,
        "plain_gflop": whole / 1e9,
        "plain_rate": whole / attack_s / 1e9,
        "done_rate": sum(done for _, done in found.values()) / attack_s / 1e9,
        "matmul_rate": product / matmul_s / 1e9,
        "fraction": whole / product * float(np.median(taken[:, 2, 0] / taken[:, 0, 0])),
        "fraction_processor": whole / product * matmul_cpu / attack_cpu,
        "load": os.getloadavg()[0],
    }


def _row(name: str, flops: float, measured: dict[str, np.ndarray]) -> dict[str, Any]:
    row: dict[str, Any] = {"layer": name, "plain_mflop": flops / 1e6}
    for way, (taken, done) in measured.items():
        rates = {"plain": flops / taken / 1e9, "done": done / taken / 1e9} if taken else {"plain": 0.0, "done": 0.0}
        row |= {f"{way}_ms": 1e3 * taken} | {f"{way}_{key}": rate for key, rate in rates.items()}
    return row


def table(figures: dict[str, Any]) -> Table:
    """Return the layers as a table."""
    columns = {"plain_mflop": ("plain\nMFLOP", ".1f")}
    for way, title in (("forward", "forward"), ("gradient", "input\ngradient")):
        columns |= {
            f"{way}_ms": (f"{title} ms", ".3f"),
            f"{way}_plain": ("plain\nGFLOP/s", ".0f"),
            f"{way}_done": ("done\nGFLOP/s", ".0f"),
        }
    columns["share"] = "share", ".1%"
    result = Table(title=f"one iteration of {figures['batch']} frames a device, on {figures['devices']} CPU devices")
    result.add_column("layer")
    for title, _ in columns.values():
        result.add_column(title, justify="right")
    for row in figures["layers"]:
        cells = (format(row[key], style) if row[key] else "" for key, (_, style) in columns.items())
        result.add_row(row["layer"], *cells)
    return result


def summary(figures: dict[str, Any]) -> str:
    """Return what the table comes to."""
    together = STEPS * figures["iteration_ms"] + figures["once_ms"]
    return (
        "iteration: layers {iteration_ms:.2f} ms, "
        "in one piece {iteration_untraced_ms:.2f} ms, processor {iteration_processor_ms:.2f} ms\n"
        f"attack: {STEPS} iterations and {{once_ms:.2f}} ms once a frame are {together:.1f} ms, "
        "in one piece {attack_ms:.1f} ms, processor {attack_processor_ms:.1f} ms\n"
        "plain algorithm: {plain_gflop:.2f} GFLOP at {plain_rate:.0f} GFLOP/s; done: {done_rate:.0f} GFLOP/s; "
        "matrix product: {matmul_rate:.0f} GFLOP/s\n"
        "plain rate over the matrix product's: {fraction:.0%} by the clock, {fraction_processor:.0%} by processor\n"
        "load of the machine: {load:.1f}"
    ).format(**figures)


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--batch", type=int, default=4, metavar="N", help="frames a device (default 4)")
    parser.add_argument("--quick", action="store_true", help="3 repeats instead of 15")
    options = parser.parse_args()
    figures = profile(options.batch, 3 if options.quick else 15)
    console = Console(width=120)
    console.print(table(figures))
    console.print(summary(figures), highlight=False)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
