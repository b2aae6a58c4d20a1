"""Dreamer-family agents of any size in plain PyTorch: the reference for speed and for conversion.

Modules are named so that the keys of a checkpoint's `agent_state_dict` load directly. Shapes are batch first; images
are float32 [B, H, W, C] in [0, 1], as everywhere in wmjax.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

AGENTS = ("dreamer", "r2dreamer", "infonce", "dreamerpro")
FROZEN = ("encoder", "rssm", "reward", "cont", "actor", "value", "_slow_value")
PROTOTYPES, PROTOTYPE_SIZE = 2500, 32
IMAGE_SIZE, BINS = 64, 255


@dataclass(frozen=True)
class Sizes:
    """What fixes every shape of an agent; the defaults are the 12M agent."""

    agent: str = "r2dreamer"  #: one of AGENTS
    deter: int = 2048  #: D
    blocks: int = 8
    hidden: int = 256  #: width inside the recurrent core, prior and posterior nets
    stoch: int = 32  #: G
    discrete: int = 16  #: K
    depth: int = 16  #: channels of the convolutions are depth * (2, 3, 4, 4)
    units: int = 256  #: width of the heads
    action: int = 6  #: A

    @property
    def channels(self) -> tuple[int, ...]:
        """Output channels of the four encoder stages."""
        return tuple(self.depth * factor for factor in (2, 3, 4, 4))

    @property
    def embed(self) -> int:
        """E: the last 4x4 map, flattened."""
        return self.channels[-1] * (IMAGE_SIZE // 16) ** 2

    @property
    def feature(self) -> int:
        """F = G * K + D."""
        return self.stoch * self.discrete + self.deter


class Norm(nn.RMSNorm):
    """RMSNorm over the last axis."""

    def __init__(self, size: int) -> None:
        super().__init__(size, eps=1e-4)


class ChannelNorm(Norm):
    """RMSNorm over the channels of [B, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise; the shape stays."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class BlockLinear(nn.Module):
    """Block-diagonal linear layer; weight [out per block, in per block, blocks], input and output block-major."""

    def __init__(self, inputs: int, outputs: int, blocks: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs // blocks, inputs // blocks, blocks))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        x = x.reshape(*x.shape[:-1], self.weight.shape[2], self.weight.shape[1])
        return torch.einsum("...gi,oig->...go", x, self.weight).flatten(-2) + self.bias


def dense(inputs: int, outputs: int, names: tuple[str, str, str]) -> list[tuple[str, nn.Module]]:
    """Linear, norm, SiLU, under the given names."""
    return list(zip(names, (nn.Linear(inputs, outputs), Norm(outputs), nn.SiLU()), strict=True))


def named(*layers: tuple[str, nn.Module]) -> nn.Sequential:
    """A Sequential whose layers have names."""
    return nn.Sequential(OrderedDict(layers))


class Encoder(nn.Module):
    """Four stages of convolution, pooling, norm and SiLU."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in zip((3, *sizes.channels), sizes.channels, strict=False):
            layers += [
                nn.Conv2d(inputs, outputs, 5, padding="same"),
                nn.MaxPool2d(2, 2),
                ChannelNorm(outputs),
                nn.SiLU(),
            ]
        self.encoders = nn.ModuleList([named(("layers", nn.Sequential(*layers)))])

    def forward(self, image: Tensor) -> Tensor:
        """Image [B, H, W, C] in [0, 1] to embedding [B, E], flattened in C, H, W order."""
        return self.encoders[0]((image - 0.5).permute(0, 3, 1, 2)).flatten(1)


class RecurrentCore(nn.Module):
    """A block-diagonal GRU."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.blocks = sizes.blocks
        branch = lambda size: nn.Sequential(nn.Linear(size, sizes.hidden), Norm(sizes.hidden), nn.SiLU())  # noqa: E731
        self._dyn_in0 = branch(sizes.deter)
        self._dyn_in1 = branch(sizes.stoch * sizes.discrete)
        self._dyn_in2 = branch(sizes.action)
        inputs = sizes.deter + 3 * sizes.hidden * sizes.blocks
        self._dyn_hid = named(
            ("dyn_hid_0", BlockLinear(inputs, sizes.deter, sizes.blocks)),
            ("norm_0", Norm(sizes.deter)),
            ("act_0", nn.SiLU()),
        )
        self._dyn_gru = BlockLinear(sizes.deter, 3 * sizes.deter, sizes.blocks)

    def forward(self, stoch: Tensor, deter: Tensor, action: Tensor) -> Tensor:
        """h_t [B, D] from z_{t-1} [B, G, K], h_{t-1} and a_{t-1} [B, A]."""
        action = action / action.abs().clamp(min=1.0)
        branches = [self._dyn_in0(deter), self._dyn_in1(stoch.flatten(-2)), self._dyn_in2(action)]
        shared = torch.cat(branches, -1).unsqueeze(-2).expand(*deter.shape[:-1], self.blocks, -1)
        x = torch.cat([deter.unflatten(-1, (self.blocks, -1)), shared], -1).flatten(-2)
        gates = self._dyn_gru(self._dyn_hid(x)).unflatten(-1, (self.blocks, -1))
        reset, candidate, update = (gate.flatten(-2) for gate in gates.chunk(3, -1))
        update = torch.sigmoid(update - 1)
        return update * torch.tanh(torch.sigmoid(reset) * candidate) + (1 - update) * deter


class RSSM(nn.Module):
    """Recurrent core with prior and posterior logits of the discrete latent."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.latent = (sizes.stoch, sizes.discrete)
        hidden, logits = sizes.hidden, sizes.stoch * sizes.discrete
        self._deter_net = RecurrentCore(sizes)
        self._obs_net = named(
            *dense(sizes.deter + sizes.embed, hidden, ("obs_net_0", "obs_net_n_0", "obs_net_a_0")),
            ("obs_net_logit", nn.Linear(hidden, logits)),
        )
        self._img_net = named(
            *dense(sizes.deter, hidden, ("img_net_0", "img_net_n_0", "img_net_a_0")),
            *dense(hidden, hidden, ("img_net_1", "img_net_n_1", "img_net_a_1")),
            ("img_net_logit", nn.Linear(hidden, logits)),
        )

    def prior(self, deter: Tensor) -> Tensor:
        """Raw logits [B, G, K] of p(z | h)."""
        return self._img_net(deter).unflatten(-1, self.latent)

    def posterior(self, deter: Tensor, embedding: Tensor) -> Tensor:
        """Raw logits [B, G, K] of q(z | h, x)."""
        return self._obs_net(torch.cat([deter, embedding], -1)).unflatten(-1, self.latent)


class Head(nn.Module):
    """An MLP on the feature vector; `name` prefixes its layers."""

    def __init__(self, name: str, sizes: Sizes, layers: int, outputs: int) -> None:
        super().__init__()
        stack: list[tuple[str, nn.Module]] = []
        for index in range(layers):
            names = (f"{name}_linear{index}", f"{name}_norm{index}", f"{name}_act{index}")
            stack += dense(sizes.units if index else sizes.feature, sizes.units, names)
        self.mlp = named(("layers", named(*stack)))
        self.last = nn.Linear(sizes.units, outputs)

    def forward(self, feature: Tensor) -> Tensor:
        """[..., F] -> [..., outputs]."""
        return self.last(self.mlp(feature))


class DecoderNet(nn.Module):
    """Four doublings of a 4x4 map; only agents trained by reconstruction have one."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        *_, channels = sizes.channels
        self.shape = (sizes.blocks, IMAGE_SIZE // 16, IMAGE_SIZE // 16, channels // sizes.blocks)
        flat = math.prod(self.shape)
        self.sp0 = BlockLinear(sizes.deter, flat, sizes.blocks)
        self.sp1 = nn.Sequential(
            nn.Linear(sizes.stoch * sizes.discrete, 2 * sizes.units), Norm(2 * sizes.units), nn.SiLU()
        )
        self.sp2 = nn.Linear(2 * sizes.units, flat)
        self.sp_norm = nn.Sequential(Norm(channels), nn.SiLU())
        layers: list[nn.Module] = []
        for outputs in (*reversed(sizes.channels[:-1]), 3):
            layers += [nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(channels, outputs, 5, padding="same")]
            layers += [ChannelNorm(outputs), nn.SiLU()]
            channels = outputs
        self.layers = nn.Sequential(*layers[:-2])

    def forward(self, stoch: Tensor, deter: Tensor) -> Tensor:
        """z [B, G, K] and h [B, D] to an image [B, H, W, C] in [0, 1]."""
        _, height, width, _ = self.shape
        by_deter = self.sp0(deter).unflatten(-1, self.shape).permute(0, 2, 3, 1, 4).flatten(-2)
        by_stoch = self.sp2(self.sp1(stoch.flatten(-2))).unflatten(-1, (height, width, -1))
        x = self.sp_norm(by_deter + by_stoch).permute(0, 3, 1, 2)
        return torch.sigmoid(self.layers(x)).permute(0, 2, 3, 1)


class ReturnRange(nn.Module):
    """Running 5 % and 95 % quantiles of returns; training scales advantages by them."""

    def __init__(self) -> None:
        super().__init__()
        self.ema_vals: Tensor
        self.register_buffer("ema_vals", torch.zeros(2))


class Agent(nn.Module):
    """A whole agent: everything its checkpoint holds except the aliased `_frozen_*` copies."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        if sizes.agent == "dreamerpro":
            self._prototypes = nn.Parameter(torch.empty(PROTOTYPES, PROTOTYPE_SIZE))
        self.return_ema = ReturnRange()
        self.encoder = Encoder(sizes)
        self.rssm = RSSM(sizes)
        self.reward = Head("reward", sizes, 1, BINS)
        self.cont = Head("cont", sizes, 1, 1)
        self.actor = Head("actor", sizes, 3, 2 * sizes.action)
        self.value = Head("value", sizes, 3, BINS)
        self._slow_value = Head("value", sizes, 3, BINS)
        if sizes.agent == "dreamer":
            self.decoder = named(("_cnn", DecoderNet(sizes)))
        elif sizes.agent == "dreamerpro":
            self.obs_proj = nn.Linear(sizes.embed, PROTOTYPE_SIZE)
            self.feat_proj = nn.Linear(sizes.feature, PROTOTYPE_SIZE)
            self._ema_encoder = Encoder(sizes)
            self._ema_obs_proj = nn.Linear(sizes.embed, PROTOTYPE_SIZE)
        else:
            self.prj = named(("w", nn.Linear(sizes.feature, sizes.embed, bias=False)))

    def load(self, agent_state_dict: dict[str, Tensor]) -> "Agent":
        """Take a checkpoint's weights, in float32 and frozen."""
        live = {key: value.float() for key, value in agent_state_dict.items() if not key.startswith("_frozen_")}
        self.load_state_dict(live, strict=True)
        return self.requires_grad_(False)

    def predict(self, stoch: Tensor, deter: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """What does not depend on the new image: h_t [B, D] and the prior's raw logits [B, G, K]."""
        deter = self.rssm._deter_net(stoch, deter, action)
        return deter, self.rssm.prior(deter)

    def policy(self, feature: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation [B, A]."""
        mean, std = self.actor(feature).chunk(2, -1)
        return torch.tanh(mean), 0.9 * torch.sigmoid(std + 2) + 0.1


def random_agent(sizes: Sizes, seed: int = 0) -> Agent:
    """An agent with random weights whose activations, values and policies have sensible sizes.

    Every tensor is random, norms and biases included, so that no conversion mistake can hide behind zeros or ones.
    """
    agent = Agent(sizes).requires_grad_(False)
    rng = torch.Generator().manual_seed(seed)
    normal = lambda like: torch.randn(like.shape, generator=rng)  # noqa: E731
    for name, parameter in agent.named_parameters():
        if name.endswith("bias"):
            parameter.copy_(0.1 * normal(parameter))
        elif parameter.ndim == 1:
            parameter.copy_(1 + 0.1 * normal(parameter))
        elif name == "_prototypes":
            parameter.copy_(normal(parameter))
        else:
            # Axis 1 is the input of all three kinds: dense, convolution, block-diagonal (whose axis 2 is the block).
            fan_in = parameter[0].numel() if parameter.ndim == 4 else parameter.shape[1]
            parameter.copy_(normal(parameter) / math.sqrt(fan_in))
    # A hump in the two-hot heads keeps values near 10; flat logits would spread them over symexp(+-20).
    for head, centre in ((agent.reward, 131), (agent.value, 144), (agent._slow_value, 142)):
        head.last.bias.sub_(0.5 * ((torch.arange(BINS) - centre) / 8) ** 2)
    agent.return_ema.ema_vals.copy_(torch.tensor([-1.25, 3.5]))
    return agent


def checkpoint_state_dict(agent: Agent) -> OrderedDict[str, Tensor]:
    """The agent's weights as a checkpoint holds them, with the aliased `_frozen_*` copies."""
    state = OrderedDict(agent.state_dict())
    for name in FROZEN:
        part = getattr(agent, name).state_dict()
        state.update({f"_frozen_{name.removeprefix('_')}.{key}": value for key, value in part.items()})
    return state


def log_probs(logits: Tensor) -> Tensor:
    """Log of the class probabilities with 1 % of the uniform distribution mixed in."""
    return torch.log(0.99 * torch.softmax(logits, -1) + 0.01 / logits.shape[-1])


def draw(logits: Tensor, gumbel: Tensor | None) -> Tensor:
    """Straight-through one-hot sample for Gumbel noise [B, G, K], or the mode for None."""
    scores = log_probs(logits) if gumbel is None else log_probs(logits) + gumbel
    soft = scores if gumbel is None else torch.softmax(scores, -1)
    hard = F.one_hot(scores.argmax(-1), scores.shape[-1]).to(soft.dtype)
    return hard + (soft - soft.detach())


def feature(stoch: Tensor, deter: Tensor) -> Tensor:
    """[flatten(z), h], what every head reads."""
    return torch.cat([stoch.flatten(-2), deter], -1)


def symexp_bins(count: int) -> Tensor:
    """The bins [count] of two-hot heads: symexp of -20 to 20, exactly antisymmetric."""
    half = -torch.expm1(-torch.linspace(-20.0, 0.0, count // 2 + 1))
    return torch.cat([half, -half[:-1].flip(0)])


def two_hot_mean(logits: Tensor) -> Tensor:
    """Expectation [...] over symexp bins; mirrored pairs are added first so that the huge outer terms cancel."""
    terms = torch.softmax(logits, -1) * symexp_bins(logits.shape[-1])
    centre = logits.shape[-1] // 2
    return (terms[..., :centre].flip(-1) + terms[..., centre + 1 :]).sum(-1)
