"""A whole training update of the four agents in plain PyTorch, over `benchmarks.torch_agent`.

The same formulas as `wmjax.train`, from DreamerV3 (arXiv 2301.04104) and DreamerPro (arXiv 2110.14565), as R2-Dreamer
puts them together. N = B * T is the number of replayed frames, H the imagination's horizon.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.torch_agent import Agent, Encoder, Sizes, draw, feature, symexp_bins, two_hot_mean
from benchmarks.torch_optimizer import Optimizer, step

SCALES = dict(
    recon=1.0, barlow=0.05, infonce=1.0, swav=1.0, temp=1.0, norm=1.0,
    dyn=1.0, rep=0.1, rew=1.0, con=1.0, policy=1.0, value=1.0, repval=0.3,
)  # fmt: skip
HORIZON, DISCOUNT, LAMBDA = 15, 1 - 1 / 333, 0.95
FREE_NATS, ACTION_ENTROPY, RETURN_RATE, REDUNDANCY = 1.0, 3e-4, 0.01, 5e-4
MAX_SHIFT, TEMPERATURE, SINKHORN_EPS, SINKHORN_STEPS = 3, 0.1, 0.05, 3
SLOW_RATE, TARGET_RATE = 0.02, 0.05

NONE = torch.empty(0)


class Batch(NamedTuple):
    """Replayed sequences; `action` precedes the image of its time."""

    image: Tensor  #: [B, T, H, W, C] uint8
    action: Tensor  #: [B, T, A]
    reward: Tensor  #: [B, T]
    is_first: Tensor  #: [B, T] bool, as the two below
    is_last: Tensor
    is_terminal: Tensor
    stoch: Tensor  #: [B, G, K] the latents before the first action
    deter: Tensor  #: [B, D]


class Noise(NamedTuple):
    """All that an update draws; the last two for dreamerpro alone."""

    post: Tensor  #: [T, B, G, K] Gumbel, of the posterior's samples
    action: Tensor  #: [H + 1, N, A] standard normal, of the imagined actions
    prior: Tensor  #: [H, N, G, K] Gumbel, of the imagined latents
    shift: Tensor = NONE  #: [2B, 2] whole pixels across and down, 0 to 2 * MAX_SHIFT; the middle is no shift
    augmented: Tensor = NONE  #: [T, 2B, G, K] Gumbel


def gumbel(*shape: int) -> Tensor:
    """Gumbel noise."""
    return -torch.empty(shape).exponential_().log()


def draw_noise(sizes: Sizes, batch: int, length: int) -> Noise:
    """The noise of one update."""
    latent, frames = (sizes.stoch, sizes.discrete), batch * length
    noise = Noise(
        gumbel(length, batch, *latent),
        torch.randn(HORIZON + 1, frames, sizes.action),
        gumbel(HORIZON, frames, *latent),
    )
    if sizes.agent != "dreamerpro":
        return noise
    shift = torch.randint(0, 2 * MAX_SHIFT + 1, (2 * batch, 2))
    return noise._replace(shift=shift, augmented=gumbel(length, 2 * batch, *latent))


def embeddings(encoder: Encoder, image: Tensor) -> Tensor:
    """Embeddings [B, T, E] of uint8 images [B, T, H, W, C]."""
    return encoder(image.flatten(0, 1).float() / 255).unflatten(0, image.shape[:2])


def observe(agent: Agent, embedding: Tensor, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Posterior samples [B, T, G, K], recurrent states [B, T, D] and the posterior's raw logits."""
    stoch, deter, keep = batch.stoch, batch.deter, (~batch.is_first).float()
    states = []
    for t in range(embedding.shape[1]):
        kept = keep[:, t, None]
        deter = agent.rssm._deter_net(stoch * kept[..., None], deter * kept, batch.action[:, t] * kept)
        logits = agent.rssm.posterior(deter, embedding[:, t])
        stoch = draw(logits, noise[t])
        states.append((stoch, deter, logits))
    stoch, deter, logits = (torch.stack(part, 1) for part in zip(*states, strict=True))
    return stoch, deter, logits


def divergence(left: Tensor, right: Tensor) -> Tensor:
    """KL between the raw logits [B, T, G, K] of two latents, in nats, at least FREE_NATS a frame; the mean."""
    left, right = torch.log_softmax(left, -1), torch.log_softmax(right, -1)
    return (left.exp() * (left - right)).sum((-2, -1)).clamp(min=FREE_NATS).mean()


def two_hot_log_prob(logits: Tensor, target: Tensor) -> Tensor:
    """Log-probability [...] of a number [...], which is shared between the two bins next to it."""
    bins = symexp_bins(logits.shape[-1])
    lower = (torch.searchsorted(bins, target.detach().contiguous(), right=True) - 1).clamp(0, len(bins) - 2)
    share = ((target - bins[lower]) / (bins[lower + 1] - bins[lower])).clamp(0, 1)
    pair = torch.log_softmax(logits, -1).gather(-1, torch.stack([lower, lower + 1], -1))
    return (1 - share) * pair[..., 0] + share * pair[..., 1]


def lambda_returns(reward: Tensor, ends: Tensor, cut: Tensor, boot: Tensor) -> Tensor:
    """Returns [N, T - 1] of all steps but the last.

    A step's return is what the next one earns: its reward, and unless it `ends` the episode there, its return; where
    the sequence is `cut`, and for a share of 1 - LAMBDA, `boot` stands for the return. All arguments are [N, T].
    """
    live, follow = DISCOUNT * (1 - ends), LAMBDA * (1 - cut)
    value, returns = boot[:, -1], []
    for t in range(reward.shape[1] - 1, 0, -1):
        value = reward[:, t] + live[:, t] * ((1 - follow[:, t]) * boot[:, t] + follow[:, t] * value)
        returns.append(value)
    return torch.stack(returns[::-1], 1)


def imagine(agent: Agent, stoch: Tensor, deter: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """Features [N, H + 1, F] and actions [N, H + 1, A] of the policy in the world model, from states [N, ...]."""
    features, actions = [], []
    for index, normal in enumerate(noise.action):
        features.append(feature(stoch, deter))
        mean, std = agent.policy(features[-1])
        actions.append(mean + std * normal)
        if index < HORIZON:
            deter, prior = agent.predict(stoch, deter, actions[-1])
            stoch = draw(prior, noise.prior[index])
    return torch.stack(features, 1), torch.stack(actions, 1)


def critic_loss(agent: Agent, features: Tensor, logits: Tensor, returns: Tensor, weight: Tensor) -> Tensor:
    """The critic's logits [N, T - 1, bins] against returns and against the slow critic."""
    with torch.no_grad():
        slow = two_hot_mean(agent._slow_value(features))
    return (weight * -(two_hot_log_prob(logits, returns) + two_hot_log_prob(logits, slow))).mean()


def behaviour(
    agent: Agent, stoch: Tensor, deter: Tensor, batch: Batch, noise: Noise
) -> tuple[dict[str, Tensor], Tensor]:
    """The losses of actor and critic, imagined and replayed, and the new return range [2]."""
    with torch.no_grad():
        imagined, actions = imagine(agent, stoch.flatten(0, 1), deter.flatten(0, 1), noise)
    logits, replay = agent.value(imagined), feature(stoch, deter)[:, :-1]
    with torch.no_grad():
        reward, value = two_hot_mean(agent.reward(imagined)), two_hot_mean(logits)
        goes_on = torch.sigmoid(agent.cont(imagined)).squeeze(-1)
        weight = torch.cumprod(goes_on * DISCOUNT, 1)[:, :-1]
        returns = lambda_returns(reward, 1 - goes_on, torch.zeros_like(reward), value)
        quantiles = torch.quantile(returns.flatten(), torch.tensor([0.05, 0.95]))
        spread = torch.lerp(agent.return_ema.ema_vals, quantiles, RETURN_RATE)
        advantage = (returns - value[:, :-1]) / (spread[1] - spread[0]).clamp(min=1)
        first, live = returns[:, 0].view_as(batch.reward), 1 - batch.is_last[:, :-1].float()
        replayed = lambda_returns(batch.reward, batch.is_terminal.float(), batch.is_last.float(), first)
    imagined, actions = imagined[:, :-1], actions[:, :-1]
    mean, std = agent.policy(imagined)
    log_prob = (-0.5 * ((actions - mean) / std) ** 2 - std.log() - 0.5 * math.log(2 * math.pi)).sum(-1)
    entropy = (0.5 * math.log(2 * math.pi * math.e) + std.log()).sum(-1)
    losses = {
        "policy": (weight * -(log_prob * advantage + ACTION_ENTROPY * entropy)).mean(),
        "value": critic_loss(agent, imagined, logits[:, :-1], returns, weight),
        "repval": critic_loss(agent, replay, agent.value(replay), replayed, live),
    }
    return losses, spread


def reconstruction(agent: Agent, stoch: Tensor, deter: Tensor, image: Tensor) -> dict[str, Tensor]:
    """dreamer: squared error of the decoded image."""
    decoded = agent.decoder[0](stoch.flatten(0, 1), deter.flatten(0, 1))
    return {"recon": ((decoded - image.flatten(0, 1).float() / 255) ** 2).sum((1, 2, 3)).mean()}


def redundancy(agent: Agent, features: Tensor, embedding: Tensor) -> dict[str, Tensor]:
    """r2dreamer: projected features [N, E] correlate with the embeddings channel by channel, and no further."""
    left, right = (
        (x - x.mean(0)) / (x.std(0) + 1e-8)
        for x in (agent.prj(features).flatten(0, 1), embedding.detach().flatten(0, 1))
    )
    cross = left.T @ right / len(left)
    diagonal = cross.diagonal()
    return {"barlow": ((diagonal - 1) ** 2).sum() + REDUNDANCY * ((cross**2).sum() - (diagonal**2).sum())}


def contrast(agent: Agent, features: Tensor, embedding: Tensor) -> dict[str, Tensor]:
    """infonce: of all frames' embeddings, projected features point at their own."""
    scores = agent.prj(features).flatten(0, 1) @ embedding.detach().flatten(0, 1).T
    return {"infonce": F.cross_entropy(scores, torch.arange(len(scores)))}


def shifted(image: Tensor, shift: Tensor) -> Tensor:
    """Images [B, T, H, W, C] moved by whole pixels [B, 2] across and down; border pixels repeat."""
    size = image.shape[2]
    across, down = (torch.arange(size) + shift.long()[..., None] - MAX_SHIFT).clamp(0, size - 1).unbind(1)
    sequence, time = torch.arange(len(image))[:, None, None, None], torch.arange(image.shape[1])[:, None, None]
    return image[sequence, time, down[:, None, :, None], across[:, None, None, :]]


def sinkhorn(scores: Tensor) -> Tensor:
    """Assign samples to prototypes [P, N], as many to each."""
    logs = scores / SINKHORN_EPS
    for _ in range(SINKHORN_STEPS):
        logs = logs - logs.logsumexp(1, keepdim=True)
        logs = logs - logs.logsumexp(0, keepdim=True)
    return logs.exp()


def prototypes(agent: Agent, batch: Batch, noise: Noise) -> dict[str, Tensor]:
    """dreamerpro: two shifted copies of the images predict each other's prototypes, and their features their own."""
    twice = lambda x: torch.cat([x, x])  # noqa: E731
    copies = Batch(*map(twice, batch))._replace(image=shifted(twice(batch.image), noise.shift))
    embedding = embeddings(agent.encoder, copies.image)
    stoch, deter, _ = observe(agent, embedding, copies, noise.augmented)
    weight = F.normalize(agent._prototypes, dim=-1)
    scores = lambda x: weight @ F.normalize(x[:, 1:], dim=-1).flatten(0, 1).T  # noqa: E731
    with torch.no_grad():
        target = scores(agent._ema_obs_proj(embeddings(agent._ema_encoder, copies.image)))
        first, second = map(sinkhorn, target.chunk(2, 1))
    seen, felt = agent.obs_proj(embedding), agent.feat_proj(feature(stoch, deter))
    crossed = lambda x, targets: -(targets * torch.log_softmax(scores(x) / TEMPERATURE, 0)).sum(0).mean()  # noqa: E731
    return {
        "swav": crossed(seen, torch.cat([second, first], 1)),
        "temp": crossed(felt, torch.cat([first, second], 1)),
        "norm": sum(((x.norm(dim=-1) - 1) ** 2).mean() for x in (seen, felt)),
    }


def losses(agent: Agent, batch: Batch, noise: Noise) -> tuple[dict[str, Tensor], Tensor]:
    """Every loss term by its name in SCALES, not yet weighted, and the new return range [2]."""
    embedding = embeddings(agent.encoder, batch.image)
    stoch, deter, posterior = observe(agent, embedding, batch, noise.post)
    prior, features = agent.rssm.prior(deter), feature(stoch, deter)
    terms = {
        "dyn": divergence(posterior.detach(), prior),
        "rep": divergence(posterior, prior.detach()),
        "rew": -two_hot_log_prob(agent.reward(features), batch.reward).mean(),
        "con": F.binary_cross_entropy_with_logits(agent.cont(features).squeeze(-1), (~batch.is_terminal).float()),
    }
    match agent.sizes.agent:
        case "dreamer":
            terms |= reconstruction(agent, stoch, deter, batch.image)
        case "r2dreamer":
            terms |= redundancy(agent, features, embedding)
        case "infonce":
            terms |= contrast(agent, features, embedding)
        case "dreamerpro":
            terms |= prototypes(agent, batch, noise)
    acting, spread = behaviour(agent, stoch, deter, batch, noise)
    return terms | acting, spread


def weighted(agent: Agent, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """What is minimised, with the terms of `losses` and the new return range."""
    terms, spread = losses(agent, batch, noise)
    return torch.stack([SCALES[name] * term for name, term in terms.items()]).sum(), terms, spread


def follow(slow: nn.Module, live: nn.Module, rate: float) -> None:
    """Move a slow copy towards the live module."""
    torch._foreach_lerp_(list(slow.parameters()), list(live.parameters()), rate)


def update(
    agent: Agent,
    optimizer: Optimizer,
    batch: Batch,
    noise: Noise,
    *,
    weighted: Callable = weighted,
    step: Callable = step,
) -> dict[str, Tensor]:
    """One whole training update, in place: the loss terms. `weighted` and `step` may be compiled."""
    with torch.no_grad():
        follow(agent._slow_value, agent.value, SLOW_RATE)
        if agent.sizes.agent == "dreamerpro":
            rate = TARGET_RATE if optimizer.updates > 0 else 1.0
            follow(agent._ema_encoder, agent.encoder, rate)
            follow(agent._ema_obs_proj, agent.obs_proj, rate)
            agent._prototypes.copy_(F.normalize(agent._prototypes, dim=-1))
    loss, terms, spread = weighted(agent, batch, noise)
    grads = torch.autograd.grad(loss, list(optimizer.weights.values()))
    with torch.no_grad():
        step(optimizer, list(grads))
        agent.return_ema.ema_vals.copy_(spread)
    return terms
