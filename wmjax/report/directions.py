"""Which of the directions that arXiv 2606.16605 found show in this study, as differences that are positive where so.

Axes: D is the value itself and then its R bootstrap draws, so that one formula makes both; O objectives; V victims.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from wmjax.core.call_syntax import parse_call
from wmjax.metrics import adaptive_gap, interval, valid_mean
from wmjax.report.condition import USUAL, Setting
from wmjax.report.defense_recovery import defended
from wmjax.report.document import Section, Table, Value
from wmjax.report.scores import Block, Estimate, Floats, Summary, has_nauc
from wmjax.report.tables import Parts, estimate_value

_RANDOM = "random noise hurts less than any objective (table 2)"
_OBJECTIVES = "VSA and PEA hurt more than DCA and LDA (table 3)"
_FAMILIES = {
    "r2dreamer": (1.0, "R2-Dreamer is hurt less than the mean of the other families (table 2)"),
    "dreamerpro": (-1.0, "DreamerPro is hurt more than the mean of the other families (table 2)"),
}
_MODES = {
    ("full", "first_half"): "attacks on every frame hurt more than those on the first half (table 4)",
    ("first_half", "second_half"): "attacks on the first half hurt more than those on the second (table 4)",
    ("sparse(2)", "sparse(4)"): "attacks on every 2nd frame hurt more than those on every 4th (table 4)",
    ("sparse(4)", "sparse(6)"): "attacks on every 4th frame hurt more than those on every 6th (table 4)",
}
_DEFENSES = {"jpeg": "JPEG", "median": "the median filter", "noise": "Gaussian noise"}
_TRANSFER = "attacks computed on InfoNCE agents transfer more than those on others (figure 7)"

_READING = """\
Directions that [arXiv 2606.16605](https://arxiv.org/abs/2606.16605) reports, as differences of {what} or of recovery:
means over tasks, optimizers and the objectives that are not random noise (noise is compared with the objective that
hurts least). A difference is above 0 where the direction is the paper's. It **holds** where the whole 95 % interval is
above 0, is the **opposite** where the whole is below, and **open** else. The intervals are over seeds: other agents, or
the same trained again, may differ by more."""


def directions_section(parts: Parts) -> Section | None:
    """Return the table of the directions that the study has the cells of; None where it has those of none."""
    each = [*_objectives(parts), *_families(parts), *_modes(parts), *_defenses(parts), *_transfer(parts)]
    lines = tuple(_line(finding, np.stack(own, axis=-1)) for finding, found in each if (own := _known(found)))
    if not lines:
        return None
    header = ("the paper's direction", "verdict", "difference", "victims", "holds", "opposite", "open")
    caption = "Mean difference over victims; then in how many victims by themselves the direction holds."
    what = "nAUC" if has_nauc(parts[0][0]) else "the mean score at the only budget"
    table = Table("directions", header, lines, 2, caption)
    return Section("Directions of the benchmark", (_READING.format(what=what), table))


def _known(found: Sequence[Floats]) -> list[Floats]:
    return [one for one in found if not np.isnan(one[0])]


def _line(finding: str, differences: Floats) -> tuple[str | Value, ...]:
    """Return the line of a direction from its differences [D, V]."""
    mean = _estimate(np.mean(differences, axis=-1))
    alone = [_verdict(_estimate(differences[:, i])) for i in range(differences.shape[-1])]
    counts = (Value(float(alone.count(verdict)), digits=0) for verdict in ("holds", "opposite", "open"))
    victims = Value(float(len(alone)), digits=0)
    return finding, f"**{_verdict(mean)}**", estimate_value(mean, 1.0, 3), victims, *counts


def _estimate(difference: Floats) -> Estimate:
    """Return value and interval of [D]."""
    return Estimate(difference[:1], *interval(difference[1:, None]))[0]


def _verdict(difference: Estimate) -> str:
    return "holds" if difference.low > 0 else "opposite" if difference.high < 0 else "open"


def _robustness(summary: Summary) -> Floats:
    """Return means over tasks and optimizers [D, O]."""
    return np.mean(np.concatenate([summary.by_task.value[None], summary.drawn]), axis=1)


def _overall(block: Block, summary: Summary) -> Floats:
    """Return the mean over objectives other than noise [D]; NaN where there are none."""
    return np.mean(_robustness(summary)[:, block.guided], axis=-1) if block.guided else np.full(1, np.nan)


def _objectives(parts: Parts) -> Iterator[tuple[str, list[Floats]]]:
    usual = [(block, _robustness(summary)) for block, summary in parts if block.setting == USUAL]

    def means(block: Block, values: Floats, *names: str) -> Floats:
        return np.mean(values[:, [block.objectives.index(name) for name in names]], axis=-1)

    yield (
        _RANDOM,
        [
            means(block, values, "random") - np.max(values[:, block.guided], axis=-1)
            for block, values in usual
            if "random" in block.objectives and block.guided
        ],
    )
    yield (
        _OBJECTIVES,
        [
            means(block, values, "dca", "lda") - means(block, values, "vsa", "pea")
            for block, values in usual
            if {"dca", "lda", "vsa", "pea"} <= {*block.objectives}
        ],
    )


def _families(parts: Parts) -> Iterator[tuple[str, list[Floats]]]:
    usual = [part for part in parts if part[0].setting == USUAL]
    for family, (sign, finding) in _FAMILIES.items():
        found = []
        for block, summary in usual:
            others = [_overall(*part) for part in usual if part[0].agent != family and part[0].tasks == block.tasks]
            if block.agent == family and others:
                found.append(sign * (_overall(block, summary) - np.mean(others, axis=0)))
        yield finding, found


def _modes(parts: Parts) -> Iterator[tuple[str, list[Floats]]]:
    for modes, finding in _MODES.items():
        more, less = (_by_victim(parts, USUAL._replace(mode=mode)) for mode in modes)
        yield finding, [less[victim] - more[victim] for victim in more if victim in less]


def _by_victim(parts: Parts, setting: Setting) -> dict[str, Floats]:
    return {block.victim: _overall(block, summary) for block, summary in parts if block.setting == setting}


def _defenses(parts: Parts) -> Iterator[tuple[str, list[Floats]]]:
    groups = [group for group in defended([block for block, _ in parts]) if group.bare.setting == USUAL]

    def by_victim(name: str) -> dict[str, Floats]:
        """Return the recoveries, plain and adaptive, of each task and guided attack [D, M * N, 2]."""
        own = {group.bare.victim: group for group in groups if parse_call(group.defense)[0] == name}
        drawn = {victim: np.concatenate([one.once[None], one.drawn])[:, :, one.guided] for victim, one in own.items()}
        return {victim: values.reshape(len(values), -1, 2) for victim, values in drawn.items()}

    noise = by_victim("noise")
    for name, words in _DEFENSES.items():
        own = by_victim(name)
        if name != "noise":
            finding = f"{words} recovers more than Gaussian noise, where the attacker does not know it (figure 4)"
            yield finding, [valid_mean(own[one][..., 0] - noise[one][..., 0], axis=-1) for one in own if one in noise]
        finding = f"{words} recovers less where the attacker knows it (figure 4)"
        yield finding, [adaptive_gap(values[..., 0], values[..., 1]) for values in own.values()]


def _transfer(parts: Parts) -> Iterator[tuple[str, list[Floats]]]:
    family = {block.victim: block.agent for block, _ in parts}
    found = []
    for victim in family:
        moved = [(block, summary) for block, summary in parts if block.victim == victim and block.setting.transferred]
        own: list[Floats] = []
        others: list[Floats] = []
        for block, summary in moved:
            if block.setting._replace(source="self") == USUAL and block.setting.source in family:
                (own if family[block.setting.source] == "infonce" else others).append(_overall(block, summary))
        if own and others:
            found.append(np.mean(others, axis=0) - np.mean(own, axis=0))
    yield _TRANSFER, found
