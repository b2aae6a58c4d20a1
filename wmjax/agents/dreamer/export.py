"""Writes a weight file back as the checkpoint (`latest.pt`) that the public R2-Dreamer training code writes."""

import io
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from wmjax.agents.base import Params
from wmjax.agents.dreamer import Dreamer
from wmjax.agents.dreamer.export_config import check_folder, configuration, make_folders, text
from wmjax.agents.dreamer.hydra import FILE
from wmjax.agents.dreamer.torch_layout import Weight, to_torch, weights
from wmjax.agents.weights import listed, read
from wmjax.agents.zoo import locate
from wmjax.core.errors import InputError
from wmjax.core.files import write_atomically
from wmjax.core.text import as_path

_FROZEN = ("encoder", "rssm", "reward", "cont", "actor", "value", "_slow_value")
"""Modules that the state dict lists again as `_frozen_*`: the same tensors, with which the agent imagines and acts."""

_OPTIMIZED = (
    *("rssm", "actor", "value", "reward", "cont", "encoder", "decoder"),
    *("prj", "_prototypes", "obs_proj", "feat_proj", "_ema_encoder", "_ema_obs_proj"),
)
"""Modules in the order in which the optimizer numbers their parameters."""

_AVERAGED = ("_ema_encoder", "_ema_obs_proj")
"""Modules that the optimizer lists but never updates: they have no gradients, hence no state."""


@dataclass(frozen=True)
class Optimizer:
    """What the optimizer (LaProp) knows; left out, what it knows before its first update in the reference."""

    count: int = 0  #: updates done
    mu: Params = field(default_factory=dict)  #: averages of the normalised gradient, the tree of the trained parts
    nu: Params = field(default_factory=dict)  #: averages of the squared gradient, the same tree
    lr_1: float = 0.0  #: the average of the learning rate, which corrects `mu`
    lr_2: float = 0.0  #: the average of one, which corrects `nu`
    lr: float = 4e-5 * 1e-3  #: learning rate of the next update: the warm-up begins with a thousandth
    initial_lr: float = 4e-5  #: learning rate after the warm-up
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-20


def export(name_or_path: str | Path, out: str | Path, optimizer: Optimizer | None = None) -> Path:
    """Write the weight file `name_or_path` (a path, or a shipped agent) as the checkpoint `out` (`.pt`); return `out`.

    Its folder is made where there is none, and beside it comes `.hydra/config.yaml`, from which the reference builds
    the agent. Keys, shapes, their order and which tensors share memory are the reference's; all is float32. The same
    input gives the same bytes. Raises InputError, and writes no file, where the weight file is none, lacks what only
    training reads, where `out` cannot be written, its folder holds another configuration, or `optimizer` does not fit
    the weights.
    """
    try:
        import torch
    except ImportError:
        raise InputError("exporting needs PyTorch: pip install 'wmjax[convert]'") from None
    source, target = locate(name_or_path), as_path(out)
    if target.suffix != ".pt":
        raise InputError(f"{target}: the output's name must end in .pt")
    if target.is_dir():
        raise InputError(f"{target}: is a folder")
    card, params = read(source)
    flat = _flat(params)
    _check(flat, card.victim, str(source))
    checkpoint = {
        "agent_state_dict": _state_dict(card.victim, flat),
        "optims_state_dict": _optimizers(card.victim, flat, optimizer or Optimizer()),
    }
    content = text(configuration(card, flat))
    check_folder(target.parent, content)
    file = io.BytesIO()
    torch.save(checkpoint, file)
    make_folders(target.parent)
    path = target.parent / FILE
    new = not path.exists()
    write_atomically(path, content.encode())
    try:
        write_atomically(target, file.getbuffer())
    except BaseException:
        if new:
            path.unlink(missing_ok=True)
        raise
    return target


def _state_dict(victim: Dreamer, flat: Mapping[str, np.ndarray]) -> OrderedDict[str, Any]:
    state = _tensors(weights(victim), flat)
    frozen = {f"_frozen_{key.removeprefix('_')}": state[key].detach() for key in state if _module(key) in _FROZEN}
    return OrderedDict(state | frozen)


def _optimizers(victim: Dreamer, flat: Mapping[str, np.ndarray], optimizer: Optimizer) -> dict[str, Any]:
    """Return the optimizer's state under both paths by which the reference finds it."""
    rows = [weight for weight in weights(victim) if _module(weight.key) in _OPTIMIZED]
    rows.sort(key=lambda weight: _OPTIMIZED.index(_module(weight.key)))
    trained = [weight for weight in rows if _module(weight.key) not in _AVERAGED]
    # PyTorch's optimizers make a parameter's state at its first update.
    state = _moments(optimizer, trained, flat) if optimizer.count else {}
    group = {
        "lr": float(optimizer.lr),
        "betas": optimizer.betas,
        "eps": optimizer.eps,
        "weight_decay": 0,
        "amsgrad": False,
        "centered": False,
        "initial_lr": float(optimizer.initial_lr),
        "params": list(range(len({weight.key for weight in rows}))),
    }
    paths = ("_optimizer", "_scheduler.optimizer")
    return {path: {"state": dict(state), "param_groups": [dict(group)]} for path in paths}


def _moments(optimizer: Optimizer, trained: list[Weight], flat: Mapping[str, np.ndarray]) -> dict[int, dict[str, Any]]:
    """Return what the optimizer keeps of every trained parameter, by the parameter's number."""
    mu, nu = _flat(optimizer.mu), _flat(optimizer.nu)
    shapes = {weight.path: flat[weight.path].shape for weight in trained}
    for name, moment in (("mu", mu), ("nu", nu)):
        if {path: array.shape for path, array in moment.items()} != shapes:
            raise InputError(f"optimizer.{name}: its names and shapes must be those of the trained weights")
    pairs = zip(_tensors(trained, mu).values(), _tensors(trained, nu).values(), strict=True)
    return {
        number: {
            "step": int(optimizer.count),
            "exp_avg": first,
            "exp_avg_lr_1": float(optimizer.lr_1),
            "exp_avg_lr_2": float(optimizer.lr_2),
            "exp_avg_sq": second,
        }
        for number, (first, second) in enumerate(pairs)
    }


def _check(flat: Mapping[str, np.ndarray], victim: Dreamer, where: str) -> None:
    """Raise InputError, naming `where`, unless the parts that only training reads are there and of the right shapes."""
    names = {weight.path for weight in weights(victim)}
    if missing := {name.split("/")[0] for name in names - flat.keys()}:
        raise InputError(f"{where}: lacks {listed(missing)}; a checkpoint holds also what only training reads")
    if unknown := flat.keys() - names:
        raise InputError(f"{where}: a {victim.agent} agent's checkpoint has no place for {listed(unknown)}")
    for name, shape in _training_shapes(victim, flat).items():
        if flat[name].shape != shape:
            raise InputError(f"{where}: {name} is {list(flat[name].shape)}, expected {list(shape)}")


def _training_shapes(victim: Dreamer, flat: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    feature, embed = victim.feature_size, victim.embedding_size
    shapes: dict[str, tuple[int, ...]] = {"return_ema/quantiles": (2,)}
    match victim.agent:
        case "r2dreamer" | "infonce":
            shapes["projector/kernel"] = (feature, embed)
        case "dreamerpro":
            size, number = flat["obs_proj/bias"].size, flat["prototypes/kernel"].shape[-1:]
            shapes["prototypes/kernel"] = (size, *number)
            for name, inputs in (("obs_proj", embed), ("feat_proj", feature), ("ema_obs_proj", embed)):
                shapes |= {f"{name}/kernel": (inputs, size), f"{name}/bias": (size,)}
            shapes |= {f"ema_{name}": x.shape for name, x in flat.items() if name.startswith("encoder/")}
    return shapes


def _tensors(table: list[Weight], flat: Mapping[str, np.ndarray]) -> dict[str, Any]:
    import torch

    return {key: torch.from_numpy(array) for key, array in to_torch(table, flat).items()}


def _flat(tree: Params) -> dict[str, np.ndarray]:
    return {name: np.asarray(leaf, np.float32) for name, leaf in flatten_dict(tree, sep="/").items()}


def _module(key: str) -> str:
    return key.split(".")[0]
