"""The table of defenses: what each gives back of what an attack took, before and after the attacker knows it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wmjax.metrics import adaptive_gap, interval, recovery, resampled_means, valid_mean
from wmjax.metrics.recovery import FLOOR
from wmjax.report.markdown import code, number, table
from wmjax.report.names import budget_label
from wmjax.report.scores import DRAW, Block, Estimate, Floats
from wmjax.report.settings import setting_name, told_axes
from wmjax.report.tables import Parts, attack_text, estimate_text

_READING = f"""\
Recovery is (with − attacked) / (clean − attacked), clean and attacked without the defense (equation 16 of
[arXiv 2606.16605](https://arxiv.org/abs/2606.16605)): 0 is no help, 1 the clean return restored, below 0 harm. It is a
mean over tasks, and undefined where the attack alone changes the mean score by less than {FLOOR:g}. The adaptive gap is
the mean recovery minus that of adaptive attacks: what the defense owes to not being known. Random noise knows nothing,
so it has no part in the means over attacks."""


class _Defended(NamedTuple):
    """A victim's blocks that differ in the defense only."""

    bare: Block
    defense: str
    plain: Block | None  #: the attacker does not know the defense
    adaptive: Block | None


def recovery_section(parts: Parts) -> str:
    """Return the table of all defenses at the largest budget, and how to read it; empty where there are none."""
    blocks = [block for block, _ in parts]
    if all(block.setting.defense == "none" for block in blocks):
        return ""
    found = _defended(blocks)
    if not found:
        return "Recovery needs the same attacks on the agent without a defense, which this study does not have."
    bare = {(group.bare.victim, group.bare.setting): group.bare for group in found}
    told, several = told_axes(setting for _, setting in bare), len({setting for _, setting in bare}) > 1
    lines = []
    for group in found:
        head = [code(group.bare.victim), *([code(setting_name(group.bare.setting, told))] if several else [])]
        lines += [[*head, code(group.defense), *line] for line in _lines(group)]
    text = ["victim", *(["attacked"] if several else []), "defense", "attack"]
    numbers = ["without", "with", "with, adaptive", "recovery", "recovery, adaptive", "adaptive gap"]
    harm = np.concatenate([_harm(block).ravel() for block in bare.values()])
    undefined, known = int(np.sum(np.abs(harm) < FLOOR)), int(np.sum(~np.isnan(harm)))
    return (
        f"Mean scores under attack at ε = {budget_label(found[0].bare.budgets[-1])}, without the defense, with it, and "
        "with it where the attacker knows it (adaptive).\n\n"
        f"{table([*text, *numbers], lines, left=len(text))}\n\n{_READING} "
        f"Undefined here: {undefined} of {known} pairs of task and attack."
    )


def _defended(blocks: Sequence[Block]) -> list[_Defended]:
    at = {(block.victim, block.setting): block for block in blocks}
    found = []
    for (victim, setting), block in at.items():
        bare = at.get((victim, setting._replace(defense="none", adaptive=False)))
        twin = at.get((victim, setting._replace(adaptive=False)))
        if bare is None or setting.defense == "none" or (setting.adaptive and twin is not None):
            continue
        knowing = at.get((victim, setting._replace(adaptive=True)))
        found.append(_Defended(bare, setting.defense, None if setting.adaptive else block, knowing))
    return found


def _harm(bare: Block) -> Floats:
    """Return clean minus attacked mean score at the largest budget, [M, N]."""
    means = valid_mean(bare.scores, axis=1)
    return means[..., 0] - means[..., -1]


def _lines(group: _Defended) -> list[list[str]]:
    """Return the cells of a line an attack, and of one with their means."""
    bare, random = group.bare, np.array([attack.objective == "random" for attack in group.bare.attacks])
    last = [
        np.full_like(bare.scores[..., 0], np.nan) if block is None else block.scores[..., -1] for block in group[2:]
    ]
    last[1] = np.where(random, np.nan, last[1])
    scores = np.stack([bare.scores[..., 0], bare.scores[..., -1], *last], axis=-1)  # [M, S, N, 4]
    means, draws = valid_mean(scores, axis=1), resampled_means(scores, np.random.default_rng(DRAW))
    known = np.abs(_harm(bare)) >= FLOOR
    once, again = _recoveries(means, known), _recoveries(draws, known)

    def line(name: str, chosen: NDArray[np.bool_]) -> list[str]:
        """Return the means over tasks and the `chosen` attacks [N], every task and attack with the same weight."""

        def both(values: Floats) -> tuple[Floats, Floats, Floats]:
            plain, knowing = (values[..., chosen, i].reshape(*values.shape[:-3], -1) for i in (0, 1))
            return valid_mean(plain, axis=-1), valid_mean(knowing, axis=-1), adaptive_gap(plain, knowing)

        levels = means[:, chosen, 1:].mean(axis=(0, 1))
        spans = [Estimate(value, *interval(drawn)) for value, drawn in zip(both(once), both(again), strict=True)]
        return [name, *(number(float(level), 3) for level in levels), *(estimate_text(span, 1.0, 2) for span in spans)]

    each = [line(attack_text(a.objective, label), np.arange(len(random)) == i)
            for i, (a, label) in enumerate(zip(bare.attacks, bare.labels, strict=True))]  # fmt: skip
    return each if np.sum(~random) < 2 else [*each, line("**mean over attacks**", ~random)]


def _recoveries(means: Floats, known: NDArray[np.bool_]) -> Floats:
    """Return plain and adaptive recovery [..., M, N, 2] of mean scores [..., M, N, 4], NaN where not `known` [M, N]."""
    clean, attacked, defended = means[..., :1], means[..., 1:2], means[..., 2:]
    # What is defined is so in every bootstrap draw: the floor applies to the means over all seeds.
    return np.where(known[..., None], recovery(clean, attacked, defended, floor=0.0), np.nan)
