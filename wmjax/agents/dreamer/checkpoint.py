"""Reads the tensors of a PyTorch checkpoint without ever running its pickles, in the layouts that such files have."""

import pickletools
import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from wmjax.agents.weights import listed
from wmjax.core.errors import InputError

State = Mapping[str, np.ndarray]

_PLAIN = re.compile(r"collections OrderedDict|torch\._utils _rebuild_(tensor_v2|parameter)|torch \w+Storage")
"""Names that the pickle of a checkpoint may mention: torch.load allows more, such as building huge byte arrays."""

_HOLDERS = ("model", "state_dict", "agent")
"""Where other code than the reference's puts the state dict, which the reference calls `agent_state_dict`."""

_WRAPPERS = ("module", "_orig_mod")
"""What DataParallel and torch.compile put before the names of the modules that they wrap."""


def read_state(source: Path, drop: Sequence[str] = ()) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the agent's tensors as float32 by their names, and the names left out, with the prefix that did it.

    A prefix of `drop` leaves out the tensor of that name, and those below it: `aux` leaves out `aux` and `aux.weight`.
    The aliases `_frozen_*` are in neither. Raises InputError for anything that is not such a file.
    """
    try:
        import torch
    except ImportError:
        raise InputError("converting needs PyTorch: pip install 'wmjax[convert]'") from None
    try:
        # By its handle: the library knows no names of files that are not UTF-8.
        with source.open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _check_archive(file)
            loaded = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{source}: not a checkpoint that holds tensors and no code ({reason:.160})") from None
    named = _unwrapped(_state(loaded, source), source)
    prefixes = {_bare(prefix): prefix for prefix in drop}
    gone: dict[str, str] = {}
    for bare, prefix in prefixes.items():
        below = [name for name in named if name == bare or name.startswith(f"{bare}.")]
        if not below:
            raise InputError(f"drop is {prefix!r:.80}; no tensor of {source} has that name, or one below it")
        gone |= dict.fromkeys(below, bare)
    kept = {name for name in named if name not in gone and not name.startswith("_frozen_")}
    return {name: _array(name, named[name], source) for name in named if name in kept}, gone


def _check_archive(file: IO[bytes]) -> None:
    """Raise unless `file` is a zip file as torch.save writes it for tensors: nothing packed, only plain names."""
    size = file.seek(0, 2)
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        overlapping = sum(entry.file_size for entry in entries) > size
        if overlapping or any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("packed entries")
        pickles = [entry for entry in entries if entry.filename.split("/")[-1] == "data.pkl"]
        if len(pickles) != 1:
            raise ValueError("no single data.pkl")
        for opcode, argument, _ in pickletools.genops(archive.read(pickles[0])):
            mentions = "GLOBAL" in opcode.name or opcode.name in ("INST", "EXT1", "EXT2", "EXT4")
            if mentions and not _PLAIN.fullmatch(str(argument)):
                raise ValueError(f"it names {argument}")
    file.seek(0)


def _state(loaded: Any, source: Path) -> Mapping[Any, Any]:
    """Return the one dictionary of tensors in what was loaded: the reference's, or else the only one that there is."""
    import torch

    def holds(value: Any) -> bool:
        return isinstance(value, dict) and any(isinstance(each, torch.Tensor) for each in value.values())

    if isinstance(loaded, dict):
        if holds(loaded.get("agent_state_dict")):
            return loaded["agent_state_dict"]
        found = {name: loaded[name] for name in _HOLDERS if holds(loaded.get(name))}
        if holds(loaded):
            found["the file itself"] = loaded
        if len(found) == 1:
            return next(iter(found.values()))
        if found:
            raise InputError(f"{source}: no agent_state_dict, and tensors in {listed(found)}: keep the agent's alone")
    raise InputError(f"{source}: no agent_state_dict in it; expected the latest.pt of an R2-Dreamer run")


def _unwrapped(state: Mapping[Any, Any], source: Path) -> dict[str, Any]:
    import torch

    named: dict[str, Any] = {}
    for key, tensor in state.items():
        if not isinstance(key, str) or not isinstance(tensor, torch.Tensor):
            raise InputError(f"{source}: the agent's state has an entry that is not a named tensor: {key!r:.80}")
        name = _bare(key)
        if name in named:
            raise InputError(f"{source}: {key!r:.80} and another key name the same tensor, {name:.80}")
        named[name] = tensor
    return named


def _bare(key: str) -> str:
    return ".".join(part for part in key.split(".") if part not in _WRAPPERS)


def _array(key: str, tensor: Any, source: Path) -> np.ndarray:
    import torch

    dense = tensor.layout == torch.strided and tensor.device.type == "cpu" and tensor.is_floating_point()
    # A view that repeats its storage could ask for any amount of memory.
    if not dense or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise InputError(f"{source}: {key} is not a plain floating-point tensor")
    return tensor.detach().to(torch.float32).numpy()
