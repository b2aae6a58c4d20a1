"""The optimizer of the training update in plain PyTorch: adaptive gradient clipping, then LaProp with a warm-up.

LaProp: arXiv 2002.04839; clipping by the norm of the weight: arXiv 2102.06171, here with one norm for a whole tensor.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.torch_agent import Agent

LEARNING_RATE, WARM_UP, FROZEN_PROTOTYPES = 4e-5, 1000, 10_000
BETAS, EPS, MOST, SMALLEST = (0.9, 0.999), 1e-20, 0.3, 1e-3
UNTRAINED = ("_slow_value.", "_ema_encoder.", "_ema_obs_proj.")


class Optimizer(NamedTuple):
    """The trained parameters by name, and what LaProp carries from update to update; all are changed in place."""

    weights: dict[str, Tensor]
    mu: list[Tensor]  #: averages of the normalised gradient times the learning rate
    nu: list[Tensor]  #: averages of the squared gradient
    updates: Tensor  #: [] done so far
    lr_1: Tensor  #: [] the average of the learning rate, which corrects `mu`
    lr_2: Tensor  #: [] the average of one, which corrects `nu`


def begin(agent: Agent) -> Optimizer:
    """The optimizer's first state; from now on only the trained parameters of `agent` keep a gradient."""
    named = dict(agent.requires_grad_(False).named_parameters())
    weights = {name: weight.requires_grad_() for name, weight in named.items() if not name.startswith(UNTRAINED)}
    mu, nu = ([torch.zeros_like(weight) for weight in weights.values()] for _ in range(2))
    return Optimizer(weights, mu, nu, *torch.zeros(3).unbind())


def clipped(weights: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
    """AGC: gradients whose norm is at most MOST times that of their tensor."""
    size, grown = (torch.stack(torch._foreach_norm(tensors)) for tensors in (weights, grads))
    scale = 1 / (grown / (MOST * size.clamp(min=SMALLEST))).clamp(min=1)
    return list(torch._foreach_mul(grads, scale.unbind()))


def laprop(optimizer: Optimizer, grads: list[Tensor], lr: Tensor) -> None:
    """Move the weights by one step of LaProp at a learning rate []."""
    weights, mu, nu, updates, lr_1, lr_2 = optimizer
    torch._foreach_mul_(nu, BETAS[1])
    torch._foreach_addcmul_(nu, grads, grads, 1 - BETAS[1])
    lr_1.lerp_(lr, 1 - BETAS[0])
    lr_2.lerp_(torch.ones(()), 1 - BETAS[1])
    size = torch._foreach_sqrt(torch._foreach_div(nu, lr_2))
    torch._foreach_add_(size, EPS)
    torch._foreach_lerp_(mu, torch._foreach_mul(torch._foreach_div(grads, size), lr), 1 - BETAS[0])
    torch._foreach_sub_(list(weights.values()), torch._foreach_mul(mu, lr / lr_1))
    updates.add_(1)


def step(optimizer: Optimizer, grads: list[Tensor]) -> None:
    """Move the weights by one step of the optimizer, with its warm-up; prototypes wait."""
    named = dict(zip(optimizer.weights, grads, strict=True))
    if "_prototypes" in named:
        named["_prototypes"] = named["_prototypes"] * (optimizer.updates + 1 >= FROZEN_PROTOTYPES)
    lr = LEARNING_RATE * ((optimizer.updates + 1) / WARM_UP).clamp(max=1)
    laprop(optimizer, clipped(list(optimizer.weights.values()), list(named.values())), lr)
