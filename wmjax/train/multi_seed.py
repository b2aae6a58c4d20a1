"""Several seeds at once: one program for all of them, spread over this machine's devices."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from wmjax import runtime
from wmjax.agents.base import Params
from wmjax.train.collect import Task
from wmjax.train.learner import Metrics
from wmjax.train.trainer import Plan, Training, rounds, start

_SEEDS = PartitionSpec("seeds")


def devices(seeds: int) -> Mesh:
    """Return the devices that train so many seeds: the most that share them equally."""
    found = runtime.local_devices()
    number = max(n for n in range(1, len(found) + 1) if seeds % n == 0)
    return Mesh(np.array(found[:number]), tuple(_SEEDS))


def placed(states: Training, mesh: Mesh) -> Training:
    """Put states [S, ...] where they are trained, and use them up.

    Those that a program returns, and those that were read from disk, may say in other words that they are there
    already: that would compile the next call again.
    """
    return jax.device_put(states, NamedSharding(mesh, _SEEDS), donate=True)


@partial(jax.jit, static_argnums=(0, 1))
def begin(plan: Plan, mesh: Mesh, task: Task, keys: jax.Array) -> Training:
    """Return the states [S, ...] that the seeds' `keys` [S] begin with."""
    return _over_seeds(partial(start, plan), mesh, task, keys)


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=4)
def go_on(plan: Plan, mesh: Mesh, length: int, task: Task, states: Training) -> tuple[Training, Metrics]:
    """Return the states [S, ...] after `length` rounds, and what was logged [S]; the old states are used up."""
    return _over_seeds(partial(rounds, plan, number=length), mesh, task, states)


def _over_seeds(function: Callable[[Task, Any], Any], mesh: Mesh, task: Task, states: Any) -> Any:
    """Map `function` over the axis of seeds; where a device has a single one that is no batch, which is faster."""

    def local(task: Task, states: Any) -> Any:
        if len(jax.tree.leaves(states)[0]) > 1:
            return jax.vmap(partial(function, task))(states)
        return jax.tree.map(lambda x: x[None], function(task, jax.tree.map(lambda x: x[0], states)))

    spread = jax.shard_map(local, mesh=mesh, in_specs=(PartitionSpec(), _SEEDS), out_specs=_SEEDS, check_vma=False)
    return spread(task, states)


def agents(states: Training) -> list[Params]:
    """Return the weights of every seed's agent."""
    return [jax.tree.map(lambda x, i=i: x[i], states.learner.params) for i in range(len(states.learner.updates))]
