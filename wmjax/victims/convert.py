"""Turns a PyTorch checkpoint of the public R2-Dreamer code into our weight file, without ever running its pickles.

Sizes come from the tensors; what tensors cannot tell comes from the hydra config beside the file, or from arguments.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wmjax.core.errors import InputError, unknown_name
from wmjax.victims.dreamer import AGENTS, Dreamer
from wmjax.victims.dreamer.layout import count, weights
from wmjax.victims.weights import Card, check_tree, file_sha256, listed, write

_CONFIG_BYTES = 1 << 20

State = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Hints:
    """What the tensors of a checkpoint do not tell."""

    stoch: int | None = None  #: latent groups; tensors only show groups x classes
    agent: str | None = None  #: r2dreamer and infonce have the same keys
    task: str | None = None
    action_repeat: int | None = None


def convert(
    checkpoint: str | Path,
    out: str | Path,
    *,
    stoch: int | None = None,
    agent: str | None = None,
    task: str | None = None,
    action_repeat: int | None = None,
) -> Path:
    """Convert `checkpoint` (`latest.pt`) to the weight file `out` (`.safetensors`) and return the latter's path.

    An argument left out is read from `.hydra/config.yaml` beside the checkpoint, where there is one; see `Hints`.
    The same input gives the same bytes. Raises InputError, and writes nothing, for a file that is not such a
    checkpoint, for unknown or missing keys, and where a hint is missing or contradicts the tensors.
    """
    source, target = Path(checkpoint), Path(out)
    _check_paths(source, target)
    state = _read_state(source)
    config = _read_config(source.parent / ".hydra" / "config.yaml")
    hints = Hints(
        stoch=stoch if stoch is not None else config.stoch,
        agent=agent if agent is not None else config.agent,
        task=task if task is not None else config.task,
        action_repeat=action_repeat if action_repeat is not None else config.action_repeat,
    )
    victim = infer(state, hints, str(source))
    flat = {weight.path: weight.to_jax(state[weight.key]) for weight in weights(victim)}
    check_tree(flat, victim, str(source))
    card = Card(
        victim=victim,
        task=hints.task,
        action_repeat=2 if hints.action_repeat is None else hints.action_repeat,
        source=source.name,
        source_sha256=file_sha256(source),
    )
    write(target, card, flat)
    return target


def infer(state: State, hints: Hints, where: str) -> Dreamer:
    """Return the sizes of the agent whose tensors are `state`; raises InputError naming `where` if they are none."""
    if hints.action_repeat is not None and hints.action_repeat < 1:
        raise InputError(f"action_repeat is {hints.action_repeat}; it must be at least 1")
    agent = _agent(state, hints.agent, where)
    try:
        victim = _sizes(state, agent, hints.stoch)
    except InputError:
        raise
    except KeyError as error:
        raise InputError(f"{where}: not an agent of the R2-Dreamer code: no tensor {error.args[0]}") from None
    except (ValueError, IndexError, ZeroDivisionError):
        raise InputError(f"{where}: not an agent of the R2-Dreamer code: its tensors do not fit together") from None
    expected = {weight.key for weight in weights(victim)}
    for what, names in (("missing", expected - state.keys()), ("unknown", state.keys() - expected)):
        if names:
            raise InputError(f"{where}: {what} keys for a {agent} agent: {listed(names)}")
    return victim


def _agent(state: State, hint: str | None, where: str) -> str:
    if hint is not None and hint not in AGENTS:
        raise unknown_name("agent", hint, AGENTS)
    if any(key.startswith("decoder.") for key in state):
        possible = ("dreamer",)
    elif "_prototypes" in state:
        possible = ("dreamerpro",)
    elif "prj.w.weight" in state:
        possible = ("r2dreamer", "infonce")
    else:
        raise InputError(f"{where}: not an agent of the R2-Dreamer code: no decoder, projector or prototypes")
    if hint is None and len(possible) > 1:
        raise InputError(f"{where}: its tensors fit {' and '.join(possible)}; say which with --agent")
    if hint is not None and hint not in possible:
        raise InputError(f"{where}: agent is {hint!r}, but its tensors are those of {' or '.join(possible)}")
    return hint or possible[0]


def _sizes(state: State, agent: str, stoch: int | None) -> Dreamer:
    shape = {key: tensor.shape for key, tensor in state.items()}
    core = "rssm._deter_net"
    hidden, deter = shape[f"{core}._dyn_in0.0.weight"]
    latent = shape[f"{core}._dyn_in1.0.weight"][1]
    stages = count(r"encoder\.encoders\.0\.layers\.\d+\.bias", state)
    depths = tuple(shape[f"encoder.encoders.0.layers.{4 * i}.weight"][0] for i in range(stages))
    embed = shape["rssm._obs_net.obs_net_0.weight"][1] - deter
    actions = shape[f"{core}._dyn_in2.0.weight"][1]
    if shape["actor.last.weight"][0] != 2 * actions:
        raise InputError("actor.last.weight: only continuous actions (a mean and a std each) are supported")
    if stoch is None:
        raise InputError(f"stoch is not given: how many groups make up the {latent} latent units? say with --stoch")
    if stoch < 1 or latent % stoch:
        raise InputError(f"stoch is {stoch}; it must divide the checkpoint's {latent} latent units")
    heads = {
        f"{ours}_layers": count(rf"{theirs}\.mlp\.layers\.{theirs}_linear\d+\.weight", state)
        for ours, theirs in (("actor", "actor"), ("critic", "value"), ("reward", "reward"), ("cont", "cont"))
    }
    decoder = {}
    if agent == "dreamer":
        decoder["decoder_units"] = shape["decoder._cnn.sp1.0.weight"][0]
        decoder["decoder_blocks"] = shape["decoder._cnn.sp0.weight"][2]
    return Dreamer(
        agent=agent,
        action_size=actions,
        stoch=stoch,
        discrete=latent // stoch,
        deter=deter,
        hidden=hidden,
        units=shape["actor.last.weight"][1],
        blocks=shape[f"{core}._dyn_gru.weight"][2],
        depths=depths,
        kernel_size=shape["encoder.encoders.0.layers.0.weight"][2],
        minres=math.isqrt(embed // depths[-1]),
        dyn_layers=count(r"rssm\._deter_net\._dyn_hid\.dyn_hid_\d+\.weight", state),
        img_layers=count(r"rssm\._img_net\.img_net_\d+\.weight", state),
        obs_layers=count(r"rssm\._obs_net\.obs_net_\d+\.weight", state),
        bins=shape["value.last.weight"][0],
        **heads,
        **decoder,
    )


def _check_paths(source: Path, target: Path) -> None:
    if not source.is_file():
        raise InputError(f"{source}: no such file")
    if target.suffix != ".safetensors":
        raise InputError(f"{target}: the output's name must end in .safetensors")
    if not target.parent.is_dir():
        raise InputError(f"{target}: no folder {target.parent}")
    if target.is_dir():
        raise InputError(f"{target}: is a folder")
    if target.exists() and target.samefile(source):
        raise InputError(f"{target}: is the checkpoint itself")


def _read_state(source: Path) -> dict[str, np.ndarray]:
    """Return the agent's tensors as float32, without the `_frozen_*` aliases; raises InputError for anything else."""
    try:
        import torch
    except ImportError:
        raise InputError("converting needs PyTorch: pip install 'wmjax[convert]'") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise InputError(
            f"{source}: not a checkpoint that can be read without running code ({type(error).__name__}"
            f"{': ' + reason[0][:120] if reason else ''})"
        ) from None
    state = loaded.get("agent_state_dict") if isinstance(loaded, dict) else None
    if not isinstance(state, dict) or not state:
        raise InputError(f"{source}: no agent_state_dict in it; expected the latest.pt of an R2-Dreamer run")
    arrays = {}
    for key, tensor in state.items():
        if not isinstance(key, str) or not isinstance(tensor, torch.Tensor):
            raise InputError(f"{source}: agent_state_dict holds {key!r}, which is not a named tensor")
        if not key.startswith("_frozen_"):
            arrays[key] = _array(key, tensor, source)
    return arrays


def _array(key: str, tensor: Any, source: Path) -> np.ndarray:
    import torch

    dense = tensor.layout == torch.strided and tensor.device.type == "cpu" and tensor.is_floating_point()
    # A view that repeats its storage could ask for any amount of memory.
    if not dense or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise InputError(f"{source}: {key} is not a plain floating-point tensor")
    return tensor.detach().to(torch.float32).numpy()


def _read_config(path: Path) -> Hints:
    """Return what the run's resolved hydra config tells; nothing where there is none."""
    if not path.is_file():
        return Hints()
    import yaml

    try:
        if path.stat().st_size > _CONFIG_BYTES:
            raise ValueError("too large")
        config = yaml.safe_load(path.read_text())
        env, model = config["env"], config["model"]
        hints = Hints(
            stoch=model["rssm"]["stoch"],
            agent=model["rep_loss"],
            task=env["task"],
            action_repeat=env["action_repeat"],
        )
        for name, kind in (("stoch", int), ("agent", str), ("task", str), ("action_repeat", int)):
            if not isinstance(getattr(hints, name), kind):
                raise ValueError(f"{name} is {getattr(hints, name)!r}")
    except (KeyError, TypeError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"{path}: not the resolved config of an R2-Dreamer run ({error!s:.120})") from None
    return hints
