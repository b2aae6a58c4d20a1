"""Turns a PyTorch checkpoint of the public R2-Dreamer code into our weight file, without ever running its pickles.

Sizes come from the tensors; what tensors cannot tell comes from the hydra config beside the file, or from arguments.
"""

import math
import pickletools
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wmjax.core.errors import InputError, unknown_name
from wmjax.core.naming import as_path
from wmjax.victims.dreamer import AGENTS, Dreamer
from wmjax.victims.dreamer.layout import count, weights
from wmjax.victims.hydra import Hints, merge, read_config
from wmjax.victims.weights import Card, check_sizes, check_tree, file_sha256, listed, write

_PLAIN = re.compile(r"collections OrderedDict|torch\._utils _rebuild_(tensor_v2|parameter)|torch \w+Storage")
"""Names that the pickle of a checkpoint may mention: torch.load allows more, such as building huge byte arrays."""

_TASK = re.compile(r"(dmc|metaworld)_[a-z0-9_]+")

State = Mapping[str, np.ndarray]


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
    checkpoint, for unknown or missing keys, and where a hint is missing or contradicts the tensors or the config.
    """
    source, target = as_path(checkpoint), as_path(out)
    _check_paths(source, target)
    state = _read_state(source)
    config = read_config(source.parent / ".hydra" / "config.yaml")
    hints = merge(Hints(stoch, agent, task, action_repeat), config)
    victim = infer(state, hints, str(source))
    config.check(victim)
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
    """Return the sizes of the agent whose tensors are `state`; raises InputError naming `where` if they are none.

    Also for a hint out of its range.
    """
    stoch, repeat, task = hints.stoch, hints.action_repeat, hints.task
    if stoch is not None and (type(stoch) is not int or stoch < 1):
        raise InputError(f"stoch is {stoch!r:.80}; it must be a whole number from 1")
    if repeat is not None and (type(repeat) is not int or not 1 <= repeat <= 100):
        raise InputError(f"action_repeat is {repeat!r:.80}; it must be a whole number from 1 to 100")
    if task is not None and (type(task) is not str or not _TASK.fullmatch(task)):
        raise InputError(
            f"task is {task!r:.80}; it must be dmc_ or metaworld_ and lower-case letters, digits or underscores"
        )
    agent = _agent(state, hints.agent, where)
    try:
        victim = _sizes(state, agent, hints.stoch)
        check_sizes(victim)
    except InputError:
        raise
    except KeyError as error:
        raise InputError(f"{where}: not an agent of the R2-Dreamer code: no tensor {error.args[0]}") from None
    except (ValueError, IndexError, ZeroDivisionError):
        raise InputError(f"{where}: not an agent of the R2-Dreamer code: its tensors do not fit together") from None
    expected = {weight.key: len(weight.axes) for weight in weights(victim)}
    for what, names in (("missing", expected.keys() - state.keys()), ("unknown", state.keys() - expected.keys())):
        if names:
            raise InputError(f"{where}: {what} keys for a {agent} agent: {listed(names)}")
    for key, axes in expected.items():
        if state[key].ndim != axes:
            raise InputError(f"{where}: {key} has {state[key].ndim} axes, expected {axes}")
    return victim


def _agent(state: State, hint: str | None, where: str) -> str:
    if hint is not None and hint not in AGENTS:
        raise unknown_name("agent", hint, AGENTS)
    if any(key.startswith("decoder.") for key in state):
        possible: tuple[str, ...] = ("dreamer",)
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
    if latent % stoch:
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
    try:
        if not source.is_file():
            raise InputError(f"{source}: {'is a folder' if source.is_dir() else 'no such file'}")
        if target.suffix != ".safetensors":
            raise InputError(f"{target}: the output's name must end in .safetensors")
        if not target.parent.is_dir():
            raise InputError(f"{target}: no folder {target.parent}")
        if target.is_dir():
            raise InputError(f"{target}: is a folder")
        if target.exists() and target.samefile(source):
            raise InputError(f"{target}: is the checkpoint itself")
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}") from None


def _check_archive(source: Path) -> None:
    """Raise unless `source` is a zip file as torch.save writes it for tensors: nothing packed, only plain names."""
    with zipfile.ZipFile(source) as archive:
        entries = archive.infolist()
        overlapping = sum(entry.file_size for entry in entries) > source.stat().st_size
        if overlapping or any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("packed entries")
        pickles = [entry for entry in entries if entry.filename.split("/")[-1] == "data.pkl"]
        if len(pickles) != 1:
            raise ValueError("no single data.pkl")
        for opcode, argument, _ in pickletools.genops(archive.read(pickles[0])):
            mentions = "GLOBAL" in opcode.name or opcode.name in ("INST", "EXT1", "EXT2", "EXT4")
            if mentions and not _PLAIN.fullmatch(str(argument)):
                raise ValueError(f"it names {argument}")


def _read_state(source: Path) -> dict[str, np.ndarray]:
    """Return the agent's tensors as float32, without the `_frozen_*` aliases; raises InputError for anything else."""
    try:
        import torch
    except ImportError:
        raise InputError("converting needs PyTorch: pip install 'wmjax[convert]'") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _check_archive(source)
            loaded = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{source}: not a checkpoint that holds tensors and no code ({reason:.160})") from None
    state = loaded.get("agent_state_dict") if isinstance(loaded, dict) else None
    if not isinstance(state, dict) or not state:
        raise InputError(f"{source}: no agent_state_dict in it; expected the latest.pt of an R2-Dreamer run")
    arrays = {}
    for key, tensor in state.items():
        if not isinstance(key, str) or not isinstance(tensor, torch.Tensor):
            raise InputError(f"{source}: agent_state_dict has an entry that is not a named tensor")
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
