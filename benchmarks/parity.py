"""How far episodes on the device are from those of dm_control in C: starts, physics, rewards, pixels and returns.

`python -m benchmarks.parity [--tasks T ...] [--json FILE]`. Every table has a row a task.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats

from benchmarks import control, pixels
from benchmarks.returns import return_columns
from wmjax import envs, runtime
from wmjax.envs import dmc
from wmjax.envs.base import GEOMETRY
from wmjax.envs.dmc import physics

WORLDS = 16
RESETS = 500
STATES = 50
MARKS = (2, 10, 50, 100)
"""Environment steps after which trajectories are compared; an agent step has two."""


@dataclass(frozen=True)
class Truth:
    """B episodes of dm_control, N environment steps long, under random controls that change every second step."""

    actions: np.ndarray  #: [N / 2, B, A]
    qpos: np.ndarray  #: [N + 1, B, nq]
    qvel: np.ndarray  #: [N + 1, B, nv]
    reward: np.ndarray  #: [N, B]
    geometry: dict[str, np.ndarray]  #: [B, ngeom or nsite, 3]


def load(task: str, seed: int = 0) -> Any:
    """Return dm_control's environment of a task."""
    spec = envs.spec(task)
    return control.suite.load(spec.domain, spec.name, task_kwargs={"random": seed})


def starts(task: str, count: int) -> dict[str, np.ndarray]:
    """Return the states of `count` resets in dm_control: qpos, qvel and the geometry, [count, ...] each."""
    env, states = load(task), []
    for _ in range(count):
        env.reset()
        states.append(control.state_of(env.physics))
    return control.stacked(states)


def play(task: str, start: dict[str, np.ndarray], actions: np.ndarray) -> Truth:
    """Return dm_control's episodes from given starts under the actions [T, B, A]."""
    env, repeat = load(task), envs.spec(task).action_repeat
    model, data = env.physics.model, env.physics.data
    columns = []
    for world in range(actions.shape[1]):
        env.reset()
        for name in GEOMETRY:
            getattr(model, name)[:] = start[name][world]
        with env.physics.reset_context():
            data.qpos[:], data.qvel[:] = start["qpos"][world], start["qvel"][world]
        qpos, qvel, reward = [data.qpos.copy()], [data.qvel.copy()], []
        for action in np.repeat(actions[:, world], repeat, axis=0):
            reward.append(env.step(action).reward)
            qpos.append(data.qpos.copy())
            qvel.append(data.qvel.copy())
        columns.append((qpos, qvel, reward))
    qpos, qvel, reward = (np.stack(column, axis=1) for column in map(list, zip(*columns, strict=True)))
    return Truth(actions, qpos, qvel, reward, {name: start[name][: actions.shape[1]] for name in GEOMETRY})


def truth(task: str, worlds: int = WORLDS, steps: int = MARKS[-1], noise: float = 0.0) -> Truth:
    """Return episodes of dm_control from its own starts, of which `noise` perturbs qpos."""
    start = starts(task, worlds)
    spec, rng = envs.spec(task), np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (steps // spec.action_repeat, worlds, spec.action_size)).astype(np.float32)
    start["qpos"] = start["qpos"] + noise * rng.standard_normal(start["qpos"].shape)
    return play(task, start, actions)


@partial(jax.jit, static_argnums=0)
def reset(env: dmc.DmcEnv, params: dmc.Params, keys: jax.Array) -> dmc.EnvState:
    """Start B episodes, from the keys [B]."""
    return jax.vmap(env.reset, in_axes=(None, 0))(params, keys)


@partial(jax.jit, static_argnums=0)
def step(env: dmc.DmcEnv, state: dmc.EnvState, action: jax.Array) -> dmc.EnvState:
    """Step B episodes with `action` [B, A]."""
    return jax.vmap(env.step)(state, action)


@partial(jax.jit, static_argnums=0)
def place(env: dmc.DmcEnv, params: dmc.Params, state: dict[str, jax.Array]) -> dmc.EnvState:
    """Start B episodes in given states, a dict of the arguments of `state_at`, [B, ...] each."""
    return jax.vmap(lambda state: env.state_at(params, **state))(state)


@partial(jax.jit, static_argnums=0)
def rewards(env: dmc.DmcEnv, params: dmc.Params, state: dict[str, jax.Array], action: jax.Array) -> jax.Array:
    """Return the rewards [B] of the states to which the actions [B, A] have just led."""

    def one(state: dict[str, jax.Array], action: jax.Array) -> jax.Array:
        placed = env.state_at(params, **state)
        data = physics.observe(env.physics, placed.geometry, placed.data.motion)
        return env.reward(env.physics, placed.geometry, placed.params, data.replace(ctrl=action))

    return jax.vmap(one)(state, action)


def reset_columns(task: str) -> dict[str, float]:
    """Compare two times 500 starts: the smallest p of the two-sample Kolmogorov-Smirnov tests, and their number.

    A coordinate that does not vary in C must have C's value on the device; `reset_constants` is its largest error.
    """
    env, params = dmc.load(task)
    keys = jax.random.split(jax.random.key(0), RESETS)
    state = reset(env, params, keys)
    ours = {"qpos": state.data.qpos, "qvel": state.data.qvel} | vars(state.geometry)
    p_values, constants = [], 0.0
    for name, values in starts(task, RESETS).items():
        theirs, mine = values.reshape(RESETS, -1).T, np.asarray(ours[name], np.float64).reshape(RESETS, -1).T
        for a, b in zip(theirs, mine, strict=True):
            if np.ptp(a) == 0:
                constants = max(constants, float(np.abs(a - b).max()))
            else:
                p_values.append(stats.ks_2samp(a, b).pvalue)
    return {"reset_p": min(p_values), "reset_tests": len(p_values), "reset_constants": constants}


def physics_columns(task: str) -> dict[str, float]:
    """Compare trajectories: the largest error of a world's qpos and qvel, its median and maximum over the worlds.

    The column `c_qpos` is C's error against itself, started with a perturbation of 1e-6.
    """
    env, params = dmc.load(task)
    exact, other = truth(task), truth(task, noise=1e-6)
    start = {"qpos": exact.qpos[0], "qvel": exact.qvel[0]} | exact.geometry
    states = [place(env, params, start)]
    for action in exact.actions:
        states.append(step(env, states[-1], action))
    row: dict[str, float] = {"nan": int(states[-1].nan.sum())}
    for mark in MARKS:
        data = states[mark // envs.spec(task).action_repeat].data
        for name in ("qpos", "qvel"):
            error = np.abs(np.asarray(getattr(data, name)) - getattr(exact, name)[mark]).max(-1)
            row |= {f"{name}_{mark}": float(np.median(error)), f"{name}_{mark}_max": float(error.max())}
        error = np.abs(other.qpos[mark] - exact.qpos[mark]).max(-1)
        row |= {f"c_qpos_{mark}": float(np.median(error)), f"c_qpos_{mark}_max": float(error.max())}
    return row


def reward_columns(task: str) -> dict[str, float]:
    """Compare the rewards of 1600 states of C's trajectories: largest error, and mean reward in C."""
    env, params = dmc.load(task)
    exact = truth(task)
    count = exact.reward.size
    start = {"qpos": exact.qpos[1:].reshape(count, -1), "qvel": exact.qvel[1:].reshape(count, -1)}
    start |= {name: np.tile(values, (len(exact.reward), 1, 1)) for name, values in exact.geometry.items()}
    actions = np.repeat(exact.actions, envs.spec(task).action_repeat, axis=0).reshape(count, -1)
    error = np.abs(np.asarray(rewards(env, params, start, actions)) - exact.reward.ravel())
    return {"reward_error": float(error.max()), "reward": float(exact.reward.mean())}


def pixel_columns(task: str) -> dict[str, float]:
    """Compare frames in 50 states each of random and of good control: errors of 255, and what the control earns."""
    row: dict[str, float] = {}
    for kind in control.KINDS:
        visits = control.visit(envs.spec(task), kind, STATES, seed=91)
        figures = pixels.errors(*pixels.frames(envs.spec(task), visits)) | {"reward": visits.reward}
        row |= {f"pixel_{name}_{kind}": value for name, value in figures.items()}
    return row


Columns = Callable[[str], dict[str, float]]
TABLES: dict[str, tuple[Columns, tuple[str, ...]]] = {
    "500 starts: smallest p of the Kolmogorov-Smirnov tests, their number, error of what does not vary": (
        reset_columns,
        ("reset_p", "reset_tests", "reset_constants"),
    ),
    "joints after N environment steps: median and largest error, and C's against itself nudged by 1e-6": (
        physics_columns,
        (*(f"qpos_{mark}" for mark in MARKS), "qpos_100_max", "c_qpos_100", "c_qpos_100_max", "qvel_100", "nan"),
    ),
    "rewards of the same states: largest error, and their mean": (reward_columns, ("reward_error", "reward")),
    "pixels, of 255, in states of random and of good control, and the mean reward of that": (
        pixel_columns,
        tuple(f"pixel_{name}_{kind}" for kind in control.KINDS for name in ("mae", "p95", "p99", "max", "reward")),
    ),
    "clean returns of 20 episodes: the device's own starts (device), or the host's (paired)": (
        return_columns,
        tuple(f"return_{name}" for name in ("host", "device", "device_more", "device_se"))
        + tuple(f"return_{name}" for name in ("paired", "paired_more", "paired_se")),
    ),
}
"""By title: what gives the figures, and those that there is room for; the JSON file has every one."""


def main() -> None:
    """Print the tables, and write the figures where `--json` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=sorted(envs.TASKS), default=sorted(envs.TASKS), metavar="TASK")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    runtime.use_compilation_cache()
    figures: dict[str, dict[str, float]] = {task: {} for task in args.tasks}
    for title, (columns, shown) in TABLES.items():
        table = Table("task", *(name.replace("_", " ") for name in shown), title=title)
        for task, row in figures.items():
            row |= (found := columns(task))
            if found:
                table.add_row(task.removeprefix("dmc_"), *(f"{found[name]:.3g}" for name in shown))
        Console(width=160).print(table)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
