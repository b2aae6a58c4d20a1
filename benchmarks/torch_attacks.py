"""The five attack losses and the sign-gradient attacks in plain PyTorch, over `benchmarks.torch_agent`."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.torch_agent import Agent, draw, feature, log_probs, two_hot_mean


class Step(NamedTuple):
    """One environment step under attack: all that the losses need besides the image."""

    deter: Tensor  #: [B, D] h_t
    prior: Tensor  #: [B, G, K] raw prior logits
    gumbel: Tensor | None  #: [B, G, K] noise of the adversarial pass, None for the mode
    clean: Tensor  #: [B, G, K] the clean pass's sample; PDA and LDA compare with it


def posterior(agent: Agent, image: Tensor, step: Step) -> tuple[Tensor, Tensor]:
    """Raw logits and sample [B, G, K] of the posterior."""
    logits = agent.rssm.posterior(step.deter, agent.encoder(image))
    return logits, draw(logits, step.gumbel)


def pda(agent: Agent, image: Tensor, step: Step) -> Tensor:
    """KL(clean policy || policy), in the ratio form, which is exactly 0 where they agree."""
    _, stoch = posterior(agent, image, step)
    (mean, std), (clean_mean, clean_std) = (agent.policy(feature(z, step.deter)) for z in (stoch, step.clean))
    ratio = (clean_std / std) ** 2
    return 0.5 * (ratio - 1 - ratio.log() + ((clean_mean - mean) / std) ** 2).sum(-1)


def pea(agent: Agent, image: Tensor, step: Step) -> Tensor:
    """Entropy of the policy."""
    _, std = agent.policy(feature(posterior(agent, image, step)[1], step.deter))
    return (0.5 * math.log(2 * math.pi * math.e) + std.log()).sum(-1)


def vsa(agent: Agent, image: Tensor, step: Step) -> Tensor:
    """Minus the critic's value."""
    return -two_hot_mean(agent.value(feature(posterior(agent, image, step)[1], step.deter)))


def lda(agent: Agent, image: Tensor, step: Step) -> Tensor:
    """Squared distance of the latent sample to the clean one (h_t does not depend on the image)."""
    return ((posterior(agent, image, step)[1] - step.clean) ** 2).sum((-2, -1))


def dca(agent: Agent, image: Tensor, step: Step) -> Tensor:
    """KL(posterior || prior), both with unimix."""
    post, prior = log_probs(posterior(agent, image, step)[0]), log_probs(step.prior)
    return (post.exp() * (post - prior)).sum((-2, -1))


OBJECTIVES: dict[str, Callable[[Agent, Tensor, Step], Tensor]] = {
    "pda": pda,
    "pea": pea,
    "vsa": vsa,
    "lda": lda,
    "dca": dca,
}
"""Losses [B], all maximised."""


def loss_and_grad(loss: Callable[..., Tensor], agent: Agent, image: Tensor, step: Step) -> tuple[Tensor, Tensor]:
    """The loss [B] and its gradient [B, H, W, C] with respect to the image."""
    image = image.detach().requires_grad_()
    value = loss(agent, image, step)
    (grad,) = torch.autograd.grad(value.sum(), image)
    return value.detach(), grad


def project(image: Tensor, clean: Tensor, eps: float) -> Tensor:
    """The nearest image in the L-infinity ball of radius `eps` around `clean` and in [0, 1]."""
    return (clean + (image - clean).clamp(-eps, eps)).clamp(0, 1)


def pgd(
    loss: Callable[..., Tensor],
    agent: Agent,
    clean: Tensor,
    step: Step,
    *,
    eps: float,
    alpha: float,
    steps: int,
    start: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Ascend `loss` by `steps` signed gradient steps of size `alpha`: last image, losses [steps, B] before each step.

    FGSM is one step with alpha = eps.
    """
    image = project(clean if start is None else start, clean, eps)
    losses = []
    for _ in range(steps):
        value, grad = loss_and_grad(loss, agent, image, step)
        losses.append(value)
        image = project(image + alpha * grad.sign(), clean, eps)
    return image, torch.stack(losses)
