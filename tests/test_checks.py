"""Self-checks on rows: each fires on rows built to trigger it, is silent on healthy ones, and has its page."""

import re
from pathlib import Path

import numpy as np
import pytest

from wmjax.report.check_cells import cell_text, cells
from wmjax.report.checks import CHECKS, FLIPS, LOSS_ERROR, check
from wmjax.report.comparisons import FALSE_ALARM
from wmjax.study.schema import SCHEMA

DOCS = Path(__file__).parents[1] / "docs" / "self_checks.md"
DEFAULTS = {"string": "none", "int32": 1, "int64": 1, "double": 0.0, "float": 0.5, "bool": False}
PAIRED = ("random-beats-gradient", "not-monotone-in-budget", "not-monotone-in-steps")
BUDGETS = (0.02, 0.04, 0.08)


def row(seed, value, **cell):
    """A row of a healthy attacked episode, or of a clean one where `cell` names no objective."""
    found = {field.name: DEFAULTS[str(field.type)] for field in SCHEMA}
    found |= {"victim": "agent", "task": "dmc_cartpole_balance", "objective": "clean", "max_return": 1000.0}
    found |= {"seed": seed, "return": value, "steps": 0, "draws": 0, "zero_grad": 0.0, "restart_gap": np.nan}
    found |= {"loss_first": 1.0, "loss_last": 3.0, "loss_error": 1e-6, "saturated": 0.02, "error": ""}
    if cell:
        found |= {"mode": "full", "region": "all", "frames": "float", "max_delta": cell["eps"]}
        found |= {} if cell["objective"] == "random" else {"noise": "fresh", "draws": 1}
    return found | cell


def study(seeds=20, sd=30.0, draw=0, level=lambda objective, optimizer, eps: 900 - 3000 * eps, twist=lambda row: row):
    """A study of VSA by FGSM and PGD beside noise, with probes; `level` is the mean return of an attack."""
    rng, rows = np.random.default_rng(draw), []
    attacks = [("random", "none", 0), ("vsa", "fgsm", 1), ("vsa", "pgd", 10)]
    for seed in range(seeds):
        luck = sd * rng.normal()
        rows.append(row(seed, 900 + luck + sd * rng.normal()))
        for objective, optimizer, steps in attacks:
            for eps in BUDGETS:
                cell = {"objective": objective, "optimizer": optimizer, "steps": steps, "eps": eps}
                rows.append(row(seed, level(objective, optimizer, eps) + luck + sd * rng.normal(), **cell))
    for objective, optimizer, steps in attacks:
        cell = {"objective": objective, "optimizer": optimizer, "steps": steps, "eps": 0.0}
        rows.append(row(0, rows[0]["return"], **cell))
    return [twist(one) for one in rows]


def healthy(objective, optimizer, eps):
    """Mean returns as they should be: noise does little, PGD more than FGSM, and both more with the budget."""
    rate = {"none": 500, "fgsm": 4000, "pgd": 7000}[optimizer]
    return 900 - rate * eps


def flat(objective, optimizer, eps):
    """The hardest case without fault: no attack does anything, and every comparison is a tie."""
    return 900.0


def columns(rows):
    kinds = {"string": object, "bool": bool, "int32": np.int32, "int64": np.int64, "double": float, "float": np.float32}
    return {f.name: np.array([one[f.name] for one in rows], kinds[str(f.type)]) for f in SCHEMA}


def findings(rows):
    return {finding.name: finding for finding in check(cells(columns(rows)))}


def fired(rows):
    return {name for name, finding in findings(rows).items() if finding.fired}


@pytest.mark.parametrize("seeds", [2, 5, 20])
@pytest.mark.parametrize("level", [healthy, flat])
def test_noise_alone_fires_nothing(seeds, level):
    """Of 200 studies without fault, at most 6 may fire a check that is held to 1 in 100: more has a chance of 0.5 %."""
    alarms = [fired(study(seeds, sd=30.0, draw=draw, level=level)) for draw in range(200)]
    for name in PAIRED:
        assert sum(name in found for found in alarms) <= 6
    assert not set().union(*alarms) - set(PAIRED)


def test_ties_of_wild_returns_fire_rarely():
    """With this spread the smallest clear difference is no protection: only the test over seeds is."""
    alarms = [fired(study(20, sd=300.0, draw=draw, level=flat)) for draw in range(200)]
    assert FALSE_ALARM == 0.01
    for name in PAIRED:
        assert sum(name in found for found in alarms) <= 6


LEVELS = {
    # Gradients that lead nowhere, under noise that hurts.
    "random-beats-gradient": lambda objective, optimizer, eps: 900 - (5000 if objective == "random" else 500) * eps,
    # The attacks hurt most with the smallest budget.
    "not-monotone-in-budget": lambda objective, optimizer, eps: 900 if objective == "random" else 400 + 5000 * eps,
    # Ten steps do less than one.
    "not-monotone-in-steps": lambda objective, optimizer, eps: (
        900 - {"none": 0, "fgsm": 6000, "pgd": 2000}[optimizer] * eps
    ),
}


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("seeds", [5, 20])
def test_returns_that_contradict_fire(name, seeds):
    found = [fired(study(seeds, draw=draw, level=LEVELS[name])) for draw in range(20)]
    assert sum(found == {name} for found in found) >= (20 if seeds == 20 else 15)


def test_numbers_of_a_comparison_are_those_of_the_rows():
    (finding,) = [findings(study(20, level=LEVELS["random-beats-gradient"]))["random-beats-gradient"]]
    cell, numbers = max(finding.fired, key=lambda one: (one.cell.eps, one.cell.attack.steps))
    assert (cell.attack.optimizer, cell.eps) == ("pgd", 0.08)
    assert numbers["mean return"] == pytest.approx(860, abs=40)
    assert numbers["under random noise"] == pytest.approx(500, abs=40)
    assert numbers["seeds"] == 20
    assert numbers["p"] < 1e-10


def test_few_seeds_and_equal_luck_are_no_evidence():
    for seeds, told in ((2, "no two cells to compare share 3 seeds"), (3, "")):
        finding = findings(study(seeds, level=LEVELS["random-beats-gradient"], draw=1))["random-beats-gradient"]
        assert finding.not_applicable == told
    # Three seeds agree to the last digit for one attack, by chance: others say how returns vary.
    rows = study(3, sd=200.0, level=flat)
    for one in rows:
        if one["eps"] == 0.04:
            one["return"] = 500.0 if one["optimizer"] == "none" else 700.0
    assert not fired(rows) & {"random-beats-gradient"}


def test_noise_stands_beside_adaptive_attacks_but_not_beside_another_defense():
    rows = study(20, level=LEVELS["random-beats-gradient"], twist=lambda one: one | {"defense": "jpeg(75)"})
    for one in rows:
        one["adaptive"] = one["objective"] == "vsa"
    assert fired(rows) == {"random-beats-gradient"}
    for one in rows:
        one["defense"] = "none" if one["objective"] == "random" else "jpeg(75)"
    assert findings(rows)["random-beats-gradient"].not_applicable


def test_each_attack_is_named_once_where_it_rises():
    finding = findings(study(20, level=LEVELS["not-monotone-in-budget"]))["not-monotone-in-budget"]
    assert [(one.cell.attack.optimizer, one.cell.eps) for one in finding.fired] == [("fgsm", 0.08), ("pgd", 0.08)]
    assert all("at ε = 0.02" in one.numbers for one in finding.fired)


def only(optimizer=None, **changes):
    """A twist of attacked rows: of one optimizer's, or of all but noise."""
    return lambda one: (
        one | changes if one["eps"] > 0 and one["optimizer"] in ({optimizer} if optimizer else {"fgsm", "pgd"}) else one
    )


@pytest.mark.parametrize(
    ("name", "bad", "fine"),
    [
        ("zero-gradient", {"zero_grad": 0.2}, {"zero_grad": 0.005}),
        ("loss-did-not-rise", {"loss_last": 1.0}, {"loss_last": 1.01}),
        ("restart-gap", {"restart_gap": 1.0}, {"restart_gap": 0.1}),
        ("stored-frame", {"loss_error": 0.02}, {"loss_error": 1e-4}),
        ("saturated-pixels", {"saturated": 0.4}, {"saturated": 0.15}),
    ],
)
def test_diagnostics_fire_where_they_are_bad(name, bad, fine):
    assert fired(study(5, level=healthy, twist=only("pgd", **fine))) == set()
    finding = findings(study(5, level=healthy, twist=only("pgd", **bad)))[name]
    assert {one.cell.attack.optimizer for one in finding.fired} == {"pgd"}
    assert fired(study(5, level=healthy, twist=only("pgd", **bad))) == {name}
    assert all(np.isfinite(list(one.numbers.values())).all() for one in finding.fired)


@pytest.mark.parametrize(("flips", "fires"), [(1, False), (2, False), (6, True)])
def test_rare_flips_of_a_latent_are_no_fault(flips, fires):
    rows = study(10, level=healthy)
    for one in [one for one in rows if one["optimizer"] == "pgd" and one["eps"] > 0][:flips]:
        one["loss_error"] = 0.5
    assert ("stored-frame" in fired(rows)) == fires
    assert 0 < LOSS_ERROR < 0.5
    assert FLIPS < 2 / 30


def test_a_loss_error_of_thousands_of_episodes_is_counted():
    rows = [row(i, 500.0, objective="vsa", optimizer="pgd", steps=10, eps=0.1, loss_error=0.5) for i in range(3000)]
    assert "stored-frame" in fired(rows)


@pytest.mark.parametrize("change", [{"return": 123.0}, {"max_delta": 1e-3}, {"return": float("nan"), "nan": True}])
def test_a_budget_of_nothing_must_change_nothing(change):
    rows = study(3, level=healthy)
    probe = next(i for i, one in enumerate(rows) if one["optimizer"] == "pgd" and one["eps"] == 0)
    rows[probe] |= change
    (one,) = findings(rows)["zero-budget-differs"].fired
    assert (one.cell.attack.optimizer, one.cell.eps) == ("pgd", 0.0)


def test_probes_are_compared_with_the_clean_episode_of_their_defense():
    rows = study(3, level=healthy)
    defended = [one | {"defense": "median", "return": one["return"] - 5} for one in rows]
    assert fired(rows + defended) == set()
    broken = [one | {"return": float("nan"), "nan": True} for one in rows if one["eps"] == 0 and one["seed"] == 0]
    assert fired(broken + [one for one in rows if one["eps"] > 0]) == set()


def test_what_cannot_be_asked_says_why():
    clean = findings([row(0, 900.0), row(1, 900.0)])
    assert all(finding.not_applicable and not finding.fired for finding in clean.values())
    usual = findings(study(5, level=healthy))
    assert {name for name, finding in usual.items() if finding.not_applicable} == {"restart-gap"}
    assert usual["restart-gap"].not_applicable == "no optimizer with restarts in this study"
    chance = study(5, level=healthy)
    for one in chance:
        if one["optimizer"] in ("fgsm", "pgd"):
            one |= {"optimizer": "random_sign" if one["optimizer"] == "fgsm" else "square", "loss_last": 1.0}
    assert not fired(chance)
    assert findings(chance)["loss-did-not-rise"].not_applicable


def test_episodes_that_are_not_a_return_count_in_no_comparison():
    rows = study(20, level=healthy)
    for one in rows:
        if one["optimizer"] == "pgd" and one["seed"] % 2:
            one |= {"return": 1e9, "nan": True}
    assert fired(rows) == set()


def test_the_order_of_rows_does_not_matter():
    rows = study(10, level=LEVELS["not-monotone-in-steps"], twist=only(zero_grad=0.5))
    shuffled = [rows[i] for i in np.random.default_rng(1).permutation(len(rows))]
    first, second = findings(rows), findings(shuffled)
    for name, finding in first.items():
        assert {one.cell: dict(one.numbers) for one in finding.fired} == {
            one.cell: pytest.approx(dict(one.numbers)) for one in second[name].fired
        }


def test_a_cell_is_named_as_far_as_the_study_needs_it():
    plain = cells(columns(study(2)))
    cell = next(cell for cell in plain.attacked() if cell.attack.optimizer == "pgd" and cell.eps == 0.08)
    text = "`agent` on `dmc_cartpole_balance`, `full`: VSA, value suppression, by PGD-10, ε = 0.08"
    assert cell_text(cell, plain) == text
    other = [one | {"defense": "jpeg(75)", "adaptive": one["objective"] == "vsa"} for one in study(2)]
    both = cells(columns(study(2) + other))
    assert "`full, no defense`" in cell_text(cell, both)
    adaptive = next(cell for cell in both.attacked() if cell.setting.adaptive)
    assert "`full, defense jpeg(75), adaptive`" in cell_text(adaptive, both)


def test_every_check_has_its_section_and_every_section_its_check():
    sections = re.findall(r"^## `(.+)`$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert sections == [check.name for check in CHECKS]
    for check_ in CHECKS:
        assert check_.meaning.endswith(".")
        assert "\n" not in check_.meaning
