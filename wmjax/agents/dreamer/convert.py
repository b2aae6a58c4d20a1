"""Turns a PyTorch checkpoint of the public R2-Dreamer code into our weight file.

Sizes come from the tensors; what tensors cannot tell comes from the configuration beside the file, or from arguments.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from wmjax.agents.dreamer import AGENTS, Dreamer
from wmjax.agents.dreamer.checkpoint import State, read_state
from wmjax.agents.dreamer.config_check import Hints, check, complete
from wmjax.agents.dreamer.hydra import read_config
from wmjax.agents.dreamer.reference_config import spelled
from wmjax.agents.dreamer.torch_layout import count, weights
from wmjax.agents.weights import Card, check_sizes, check_tree, file_sha256, listed, write
from wmjax.core.errors import InputError, unknown_name
from wmjax.core.text import as_path, as_text


def convert(
    checkpoint: str | Path,
    out: str | Path,
    *,
    stoch: int | None = None,
    agent: str | None = None,
    task: str | None = None,
    action_repeat: int | None = None,
    drop: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> Path:
    """Convert `checkpoint` (`latest.pt`) to the weight file `out` (`.safetensors`) and return the latter's path.

    An argument left out is read from `.hydra/config.yaml` beside the checkpoint or one folder up, where there is one;
    see `Hints`. `drop` are prefixes of tensors to leave out, modules that the agent acts without; `ignore` are entries
    of the configuration to read as if they were not there. The card names both.
    The same input gives the same bytes. Raises InputError, and writes nothing, for a file that is not such a
    checkpoint, for unknown or missing keys, and where a hint is missing or contradicts the tensors or the config.
    """
    source, target = as_path(checkpoint), as_path(out)
    _check_paths(source, target)
    for name, listed_names in (("drop", drop), ("ignore", ignore)):
        if isinstance(listed_names, str) or not all(isinstance(each, str) for each in listed_names):
            raise InputError(f"{name} is {listed_names!r:.80}; expected a list of texts")
    numbers = [x.item() if isinstance(x, np.integer) else x for x in (stoch, action_repeat)]
    given = Hints(numbers[0], agent, None if task is None else spelled(task), numbers[1])
    check_hints(given)
    state, gone = read_state(source, drop)
    config = read_config(source, tuple(ignore))
    hints = complete(given, config)
    check_hints(hints)
    victim = infer(state, hints, str(source), gone, config.lacks)
    check(config, victim)
    flat = {weight.path: weight.to_jax(state[weight.key]) for weight in weights(victim)}
    check_tree(flat, victim, str(source))
    card = Card(
        victim=victim,
        task=None if hints.task is None else spelled(hints.task),
        action_repeat=2 if hints.action_repeat is None else hints.action_repeat,
        source=as_text(source.name),
        source_sha256=file_sha256(source),
        dropped=dict(Counter(gone.values())),
        ignored=config.ignored,
    )
    write(target, card, flat)
    return target


def infer(state: State, hints: Hints, where: str, gone: Mapping[str, str], lacks: str) -> Dreamer:
    """Return the sizes of the agent whose tensors are `state`; raises InputError naming `where` if they are none.

    Also where the agent needs one of the tensors in `gone`, names with the prefix that left them out. `lacks` says what
    might have told a missing hint.
    """
    agent = _agent(state, hints.agent, where, lacks)
    try:
        victim = _sizes(state, [*state, *gone], agent, hints, lacks)
        check_sizes(victim)
    except InputError:
        raise
    except KeyError as error:
        _check_needed(error.args, gone, where)
        raise InputError(f"{where}: not an agent of the R2-Dreamer code: no tensor {error.args[0]}") from None
    except (ValueError, IndexError, ZeroDivisionError):
        raise InputError(f"{where}: not an agent of the R2-Dreamer code: its tensors do not fit together") from None
    expected = {weight.key: len(weight.axes) for weight in weights(victim)}
    for what, names in (("missing", expected.keys() - state.keys()), ("unknown", state.keys() - expected.keys())):
        _check_needed(names, gone, where)
        if names:
            more = _drops(names, expected) if what == "unknown" else ""
            raise InputError(f"{where}: {what} keys for a {agent} agent: {listed(names)}{more}")
    for key, axes in expected.items():
        if state[key].ndim != axes:
            raise InputError(f"{where}: {key} has {state[key].ndim} axes, expected {axes}")
    return victim


def check_hints(hints: Hints) -> None:
    """Raise InputError for a hint that is out of its range."""
    stoch, repeat = hints.stoch, hints.action_repeat
    if stoch is not None and (type(stoch) is not int or stoch < 1):
        raise InputError(f"stoch is {stoch!r:.80}; it must be a whole number from 1")
    if repeat is not None and (type(repeat) is not int or not 1 <= repeat <= 100):
        raise InputError(f"action_repeat is {repeat!r:.80}; it must be a whole number from 1 to 100")


def _check_needed(names: Iterable[str], gone: Mapping[str, str], where: str) -> None:
    for name in sorted(set(names) & gone.keys()):
        raise InputError(f"{where}: drop is {gone[name]!r:.80}, but the agent needs {name}")


def _drops(unknown: Iterable[str], known: Iterable[str]) -> str:
    """Return how to leave `unknown` tensors out: by the shortest prefixes that no known one has."""
    parts = {name[: dot.start()] for name in known for dot in re.finditer(r"\.|$", name)}
    prefixes = dict.fromkeys(
        next(name[: dot.start()] for dot in re.finditer(r"\.|$", name) if name[: dot.start()] not in parts)
        for name in sorted(unknown)
    )
    flags = " ".join(f"--drop {prefix:.60}" for prefix in list(prefixes)[:3]) + (" ..." if len(prefixes) > 3 else "")
    return f"; if the agent acts without them: {flags}"


def _agent(state: State, hint: str | None, where: str, lacks: str) -> str:
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
        raise InputError(f"{where}: its tensors fit {' and '.join(possible)}; say which with --agent{lacks}")
    if hint is not None and hint not in possible:
        raise InputError(f"{where}: agent is {hint!r}, but its tensors are those of {' or '.join(possible)}")
    return hint or possible[0]


def _sizes(state: State, names: Sequence[str], agent: str, hints: Hints, lacks: str) -> Dreamer:
    """Return the sizes; layers are counted among all `names`, so that leaving one out does not make a smaller agent."""
    stoch = hints.stoch
    shape = {key: tensor.shape for key, tensor in state.items()}
    core = "rssm._deter_net"
    hidden, deter = shape[f"{core}._dyn_in0.0.weight"]
    latent = shape[f"{core}._dyn_in1.0.weight"][1]
    stages = count(r"encoder\.encoders\.0\.layers\.\d+\.bias", names)
    depths = tuple(shape[f"encoder.encoders.0.layers.{4 * i}.weight"][0] for i in range(stages))
    embed = shape["rssm._obs_net.obs_net_0.weight"][1] - deter
    actions = shape[f"{core}._dyn_in2.0.weight"][1]
    if shape["actor.last.weight"][0] != 2 * actions:
        raise InputError("actor.last.weight: only continuous actions (a mean and a std each) are supported")
    if stoch is None:
        raise InputError(
            f"stoch is not given: how many groups make up the {latent} latent units? say with --stoch{lacks}"
        )
    if latent % stoch:
        raise InputError(f"stoch is {stoch}; it must divide the checkpoint's {latent} latent units")
    heads = {
        f"{ours}_layers": count(rf"{theirs}\.mlp\.layers\.{theirs}_linear\d+\.weight", names)
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
        dyn_layers=count(r"rssm\._deter_net\._dyn_hid\.dyn_hid_\d+\.weight", names),
        img_layers=count(r"rssm\._img_net\.img_net_\d+\.weight", names),
        obs_layers=count(r"rssm\._obs_net\.obs_net_\d+\.weight", names),
        bins=shape["value.last.weight"][0],
        horizon=Dreamer.horizon if hints.horizon is None else hints.horizon,
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
