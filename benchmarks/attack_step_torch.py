"""The PyTorch side of `attack_step.py`: an ordinary PGD loop over the 12M agent, eager and compiled."""

import os
import time
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor

from benchmarks.frames import ALPHA, EPS, STEPS, random_frames
from benchmarks.torch_agent import Sizes, checkpoint_state_dict, draw, random_agent
from benchmarks.torch_attacks import Step, pgd, vsa

torch.set_num_threads(len(os.sched_getaffinity(0)))
SIZES = Sizes()
AGENT = random_agent(SIZES)


def save_checkpoint(path: str) -> None:
    """Write the agent in the format of a training run's `latest.pt`."""
    torch.save({"agent_state_dict": checkpoint_state_dict(AGENT), "optims_state_dict": {}}, path)


def _begin(stoch: Tensor, deter: Tensor, action: Tensor, image: Tensor, gumbel: Tensor) -> Step:
    """Do what comes once a frame: h_t, the prior and the clean pass."""
    deter, prior = AGENT.predict(stoch, deter, action)
    return Step(deter, prior, gumbel, draw(AGENT.rssm.posterior(deter, AGENT.encoder(image)), gumbel))


@cache
def _functions(mode: str) -> tuple[Callable[..., Step], Callable[..., Tensor]]:
    if mode == "eager":
        return _begin, vsa
    return torch.compile(_begin, dynamic=False), torch.compile(vsa, dynamic=False)


@cache
def _frames(batch: int) -> list[Tensor]:
    sizes = {name: getattr(SIZES, name) for name in ("stoch", "discrete", "deter", "action")}
    frames = random_frames(batch, **sizes)
    return [torch.from_numpy(part) for part in (frames.stoch, frames.deter, frames.action, frames.image, frames.gumbel)]


def _attack(mode: str, batch: int) -> tuple[Step, Tensor, Tensor]:
    begin, loss = _functions(mode)
    frames = _frames(batch)
    with torch.no_grad():
        step = begin(*frames)
    image, values = pgd(loss, AGENT, frames[3], step, eps=EPS, alpha=ALPHA, steps=STEPS)
    return step, image, values[0]


def attack(mode: str, batch: int) -> tuple[float, float]:
    """Attack one batch of frames: wall and processor seconds."""
    _frames(batch)
    wall, cpu = time.perf_counter(), time.process_time()
    _attack(mode, batch)
    return time.perf_counter() - wall, time.process_time() - cpu


def losses(mode: str, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the losses [B] of the clean and of the attacked frames."""
    _, image, first = _attack(mode, batch)
    return first.numpy(), loss_of(image.numpy())


def loss_of(image: np.ndarray) -> np.ndarray:
    """Return the losses [B] of attacked images, from whichever library."""
    with torch.no_grad():
        return vsa(AGENT, torch.from_numpy(image), _begin(*_frames(len(image)))).numpy()
