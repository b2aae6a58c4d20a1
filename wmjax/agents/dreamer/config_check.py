"""Compares the configuration beside a checkpoint with its tensors and with what wmjax computes, and reads the rest."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from wmjax.agents.dreamer import Dreamer
from wmjax.agents.dreamer.hydra import Config, Found, Unresolved, brief
from wmjax.agents.dreamer.reference_config import identity, inference, joined, training
from wmjax.agents.weights import listed
from wmjax.core.errors import InputError
from wmjax.core.text import printable

ENTRIES: dict[str, tuple[str, Any]] = {
    "stoch": ("model.rssm.stoch", int),
    "agent": ("model.rep_loss", str),
    "task": ("env.task", str),
    "action_repeat": ("env.action_repeat", int),
    "horizon": ("model.horizon", int),
}
"""Entries that tell what the tensors do not, by the field of `Hints`."""

_SHARED = ("act", "norm", "deter", "hidden", "discrete", "depth", "units")
"""Entries of `model` that count only where a part refers to them, or has no such entry of its own."""

_FIXED = (
    *("act", "norm", "name", "symlog_inputs", "unimix_ratio", "min_std", "max_std"),
    *("camera", "gray", "mlp_keys", "cnn_keys"),
)
"""Entries that no tensor shows, under any section."""

_BESIDE = "the checkpoint beside it"

_NOTHING = ("$^", "^$")
"""Regular expressions, matched with the names of observations, that choose none."""


@dataclass(frozen=True)
class Hints:
    """What the tensors of a checkpoint do not tell."""

    stoch: int | None = None  #: latent groups; tensors only show groups x classes
    agent: str | None = None  #: r2dreamer and infonce have the same keys
    task: str | None = None
    action_repeat: int | None = None
    horizon: int | None = None  #: 1 / (1 - discount), in agent steps


def complete(given: Hints, config: Config) -> Hints:
    """Complete what the caller gave by the file; what was given, the file need not tell.

    Raises InputError for an entry that cannot be resolved or is of another type, naming the flag that gives it, and
    where `stoch` or `agent` is another than in the file.
    """
    return Hints(**{field.name: _hint(config, field.name, getattr(given, field.name)) for field in fields(Hints)})


def _hint(config: Config, hint: str, given: Any) -> Any:
    name, kind = ENTRIES[hint]
    way = f"--ignore {name}" if hint == "horizon" else f"say with --{hint.replace('_', '-')}"
    try:
        found = config.find(name)
    except Unresolved as error:
        if given is not None:
            return given
        raise InputError(f"{error}; {way}") from None
    if given is not None:
        if hint in ("stoch", "agent") and found is not None and found.value != given:
            raise InputError(f"{hint} is {given!r:.80}, but {brief(found.value)} in {config.path}")
        return given
    if found is None:
        return None
    value: Any = found.value
    if hint == "horizon" and type(value) is float and value.is_integer():
        value = int(value)  # as the code does
    if type(value) is not kind:
        expected = "a whole number" if kind is int else "text"
        raise InputError(f"{config.path}: {found.told(name)}, expected {expected}; {way}")
    if hint == "horizon" and not 1 <= value < 1 << 31:
        raise InputError(f"{config.path}: {found.told(name)}, expected a whole number from 1 to {(1 << 31) - 1}")
    return value


def check(config: Config, victim: Dreamer) -> None:
    """Raise InputError where the file contradicts the agent's sizes, or asks for what wmjax does not compute.

    Also for an entry that the reference does not have, and for one that cannot be resolved.
    """
    known = inference(victim)
    _check_known(config, known)
    _check_depths(config, "model.encoder.cnn", victim)
    if victim.agent == "dreamer":
        _check_depths(config, "model.decoder.cnn", victim)
    known = joined(known, identity(victim, None, 0))
    if unknown := list(_unknown(config, known, joined(*training(victim).values()))):
        flags = " ".join(f"--ignore {name}" for name in unknown[:4]) + (" ..." if len(unknown) > 4 else "")
        raise InputError(
            f"{config.path}: the R2-Dreamer code has no {listed(unknown, 6)}; if the agent acts alike without: {flags}"
        )


def _check_known(config: Config, known: dict[str, Any], section: str = "") -> None:
    for key, only in known.items():
        name = f"{section}{key}"
        if isinstance(only, dict):
            _check_known(config, only, f"{name}.")
            continue
        if key in ("depth", "mults") or (found := _find(config, name)) is None:
            continue
        if key == "mlp_keys":
            right = found.value in _NOTHING
        elif key == "cnn_keys":
            right = _chooses_images(found.value)
        else:
            right = found.value == only
        if not right:
            why = "; wmjax only runs agents with {}" if key in _FIXED else f", but {{}} in {_BESIDE}"
            raise InputError(f"{config.path}: {found.told(name)}{why.format(brief(only))}")


def _find(config: Config, name: str) -> Found | None:
    """Return an entry, or where a part has none that of `model`; raises InputError with a way on."""
    try:
        found, last = config.find(name), name.split(".")[-1]
        if found is None and last in _SHARED and not config.ignores(name):
            found = config.find(f"model.{last}")
    except Unresolved as error:
        raise InputError(f"{error}; write its value there, or --ignore {name}") from None
    return found


def _check_depths(config: Config, section: str, victim: Dreamer) -> None:
    depth, mults = (_find(config, f"{section}.{name}") for name in ("depth", "mults"))
    if depth is None:
        return
    factors = [2, 3, 4, 4] if mults is None else mults.value
    whole = isinstance(factors, list) and all(type(x) is int for x in (depth.value, *factors))
    told = [depth.value * x for x in factors] if whole else None
    if told != list(victim.depths):
        raise InputError(
            f"{config.path}: {section}.depth times mults is {brief(told) if told else 'no list of whole numbers'}, "
            f"but {list(victim.depths)} in {_BESIDE}"
        )


def _chooses_images(pattern: Any) -> bool:
    """Return whether a regular expression chooses the observation `image`; a complicated one could search for ever."""
    if type(pattern) is not str or not re.fullmatch(r"[\w|^$.*]{0,99}", pattern) or pattern.count("*") > 2:
        return False
    try:
        return re.match(pattern, "image") is not None
    except re.error:
        return False


def _unknown(config: Config, read: dict[str, Any], unread: dict[str, Any], section: str = "") -> Iterator[str]:
    """Yield the file's entries that are in neither tree; what a section that nothing reads holds may be anything."""
    for key, below in read.items():
        if not isinstance(below, dict):
            continue
        name = f"{section}{key}"
        found, others = _find(config, name), unread.get(key, {})
        if found is None:
            continue
        if not isinstance(found.value, dict):
            raise InputError(f"{config.path}: {found.told(name)}; it must be a section")
        for entry in found.value:
            if entry not in below and entry not in others and not config.ignores(f"{name}.{entry}"):
                yield printable(f"{name}.{entry}"[:80])
        yield from _unknown(config, below, others, f"{name}.")
