"""Where each tensor of a PyTorch agent lives in our tree: one table, from the keys of the public R2-Dreamer code.

Read forwards it converts a checkpoint, read backwards it writes one.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from wmjax.agents.dreamer.agent import Dreamer

_SAME, _LINEAR, _CONV, _BLOCK = (0,), (1, 0), (2, 3, 1, 0), (2, 1, 0)
"""Axis orders: PyTorch's (out, in), (out, in, h, w), (out, in, block) to ours."""


@dataclass(frozen=True)
class Weight:
    """One PyTorch tensor and its place in our tree; `columns` cuts the input axis of a product that we split."""

    key: str
    path: str
    axes: tuple[int, ...]
    columns: slice | None = None

    def to_jax(self, tensor: np.ndarray) -> np.ndarray:
        """Return the tensor in our axis order, contiguous."""
        if self.columns is not None:
            tensor = tensor[:, self.columns]
        return np.ascontiguousarray(tensor.transpose(self.axes))

    def to_torch(self, array: np.ndarray) -> np.ndarray:
        """Return the tensor, or its `columns`, in PyTorch's axis order, contiguous."""
        return np.ascontiguousarray(array.transpose(np.argsort(self.axes)))


def count(pattern: str, keys: Iterable[str]) -> int:
    """Return how many of `keys` match `pattern` from start to end."""
    return sum(re.fullmatch(pattern, key) is not None for key in keys)


def to_torch(table: Iterable[Weight], flat: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the PyTorch tensors, by key, of a table's rows: all of them new arrays, what was split joined again."""
    pieces = defaultdict(list)
    for weight in table:
        pieces[weight.key].append(weight.to_torch(flat[weight.path]))
    # The columns that a row may be limited to are the last axis of a matrix.
    return {key: np.concatenate(parts, axis=-1) for key, parts in pieces.items()}


def weights(victim: Dreamer) -> list[Weight]:
    """Return the whole table for an agent of these sizes: every key of its state dict but the `_frozen_*` aliases.

    Keys are in the order of the state dict.
    """
    return [
        *_prototypes(victim),
        Weight("return_ema.ema_vals", "return_ema/quantiles", _SAME),
        *_encoder("encoder", "encoder", victim),
        *_rssm(victim),
        *_head("reward", "reward", "reward", victim.reward_layers),
        *_head("cont", "cont", "cont", victim.cont_layers),
        *_head("actor", "actor", "actor", victim.actor_layers),
        *_head("value", "value", "value", victim.critic_layers),
        *_head("_slow_value", "slow_value", "value", victim.critic_layers),
        *_representation(victim),
    ]


def _affine(key: str, path: str, axes: tuple[int, ...], *, bias: bool = True) -> Iterator[Weight]:
    yield Weight(f"{key}.weight", f"{path}/kernel", axes)
    if bias:
        yield Weight(f"{key}.bias", f"{path}/bias", _SAME)


def _norm(key: str, path: str) -> Weight:
    return Weight(f"{key}.weight", f"{path}/scale", _SAME)


def _encoder(key: str, path: str, victim: Dreamer) -> Iterator[Weight]:
    for i in range(len(victim.depths)):
        yield from _affine(f"{key}.encoders.0.layers.{4 * i}", f"{path}/stage{i}/conv", _CONV)
        yield _norm(f"{key}.encoders.0.layers.{4 * i + 2}", f"{path}/stage{i}/norm")


def _rssm(victim: Dreamer) -> Iterator[Weight]:
    core = "rssm._deter_net"
    for i, name in enumerate(("in_deter", "in_stoch", "in_action")):
        yield from _affine(f"{core}._dyn_in{i}.0", f"rssm/{name}/linear0", _LINEAR)
        yield _norm(f"{core}._dyn_in{i}.1", f"rssm/{name}/norm0")
    for i in range(victim.dyn_layers):
        yield from _affine(f"{core}._dyn_hid.dyn_hid_{i}", f"rssm/core_{i}", _BLOCK)
        yield _norm(f"{core}._dyn_hid.norm_{i}", f"rssm/core_norm_{i}")
    yield from _affine(f"{core}._dyn_gru", "rssm/gates", _BLOCK)
    obs = "rssm._obs_net.obs_net"
    yield Weight(f"{obs}_0.weight", "rssm/obs_deter/kernel", _LINEAR, slice(None, victim.deter))
    yield Weight(f"{obs}_0.weight", "rssm/obs_embed/kernel", _LINEAR, slice(victim.deter, None))
    yield Weight(f"{obs}_0.bias", "rssm/obs_embed/bias", _SAME)
    yield _norm(f"{obs}_n_0", "rssm/obs_norm")
    for i in range(1, victim.obs_layers):
        yield from _affine(f"{obs}_{i}", f"rssm/obs_tail/linear{i - 1}", _LINEAR)
        yield _norm(f"{obs}_n_{i}", f"rssm/obs_tail/norm{i - 1}")
    yield from _affine(f"{obs}_logit", "rssm/obs_tail/out", _LINEAR)
    for i in range(victim.img_layers):
        yield from _affine(f"rssm._img_net.img_net_{i}", f"rssm/prior/linear{i}", _LINEAR)
        yield _norm(f"rssm._img_net.img_net_n_{i}", f"rssm/prior/norm{i}")
    yield from _affine("rssm._img_net.img_net_logit", "rssm/prior/out", _LINEAR)


def _head(key: str, path: str, name: str, layers: int) -> Iterator[Weight]:
    for i in range(layers):
        yield from _affine(f"{key}.mlp.layers.{name}_linear{i}", f"{path}/linear{i}", _LINEAR)
        yield _norm(f"{key}.mlp.layers.{name}_norm{i}", f"{path}/norm{i}")
    yield from _affine(f"{key}.last", f"{path}/out", _LINEAR)


def _prototypes(victim: Dreamer) -> Iterator[Weight]:
    """Yield the one parameter that the agent itself owns, no module of it: such come first in a state dict."""
    if victim.agent == "dreamerpro":
        yield Weight("_prototypes", "prototypes/kernel", _LINEAR)


def _representation(victim: Dreamer) -> Iterator[Weight]:
    """Yield what only the representation loss uses: no part of inference, kept so that nothing is lost."""
    match victim.agent:
        case "dreamer":
            yield from _decoder(victim)
        case "r2dreamer" | "infonce":
            yield from _affine("prj.w", "projector", _LINEAR, bias=False)
        case "dreamerpro":
            yield from _affine("obs_proj", "obs_proj", _LINEAR)
            yield from _affine("feat_proj", "feat_proj", _LINEAR)
            yield from _encoder("_ema_encoder", "ema_encoder", victim)
            yield from _affine("_ema_obs_proj", "ema_obs_proj", _LINEAR)


def _decoder(victim: Dreamer) -> Iterator[Weight]:
    cnn, last = "decoder._cnn", len(victim.depths) - 1
    yield from _affine(f"{cnn}.sp0", "decoder/from_deter", _BLOCK)
    yield from _affine(f"{cnn}.sp1.0", "decoder/from_stoch/linear0", _LINEAR)
    yield _norm(f"{cnn}.sp1.1", "decoder/from_stoch/norm0")
    yield from _affine(f"{cnn}.sp2", "decoder/from_hidden", _LINEAR)
    yield _norm(f"{cnn}.sp_norm.0", "decoder/norm")
    for i in range(last + 1):
        yield from _affine(f"{cnn}.layers.{4 * i + 1}", f"decoder/stage{i}/conv", _CONV)
        if i < last:
            yield _norm(f"{cnn}.layers.{4 * i + 2}", f"decoder/stage{i}/norm")
