"""The setting of attacked episodes: which frames, where, how finely, through what defense, by whose gradient."""

from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wmjax.report.labels import mode_order
from wmjax.report.load_results import Rows


class Setting(NamedTuple):
    """What episodes of one curve have in common beside victim, task and attack; the columns of a row."""

    mode: str
    region: str
    frames: str
    defense: str
    adaptive: bool
    source: str = "self"  #: the agent that attacks are computed on; 'self', which 'none' counts as, is the victim

    @property
    def transferred(self) -> bool:
        """Whether attacks are computed on another agent than the victim."""
        return self.source not in ("self", "none")


USUAL = Setting("full", "all", "float", "none", False)
"""Every frame, the whole image, no defense, by the victim's own gradient: the benchmark's main study."""


def noise_setting(setting: Setting) -> Setting:
    """Return the setting that episodes of random noise belong to: noise knows neither defense nor agent."""
    return setting._replace(adaptive=False, source="self")


def setting_order(setting: Setting) -> tuple:
    """Return the sorting key of a setting: modes in their order; of the other axes the usual first, then by name."""
    rest = ((value != usual, value) for value, usual in zip(setting[1:], USUAL[1:], strict=True))
    return (mode_order(setting.mode), *rest)


def told_axes(settings: Iterable[Setting]) -> frozenset[str]:
    """Return what the name of a setting among these tells: its mode, and the axes that are not as usual in all."""
    every = list(settings)
    other = {axis for i, axis in enumerate(Setting._fields) if any(setting[i] != USUAL[i] for setting in every)}
    return frozenset({"mode", *other} - ({"source"} if not any(setting.transferred for setting in every) else set()))


def setting_name(setting: Setting, told: frozenset[str]) -> str:
    """Return the name, such as `full` or `sparse(2), defense jpeg(75), adaptive`; nothing in it is escaped."""
    parts = [setting.mode]
    if "region" in told:
        parts.append("whole image" if setting.region == "all" else f"region {setting.region}")
    if "frames" in told:
        parts.append(f"{setting.frames} frames")
    if "defense" in told:
        parts.append("no defense" if setting.defense == "none" else f"defense {setting.defense}")
    if "adaptive" in told and setting.defense != "none":
        parts.append("adaptive" if setting.adaptive else "not adaptive")
    if "source" in told:
        parts.append(f"computed on {setting.source}" if setting.transferred else "computed on the victim")
    return ", ".join(parts)


def attacked_rows(rows: Rows) -> NDArray[np.bool_]:
    """Return which rows belong to curves: neither clean episodes nor probes, which are attacks of budget 0."""
    return (rows["objective"] != "clean") & (rows["eps"] > 0)


def setting_rows(rows: Rows, setting: Setting) -> NDArray[np.bool_]:
    """Return which attacked rows are of the setting; those of random noise are the same for all that noise knows not.

    Noise knows neither whether an attacker knows the defense nor any source.
    """
    same = [rows[axis] == value for axis, value in zip(Setting._fields[:-2], setting[:-2], strict=True)]
    knows = (rows["adaptive"] == setting.adaptive) & (rows["source"] == setting.source)
    return np.all([*same, knows | (rows["objective"] == "random"), attacked_rows(rows)], axis=0)


def study_settings(rows: Rows, study: Mapping[str, Any]) -> list[Setting]:
    """Return the product of what the study names or a row shows; only attacks on defended agents are adaptive."""
    attacked = attacked_rows(rows)
    fields = {"mode": "modes", "region": "regions", "frames": "frames", "defense": "defenses"}
    guided = attacked & (rows["objective"] != "random")
    adaptive = {*rows["adaptive"][guided].tolist(), *study.get("adaptive", ())} or {False}
    sources = {*rows["source"][guided], *(Path(name).stem for name in study.get("sources", ()))} or {"self"}
    modes, regions, frames, defenses = ({*rows[axis][attacked], *study.get(fields[axis], ())} for axis in fields)
    found = {
        Setting(mode, region, kind, defense, knows and defense != "none", source)
        for mode, region, kind, defense, knows, source in product(modes, regions, frames, defenses, adaptive, sources)
    }
    return sorted(found, key=setting_order)
