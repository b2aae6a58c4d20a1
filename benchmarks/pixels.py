"""The JAX renderer against MuJoCo's own: differences of uint8 pixels in states of random and good control, and speed.

`python -m benchmarks.pixels [--tasks T ...] [--states N] [--seed S] [--out DIR] [--json FILE]`. With `--out`, pictures
of the typical and the two worst states of each task are written: OpenGL | JAX | 4 times their difference.
"""

import argparse
import functools
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")


import jax
import numpy as np
from PIL import Image

import wmjax
from benchmarks.control import KINDS, Visits, suite, visit
from wmjax.envs import TASKS, EnvSpec
from wmjax.render.frame import frame
from wmjax.render.scene import Poses, scene


@functools.cache
def program(spec: EnvSpec) -> Any:
    """Return the jitted function from poses [B, ...] to frames [B, H, W, 3] of a task."""
    model = suite.load(spec.domain, spec.name).physics.model.ptr
    drawn = scene(model, size=spec.image_size, camera=spec.camera)
    return jax.jit(jax.vmap(lambda seen: frame(drawn, seen)))


def frames(spec: EnvSpec, visits: Visits, batch: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Return the frames [N, H, W, 3], uint8, of N states: MuJoCo's and ours."""
    count = len(visits.state["qpos"])
    with wmjax.envs.make(spec.task, batch=count) as env:
        truth = env.image(env.state_at(**visits.state))
    rows = np.arange(-(-count // batch) * batch) % count
    drawn = [program(spec)(_some(visits, rows[i : i + batch])) for i in range(0, count, batch)]
    return truth, np.concatenate(drawn)[:count]


def errors(truth: np.ndarray, ours: np.ndarray) -> dict[str, float]:
    """Return the mean absolute difference of two sets of frames, its percentiles and its maximum, of 255."""
    error = np.abs(ours.astype(int) - truth)
    figures = {f"p{p}": float(np.percentile(error, p)) for p in (95, 99)}
    return {"mae": float(error.mean())} | figures | {"max": float(error.max())}


def cost(spec: EnvSpec, visits: Visits, batch: int) -> dict[str, float]:
    """Return what a frame costs, drawn in batches, and what MuJoCo's does."""
    some = _some(visits, np.arange(batch) % len(visits.state["qpos"]))
    start = time.perf_counter()
    compiled = program(spec).lower(some).compile()
    row = {"MFLOP": compiled.cost_analysis()["flops"] / batch / 1e6, "compile s": time.perf_counter() - start}
    jax.block_until_ready(compiled(some))
    start = time.process_time()
    for _ in range(5):
        jax.block_until_ready(compiled(some))
    row["frames/CPU s"] = 5 * batch / (time.process_time() - start)
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return row | {"GL frames/CPU s": process.submit(gl_rate, spec).result()}


def gl_rate(spec: EnvSpec, count: int = 60) -> float:
    """Return MuJoCo's frames per CPU second. To be called in a process without another OpenGL context."""
    from wmjax.core.errors import InputError
    from wmjax.render.gl import Renderer, candidates

    physics = suite.load(spec.domain, spec.name).physics
    for backend in candidates(""):
        try:
            renderer = Renderer(physics.model.ptr, backend, size=spec.image_size, camera=spec.camera)
            break
        except InputError:
            continue
    start = time.process_time()
    for _ in range(count):
        renderer.render(physics.model.ptr, physics.data.ptr)
    return count / (time.process_time() - start)


def picture(truth: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """Return the frames of the median and of the two worst of N states, side by side and magnified."""
    difference = ours.astype(int) - truth
    order = np.argsort(np.abs(difference).mean((1, 2, 3)))
    columns = np.concatenate([truth, ours, np.clip(128 + 4 * difference, 0, 255)], axis=2)
    chosen = columns[order[[len(order) // 2, -2, -1]]].astype(np.uint8)
    return np.concatenate(chosen).repeat(4, 0).repeat(4, 1)


def _some(visits: Visits, rows: np.ndarray) -> Poses:
    return jax.tree.map(lambda leaf: leaf[rows], visits.poses)


def count(text: str) -> int:
    """Parse a whole number from 1."""
    if int(text) < 1:
        raise ValueError
    return int(text)


def main() -> None:
    """Print the table, and write figures and pictures where the options say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), metavar="T")
    parser.add_argument("--states", type=count, default=50)
    parser.add_argument("--seed", type=int, default=2025)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--out", type=Path, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for task in args.tasks:
        spec, row = TASKS[task], {"task": task}
        for kind in KINDS:
            visits = visit(spec, kind, args.states, args.seed)
            row |= {} if "MFLOP" in row else cost(spec, visits, args.batch)
            pair = frames(spec, visits, args.batch)
            row |= {f"{name} {kind}": value for name, value in errors(*pair).items()}
            row |= {f"reward {kind}": visits.reward}
            if args.out:
                args.out.mkdir(parents=True, exist_ok=True)
                Image.fromarray(picture(*pair)).save(args.out / f"{task}-{kind}.png")
        if not rows:
            print("".join(f"{name:>{len(name) + 2 if i else 24}}" for i, name in enumerate(row)))
        cells = [f"{value:>{len(name) + 2}.3g}" for name, value in list(row.items())[1:]]
        print(f"{task:>24}" + "".join(cells), flush=True)
        rows.append(row)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
