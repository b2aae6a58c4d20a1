"""The JAX renderer against MuJoCo's own: differences of uint8 pixels over states of random control, cost and speed.

`python -m benchmarks.pixels [--tasks T ...] [--states N] [--seed S] [--out DIR] [--json FILE]`. With `--out`, pictures
of the typical and the two worst states of each task are written: OpenGL | JAX | 4 times their difference.
"""

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import imageio.v3 as imageio
import jax
import numpy as np

import wmjax
from wmjax.envs import TASKS, EnvSpec
from wmjax.render.frame import frame
from wmjax.render.scene import Poses, poses, scene

with mock.patch.dict(os.environ, MUJOCO_GL="disabled"):  # dm_control would look for a display when imported
    from dm_control import suite

GEOMETRY = ("geom_size", "geom_pos", "site_size", "site_pos")
COLUMNS = ("task", "MAE", "p95", "p99", "max", "MFLOP", "compile s", "frames/CPU s", "GL frames/CPU s")


def states(spec: EnvSpec, count: int, seed: int) -> tuple[dict[str, np.ndarray], Poses]:
    """Return `count` physics states, by the argument names of `state_at`, and the poses in them.

    Each is reached by up to 100 steps of random actions, held for 1 to 10 steps, from a reset.
    """
    env = suite.load(spec.domain, spec.name, task_kwargs={"random": seed})
    physics, random, records, seen = env.physics, np.random.default_rng(seed), [], []
    for _ in range(count):
        env.reset()
        while random.uniform() > 0.1:
            action = random.uniform(-1, 1, spec.action_size)
            for _ in range(random.integers(1, 11)):
                env.step(action)
        state = {"qpos": physics.data.qpos, "qvel": physics.data.qvel}
        state |= {name: getattr(physics.model, name) for name in GEOMETRY}
        records.append({name: np.array(value) for name, value in state.items()})
        seen.append(poses(physics.data, physics.model))
    stacked = {name: np.stack([record[name] for record in records]) for name in records[0]}
    return stacked, jax.tree.map(lambda *leaves: np.stack(leaves), *seen)


def gl_rate(spec: EnvSpec, frames: int = 60) -> float:
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
    for _ in range(frames):
        renderer.render(physics.model.ptr, physics.data.ptr)
    return frames / (time.process_time() - start)


def measure(spec: EnvSpec, count: int, seed: int, batch: int, out: Path | None) -> dict[str, Any]:
    """Return the figures of one task."""
    at, seen = states(spec, count, seed)
    with wmjax.envs.make(spec.task, batch=count) as env:
        truth = env.image(env.state_at(**at)).astype(int)
    drawn = scene(suite.load(spec.domain, spec.name).physics.model.ptr, spec)
    draw = jax.jit(lambda seen: jax.lax.map(lambda one: frame(drawn, one), seen, batch_size=batch))
    ours = np.asarray(draw(seen)).astype(int)
    error = np.abs(ours - truth)
    some = jax.tree.map(lambda leaf: leaf[np.arange(batch) % count], seen)
    start = time.perf_counter()
    compiled = jax.jit(jax.vmap(lambda one: frame(drawn, one))).lower(some).compile()
    compile_time = time.perf_counter() - start
    start = time.process_time()
    for _ in range(5):
        jax.block_until_ready(compiled(some))
    rate = 5 * batch / (time.process_time() - start)
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        gl = process.submit(gl_rate, spec).result()
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        order = np.argsort(error.mean((1, 2, 3)))
        rows = [
            np.concatenate([truth[i], ours[i], np.clip(128 + 4 * (ours[i] - truth[i]), 0, 255)], axis=1)
            for i in (order[count // 2], order[-2], order[-1])
        ]
        picture = np.concatenate(rows).astype(np.uint8).repeat(4, 0).repeat(4, 1)
        imageio.imwrite(out / f"{spec.task}.png", picture)
    flops = compiled.cost_analysis()["flops"] / batch / 1e6
    percentiles = (float(np.percentile(error, p)) for p in (95, 99, 100))
    values = (spec.task, float(error.mean()), *percentiles, flops, compile_time, rate, gl)
    return dict(zip(COLUMNS, values, strict=True))


def main() -> None:
    """Print the table, and write figures and pictures where the options say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), metavar="T")
    parser.add_argument("--states", type=int, default=50)
    parser.add_argument("--seed", type=int, default=2025)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--out", type=Path, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    rows = []
    print("".join(f"{name:>{24 if i == 0 else 16}}" for i, name in enumerate(COLUMNS)))
    for task in args.tasks:
        rows.append(measure(TASKS[task], args.states, args.seed, args.batch, args.out))
        cells = (f"{value:>16.3f}" if isinstance(value, float) else f"{value:>24}" for value in rows[-1].values())
        print("".join(cells), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
