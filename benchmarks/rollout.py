"""Throughput of episodes on the device and on the host: physics, frames, and agent steps with and without an attack.

    python benchmarks/rollout.py [--task TASK] [--batches 1,16,64,256] [--json FILE]

All is one device worker of a study: a device (of CPUs: one core) and, on the host, one environment process. An agent
step is two environment steps, a frame, and PGD with 10 iterations where it is attacked. Every row has a process of its
own and no compilation cache; `compile s` is what its first call took longer than the next, `peak MiB` its most memory
at a time.
"""

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))  # wmjax where it is not installed, and this folder

from wmjax import runtime

runtime.use_all_cores()

import jax  # noqa: E402
import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

import wmjax  # noqa: E402
from benchmarks.attack_step import batch_sizes  # noqa: E402
from wmjax import attacks, envs, rollout  # noqa: E402

SHIPPED = "dmc_cartpole_balance_r2dreamer_1m"
SIZES: dict[str, dict[str, Any]] = {
    "1M": {},
    "12M": dict(discrete=16, deter=2048, hidden=256, units=256, depths=(32, 48, 64, 64)),
}
"""Where agents differ from the shipped one. Their weights are random, which costs the same."""
WORK = 800
"""Agent steps of a measurement, over all its episodes; of each at least 5 and at most 50."""

Figures = dict[str, float]


def seconds(call: Callable[[], Any], repeats: int = 3) -> tuple[float, float]:
    """Return the wall seconds of a call, and how much longer the first one took."""
    times = []
    for _ in range(1 + repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times[1:]), times[0] - min(times[1:])


def length(batch: int) -> int:
    """Return the agent steps of each of `batch` episodes."""
    return min(max(WORK // batch, 5), 50)


def actions(task: str, batch: int) -> np.ndarray:
    """Return random actions [T, B, A]."""
    shape = length(batch), batch, envs.spec(task).action_size
    return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)


def host_environment(task: str, batch: int) -> Figures:
    """Return environment steps a second without frames, and frames a second with the physics between them."""
    with mock.patch.dict(os.environ, MUJOCO_GL="disabled"):  # dm_control would look for a display when imported
        from dm_control import suite

    spec, moves = envs.spec(task), actions(task, batch)
    world = suite.load(spec.domain, spec.name, task_kwargs={"random": 0})

    def step() -> None:
        world.reset()
        for move in np.repeat(moves[:, 0], spec.action_repeat, axis=0):
            world.step(move)

    def draw() -> None:
        state = env.reset(range(batch))
        for move in moves:
            state = env.step(state, move)

    alone, _ = seconds(step)
    with envs.make(task, "host", batch) as env:
        together, _ = seconds(draw)
    return {"env_steps": spec.action_repeat * len(moves) / alone, "frames": batch * (1 + len(moves)) / together}


def device_environment(task: str, batch: int) -> Figures:
    """Return the same for the device, and the seconds of compilation."""
    from wmjax.envs.device import DeviceEnv, go_on

    env, moves = DeviceEnv(envs.spec(task), batch), actions(task, batch)
    start = env.reset(range(batch))

    @jax.jit
    def step(worlds: Any) -> Any:
        return jax.lax.scan(lambda worlds, move: (go_on(env.world, worlds, move), None), worlds, moves)[0]

    def draw() -> None:
        state = start
        for move in moves:
            state = env.step(state, move)
        jax.block_until_ready(state)

    alone, compiling = seconds(lambda: jax.block_until_ready(step(start.worlds)))
    together, more = seconds(draw)
    done = batch * len(moves)
    return {
        "env_steps": envs.spec(task).action_repeat * done / alone,
        "frames": done / together,
        "compile": compiling + more,
    }


def agent(backend: str, size: str, task: str, batch: int) -> Figures:
    """Return clean and attacked agent steps a second, seconds of compilation, and MiB of memory."""
    shipped, _ = wmjax.load(SHIPPED)
    victim = replace(shipped, action_size=envs.spec(task).action_size, **SIZES[size])
    params = jax.device_put(jax.jit(victim.init)(jax.random.key(0)), jax.local_devices()[0])
    attack = attacks.Attack(attacks.optimizer("pgd", 10))
    keys = jax.random.split(jax.random.key(0), (2, batch))
    drive: Callable[..., Any] = {"host": rollout.host, "device": rollout.device}[backend]
    with envs.make(task, backend, batch) as env:
        play = partial(
            drive, victim, params, env, attack, attacks.threat(["vsa"] * batch, [8 / 255] * batch),
            seeds=range(batch), keys=keys[0], attack_keys=keys[1],
        )  # fmt: skip
        full = np.ones(length(batch), bool)
        attacked, compiling = seconds(lambda: play(full), repeats=2)
        clean, _ = seconds(lambda: play(~full), repeats=2)
    peak = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
    memory = jax.local_devices()[0].memory_stats() or {}  # CPUs have none of their own
    return {
        "clean": full.size * batch / clean,
        "attacked": full.size * batch / attacked,
        "compile": compiling,
        "peak": peak,
        "accelerator_peak": memory.get("peak_bytes_in_use", 0) / 2**20,
    }


def fresh(function: Callable[..., Figures], *args: Any) -> Figures:
    """Call `function` in a new process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(function, *args).result()


def show(title: str, names: dict[str, str], rows: list[dict[str, Any]]) -> None:
    """Print rows as a table of the columns in `names`."""
    table = Table(title=title)
    for heading in names.values():
        table.add_column(heading, justify="right")
    for row in rows:
        values = (row.get(name, "") for name in names)
        table.add_row(*(f"{value:,.1f}" if isinstance(value, float) else str(value) for value in values))
    Console(width=120).print(table)


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--task", choices=list(envs.TASKS), default="dmc_cartpole_balance")
    parser.add_argument("--batches", type=batch_sizes, default=[1, 16, 64, 256], help="comma-separated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    task, device = options.task, jax.local_devices()[0].device_kind
    worlds, agents = [], []
    for batch in options.batches:
        for backend, function in (("host", host_environment), ("device", device_environment)):
            worlds.append({"backend": backend, "batch": batch} | fresh(function, task, batch))
    names = {"env_steps": "env steps/s", "frames": "frames/s", "compile": "compile s"}
    show(f"{task}, one device worker, {device}", {"backend": "backend", "batch": "batch"} | names, worlds)
    for size in SIZES:
        for batch in options.batches:
            for backend in ("host", "device"):
                row = {"agent": size, "backend": backend, "batch": batch}
                agents.append(row | fresh(agent, backend, size, task, batch))
    names = {"clean": "clean steps/s", "attacked": "attacked steps/s", "compile": "compile s", "peak": "peak MiB"}
    names |= {"accelerator_peak": "accelerator MiB"} if agents[0]["accelerator_peak"] else {}
    show("with an agent", {name: name for name in ("agent", "backend", "batch")} | names, agents)
    if options.json:
        options.json.write_text(
            json.dumps({"task": task, "device": device, "environment": worlds, "agent": agents}), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
