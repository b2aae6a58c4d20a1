"""The PyTorch side of `train.py`: whole training updates, eager and compiled, one after the other on all cores."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# Threads that wait would spin: on a machine where anything else runs, an update then takes ten times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

from benchmarks import torch_optimizer, torch_training
from benchmarks.torch_agent import Agent, Sizes, checkpoint_state_dict, random_agent
from benchmarks.torch_optimizer import Optimizer
from benchmarks.torch_training import Batch, Noise, draw_noise, update

torch.set_num_threads(len(os.sched_getaffinity(0)))
# As XLA does: where a random critic's gradients are denormal numbers, an update takes ten times as long without.
torch.set_flush_denormal(True)


@dataclass
class Training:
    """An agent in training, with the batches of a timed run."""

    agent: Agent
    optimizer: Optimizer
    batches: list[Batch]
    compiled: dict[str, Callable] = field(default_factory=dict)  #: what `update` takes


_training: list[Training] = []


def begin(sizes: dict[str, Any], sequences: dict[str, np.ndarray], path: str) -> None:
    """Start with a random agent, and write it in the format of a training run's `latest.pt`."""
    torch._dynamo.reset()
    agent = random_agent(Sizes(**sizes))
    torch.save({"agent_state_dict": checkpoint_state_dict(agent), "optims_state_dict": {}}, path)
    updates = zip(*map(torch.from_numpy, (sequences[name] for name in Batch._fields)), strict=True)
    _training[:] = [Training(agent, torch_optimizer.begin(agent), [Batch(*parts) for parts in updates])]


def losses(noise: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the loss terms of the first update, with the noise that the other library drew."""
    now = _training[0]
    given = Noise(**{name: torch.from_numpy(part) for name, part in noise.items()})
    return {name: term.item() for name, term in update(now.agent, now.optimizer, now.batches[0], given).items()}


def compile_update() -> float:
    """Compile losses, gradient and step: the seconds it took."""
    now, begun = _training[0], time.perf_counter()
    now.compiled = {
        "weighted": torch.compile(torch_training.weighted, dynamic=False),
        "step": torch.compile(torch_optimizer.step, dynamic=False),
    }
    run("compile")
    return time.perf_counter() - begun


def run(mode: str) -> tuple[float, float]:
    """Do the updates of all batches: wall and processor seconds."""
    now = _training[0]
    wall, cpu = time.perf_counter(), time.process_time()
    for batch in now.batches:
        noise = draw_noise(now.agent.sizes, *batch.reward.shape)
        update(now.agent, now.optimizer, batch, noise, **(now.compiled if mode == "compile" else {}))
    return time.perf_counter() - wall, time.process_time() - cpu
