"""States of dm_control's tasks to compare in: those of random control, and of good control without a trained agent.

`python -m benchmarks.control [--tasks T ...] [--seed S]` prints the mean reward a step of both.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import jax
import mujoco
import numpy as np

from wmjax.envs import TASKS, EnvSpec
from wmjax.envs.base import GEOMETRY
from wmjax.render.scene import Poses, poses

with mock.patch.dict(os.environ, MUJOCO_GL="disabled"):  # dm_control would look for a display when imported
    from dm_control import suite

SECONDS = 5.0
"""Of an episode."""
KNOT, KNOTS = 0.1, 10
"""Seconds for which a plan holds an action, and its number of actions."""
PLANS, NOISE = 40, (0.3, 1.0)
"""Plans that are tried at a time, and by how much their actions, in [-1, 1], differ from those of the last one."""


def state_of(physics: Any) -> dict[str, np.ndarray]:
    """Return a copy of the state of dm_control's `physics`, by the argument names of `state_at`."""
    values = {name: getattr(physics.model, name) for name in GEOMETRY}
    return {
        name: np.array(value)
        for name, value in ({"qpos": physics.data.qpos, "qvel": physics.data.qvel} | values).items()
    }


def stacked(states: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return N states as arrays [N, ...]."""
    return {name: np.stack([state[name] for state in states]) for name in states[0]}


@dataclass(frozen=True)
class Visits:
    """N states of a task, in order of episodes."""

    state: dict[str, np.ndarray]  #: [N, ...] each: the arguments of `state_at`
    poses: Poses  #: [N, ...]
    reward: float  #: mean of all steps of the episodes


def visit(spec: EnvSpec, kind: str, count: int, seed: int) -> Visits:
    """Return `count` states of control of a kind of `KINDS`, at random times of episodes of 5 seconds."""
    env = suite.load(spec.domain, spec.name, task_kwargs={"random": seed})
    rng, (act, share) = np.random.default_rng(seed), KINDS[kind]
    physics, steps = env.physics, round(SECONDS / env.control_timestep())
    states, seen, rewards = [], [], []
    for start in range(0, count, share):
        env.reset()
        times = rng.choice(steps, min(share, count - start), replace=False)
        for step, action in zip(range(steps), act(env, spec, rng), strict=False):
            if step in times:
                states.append(state_of(physics))
                seen.append(poses(physics.data, physics.model))
            rewards.append(env.step(action).reward)
    return Visits(stacked(states), jax.tree.map(lambda *leaves: np.stack(leaves), *seen), float(np.mean(rewards)))


def _randomly(env: Any, spec: EnvSpec, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield random actions, held for 1 to 10 steps each."""
    while True:
        action = rng.uniform(-1, 1, spec.action_size)
        yield from [action] * rng.integers(1, 11)


def _planned(env: Any, spec: EnvSpec, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield actions by predictive sampling (arXiv 2212.00541): try changes of the last plan, and follow the best one.

    Between two actions, the state of `env` must have been stepped by the first one.
    """
    model, data, start = env.physics.model.ptr, env.physics.data.ptr, mujoco.MjData(env.physics.model.ptr)
    hold, plan = round(KNOT / env.control_timestep()), np.zeros((KNOTS, spec.action_size))

    def worth(plan: np.ndarray) -> float:
        mujoco.mj_copyData(data, model, start)
        total = 0.0
        for action in plan:
            for _ in range(hold):
                env.task.before_step(action, env.physics)
                env.physics.step(round(env.control_timestep() / env.physics.timestep()))
            total += env.task.get_reward(env.physics) + GUIDES[spec.domain](env.physics)
        return total

    while True:
        plan = np.append(plan[1:], plan[-1:], axis=0)
        change = rng.normal(size=(PLANS, *plan.shape)) * rng.choice(NOISE, (PLANS, 1, 1))
        plans = [plan, *np.clip(plan + change, -1, 1)]
        mujoco.mj_copyData(start, model, data)
        plan = max(plans, key=worth)
        mujoco.mj_copyData(data, model, start)
        yield from [plan[0]] * hold


def _hopper(physics: Any) -> float:
    place, upright = physics.named.data.xpos, float(physics.named.data.xmat["torso", "zz"])
    beside = abs(float(place["torso", "x"] - place["foot", "x"]))
    return 2 * min(float(physics.height()), 0.8) + min(float(place["torso", "z"]), 1.0) + upright - 2 * beside


def _finger(physics: Any) -> float:
    return -5 * max(float(physics.dist_to_target()), 0.0) - float(np.linalg.norm(physics.tip_position()))


GUIDES: dict[str, Callable[[Any], float]] = {
    "ball_in_cup": lambda physics: -3 * float(np.linalg.norm(physics.ball_to_target())),
    "cartpole": lambda physics: float(physics.pole_angle_cosine()[0] - 0.5 * physics.cart_position() ** 2),
    "finger": _finger,
    "hopper": _hopper,
    "reacher": lambda physics: -3 * float(physics.finger_to_target_dist()),
    "walker": lambda physics: 0.2 * float(physics.torso_upright()),
}
"""By domain, what is added to the reward of a plan: it leads to where there is reward."""
Control = Callable[[Any, EnvSpec, np.random.Generator], Iterator[np.ndarray]]
KINDS: dict[str, tuple[Control, int]] = {"random": (_randomly, 1), "control": (_planned, 10)}
"""How actions are chosen, and how many states are taken from an episode."""


def main() -> None:
    """Print a table of mean rewards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), metavar="T")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(f"{'task':>24}{'random':>12}{'control':>12}{'CPU s':>12}")
    for task in args.tasks:
        start = time.process_time()
        rewards = [visit(TASKS[task], kind, 50, args.seed).reward for kind in KINDS]
        print(f"{task:>24}{rewards[0]:>12.3f}{rewards[1]:>12.3f}{time.process_time() - start:>12.1f}", flush=True)


if __name__ == "__main__":
    main()
