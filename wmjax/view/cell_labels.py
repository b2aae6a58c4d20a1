"""A cell in the page's words: its id, its place on every axis, its title, and what a launch takes over from it."""

import hashlib
import json
from typing import Any

from wmjax.report.check_cells import Cell
from wmjax.report.labels import OBJECTIVES, budget_label, mode_order, objective_label, objective_order, optimizer_label

ALWAYS = ("victim", "task", "objective", "optimizer", "eps", "mode")
"""Axes that are shown even where a study has one value of them."""

LABELS = {"eps": "budget ε", "noise": "latent noise", "draws": "noise draws", "region": "where", "source": "made on"}
"""How axes are called, where not by their column's name."""


def digest(names: tuple) -> str:
    """Return an id that depends on nothing but what it names: it stays when more rows appear."""
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16]


def places(cell: Cell) -> dict[str, Any]:
    """Return the cell's value on every axis of the page; an optimizer's steps are part of it."""
    attack, setting = cell.attack, cell.setting._asdict()
    own: dict[str, Any] = {"victim": cell.victim, "task": cell.task, "objective": attack.objective}
    own |= {"optimizer": (attack.optimizer, attack.steps), "eps": cell.eps}
    return own | setting | {"noise": attack.noise, "draws": attack.draws}


def order(axis: str, value: Any) -> tuple:
    """Return the sorting key of a value: the benchmark's order, the usual first, then by size or name."""
    match axis:
        case "objective":
            return objective_order(value)
        case "mode":
            return mode_order(value)
        case "optimizer":
            return (value[1], value[0])
    return (value not in ("none", "all", "float", "self"), value)


def text(axis: str, value: Any) -> str:
    """Return how the page calls a value."""
    match axis:
        case "objective":
            return " · ".join(OBJECTIVES.get(value, (value,)))
        case "optimizer":
            return optimizer_label(*value)
        case "eps":
            return budget_label(value)
        case "adaptive":
            return "attacker knows the defense" if value else "attacker does not know it"
        case "region":
            return "whole image" if value == "all" else value
        case "source":
            return "the victim itself" if value == "self" else value
    return str(value)


def title(cell: Cell) -> str:
    """Return `VSA by PGD-10, ε = 8/255, full`; foreign text."""
    attack, setting = cell.attack, cell.setting
    if attack.objective == "clean":
        return "clean"
    how = "" if attack.optimizer == "none" else f" by {optimizer_label(attack.optimizer, attack.steps)}"
    behind = "" if setting.defense == "none" else f", defense {setting.defense}"
    return f"{objective_label(attack.objective)}{how}, ε = {budget_label(cell.eps)}, {setting.mode}{behind}"


def form(cell: Cell) -> dict[str, Any]:
    """Return what the launch form takes over: every field of it that the cell decides."""
    attack, setting = cell.attack, cell.setting
    fields: dict[str, Any] = {"victim": cell.victim, "task": cell.task, "objective": attack.objective}
    fields |= {"budget": budget_label(cell.eps)}
    fields |= {"mode": setting.mode, "defense": setting.defense, "adaptive": setting.adaptive}
    fields |= {"region": setting.region, "frames": setting.frames, "source": setting.source}
    guided = {"optimizer": attack.optimizer, "steps": attack.steps, "noise": attack.noise, "draws": attack.draws}
    return fields | (guided if attack.steps else {})
