"""The report's sections of numbers: their values by hand, what is missing or degenerate, and their figures."""

import io
import re
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text
from PIL import Image

from wmjax.report.comparison_groups import lineups
from wmjax.report.condition import Setting, noise_setting, setting_name, told_axes
from wmjax.report.curves import draw_curves
from wmjax.report.defense_recovery import recovery_section
from wmjax.report.directions import directions_section
from wmjax.report.document import Figure, Table
from wmjax.report.panels import tasks_section
from wmjax.report.plot_style import INK, WIDTH, drawable
from wmjax.report.published import BUDGETS, TASKS, published_section
from wmjax.report.ranking import ranking_section
from wmjax.report.scores import blocks, failed_rows, left_out_rows, summarise
from wmjax.report.strongest import strongest_section
from wmjax.report.temporal import temporal_section
from wmjax.report.transfer import transfer_section
from wmjax.study.schema import CELL, SCHEMA

DEFAULTS = {"string": "none", "int32": 1, "int64": 1, "double": 0.0, "float": 0.5, "bool": False}
PLAIN = {field.name: DEFAULTS[str(field.type)] for field in SCHEMA} | {
    "error": "", "source": "none", "max_return": 1000.0, "steps": 0, "draws": 0,
}  # fmt: skip
HARM = {"random": 100.0, "pda": 400.0, "vsa": 600.0, "lda": 200.0, "pea": 300.0, "dca": 150.0}
KNOWS = {"noise": "fresh", "draws": 1}
PGD = {"optimizer": "pgd", "steps": 10, **KNOWS}
FGSM = {"optimizer": "fgsm", "steps": 1, **KNOWS}


def episodes(
    left, *, victims=(("agent", "r2dreamer"),), tasks=("dmc_walker_walk",), objectives=("random", "pda", "vsa"),
    optimizers=(PGD,), budgets=(0.1, 0.2), modes=("full",), defenses=("none",), adaptive=(False,), sources=("self",),
    seeds=(1, 2, 3),
):  # fmt: skip
    """Rows of a grid; `left` of a row, clean or attacked, is its return, where it is not given."""
    rows = []
    for (victim, agent), task, seed, defense in product(victims, tasks, seeds, defenses):
        place = PLAIN | {"victim": victim, "agent": agent, "task": task, "seed": seed, "defense": defense}
        place["max_return"] = 1.0 if task.startswith("metaworld") else 1000.0
        rows.append(place | {"objective": "clean"})
        for objective, mode, eps in product(objectives, modes, budgets):
            attack = place | {"objective": objective, "mode": mode, "eps": eps, "frames": "float", "region": "all"}
            if objective == "random":
                rows.append(attack)
                continue
            for how, source, knows in product(optimizers, sources, adaptive if defense != "none" else (False,)):
                if source != victim:
                    rows.append(attack | how | {"source": source, "adaptive": knows})
    return [row | {"return": left(row)} for row in rows]


def fading(row):
    """900 without attack; at budget eps the objective's harm times 5 eps less, with a little of the seed's."""
    return (
        900.0
        + row["seed"]
        - (0.0 if row["objective"] == "clean" else HARM.get(row["objective"], 50.0) * 5 * row["eps"])
    )


def parts_of(rows, study=None):
    columns = columns_of(rows)
    return [(block, summarise(block)) for block in blocks(columns, study or {})]


def columns_of(rows):
    table = pa.Table.from_pylist(rows, schema=SCHEMA).sort_by([(name, "ascending") for name in CELL])
    text = {field.name for field in SCHEMA if pa.types.is_string(field.type)}
    return {
        name: np.array(table[name].to_pylist(), object) if name in text else table[name].to_numpy()
        for name in table.column_names
    }


def lines(section, name):
    """The rows of a table, texts as they are, numbers as floats."""
    table = next(part for part in section.parts if isinstance(part, Table) and part.name == name)
    assert all(len(row) == len(table.header) for row in table.rows)
    assert all(isinstance(cell, str) == (i < table.left) for row in table.rows for i, cell in enumerate(row))
    return [[cell if isinstance(cell, str) else cell.value for cell in row] for row in table.rows]


def said(section):
    return " ".join(part for part in section.parts if isinstance(part, str))


def all_texts(section):
    """Every text of a section that renderers read as Markdown."""
    yield section.title
    for part in section.parts:
        if isinstance(part, Table):
            yield from (cell for row in (part.header, *part.rows) for cell in row if isinstance(cell, str))
        yield part if isinstance(part, str) else part.caption


def look(drawing):
    """Draw it, as a picture [height, width, 4]; checks what every figure promises."""
    assert drawing.get_size_inches()[0] == WIDTH
    texts = [text for text in drawing.findobj(Text) if text.get_text()]
    assert min(text.get_fontsize() for text in texts) >= 8
    assert {to_hex(text.get_color()) for text in texts} == {INK}
    file = io.BytesIO()
    drawing.savefig(file, dpi=60)
    picture = np.array(Image.open(file).convert("RGBA"))
    assert picture[0, 0, 3] == 0
    assert picture[..., 3].any()
    return picture


def figures(section):
    return [part for part in section.parts if isinstance(part, Figure)]


def test_robustness_by_task_and_its_interquartile_mean():
    ((block, summary),) = parts_of(episodes(fading, tasks=("dmc_a", "dmc_b")))
    assert block.agent == "r2dreamer"
    # Trapezoids of 900 + 2 - harm * 5 eps at 0, 0.1 and 0.2, so the value at 0.1.
    np.testing.assert_allclose(summary.by_task.value, [[0.852, 0.702, 0.602]] * 2)
    np.testing.assert_allclose(summary.by_objective.value, [0.852, 0.702, 0.602])
    np.testing.assert_allclose(summary.overall.value, 0.7186666666)
    # Of six runs, three seeds on two tasks, one goes at either end.
    np.testing.assert_allclose(summary.iqm_by_objective.value, [0.852, 0.702, 0.602])
    assert np.all(summary.iqm_by_objective.low < summary.iqm_by_objective.high)
    assert summary.drawn.shape == (2000, 2, 3)


def test_an_outlier_moves_the_mean_and_not_the_interquartile_mean():
    def left(row):
        return 0.0 if row["seed"] == 4 and row["objective"] == "vsa" else fading(row) - row["seed"]

    ((_, summary),) = parts_of(episodes(left, seeds=(1, 2, 3, 4)))
    # The fourth seed fails: an area of (900 / 2) / 2 over the two trapezoids.
    assert summary.by_objective.value[2] == pytest.approx((3 * 0.6 + 0.225) / 4)
    assert summary.iqm_by_objective.value[2] == pytest.approx(0.6)


def test_failed_episodes_have_no_score_and_are_not_left_out():
    rows = episodes(fading)
    rows[1] |= {"error": "RuntimeError: out of memory", "return": 0.0}
    rows[2] |= {"nan": True}
    columns = columns_of(rows)
    assert failed_rows(columns).sum() == 1
    assert left_out_rows(columns).sum() == 1
    ((block, _),) = [(b, None) for b in blocks(columns, {})]
    assert np.isnan(block.scores).sum() == 2
    assert not block.missing.any()


def test_what_is_compared_are_victims_or_families():
    alike = [("one", "r2dreamer"), ("two", "r2dreamer")]
    assert [one.name for one in lineups(parts_of(episodes(fading, victims=alike)))] == ["one", "two"]
    apart = [*episodes(fading, victims=alike[:1]), *episodes(fading, victims=alike[1:], tasks=("dmc_b",))]
    (family,) = lineups(parts_of(apart))
    assert (family.name, family.tasks) == ("r2dreamer", ("dmc_walker_walk", "dmc_b"))
    assert family.by_objective().value[2] == pytest.approx(0.602)


def test_strongest_objectives_are_counted_over_victims_and_tasks():
    def left(row):
        swap = {"pda": "vsa", "vsa": "pda"} if row["task"] == "dmc_b" else {}
        return fading(row | {"objective": swap.get(row["objective"], row["objective"])})

    victims = [("one", "r2dreamer"), ("two", "dreamer")]
    section = strongest_section(parts_of(episodes(left, victims=victims, tasks=("dmc_a", "dmc_b", "dmc_c"))))
    assert lines(section, "strongest") == [["`full`", 6.0, 2.0, 4.0]]


def test_ties_share_and_open_pairs_do_not_count():
    rows = episodes(lambda row: 500.0, tasks=("dmc_a", "dmc_b"))
    rows = [row for row in rows if (row["task"], row["objective"], row["eps"]) != ("dmc_b", "vsa", 0.2)]
    section = strongest_section(parts_of(rows))
    assert lines(section, "strongest") == [["`full`", 1.0, 0.5, 0.5]]
    assert "Not counted: 1 pair that lacks an objective." in said(section)


def test_no_strongest_of_one_objective():
    assert strongest_section(parts_of(episodes(fading, objectives=("random", "vsa")))) is None
    assert strongest_section([]) is None


def test_one_seed_has_counts_without_interval():
    section = strongest_section(parts_of(episodes(fading, seeds=(1,))))
    value = section.parts[1].rows[0][3]
    assert value.value == 1.0
    assert np.isnan([value.low, value.high]).all()


def test_temporal_table_is_in_the_papers_order():
    share = {"none": 0, "full": 1, "first_half": 0.6, "second_half": 0.5, "sparse(2)": 0.4, "sparse(10)": 0.1}

    def left(row):
        return 902.0 - share[row["mode"]] * (902.0 - fading(row | {"seed": 2}))

    modes = ("sparse(10)", "second_half", "full", "sparse(2)", "first_half")
    section = temporal_section(parts_of(episodes(left, modes=modes, victims=[("a", "x"), ("b", "y")])))
    table = lines(section, "temporal")
    assert [row[:2] for row in table[::2]] == [[f"`{mode}`", "`a`"] for mode in list(share)[1:]]
    vsa = {row[0]: row[4] for row in table if row[1] == "`b`"}
    assert vsa["`full`"] == pytest.approx(0.602)
    assert vsa["`sparse(2)`"] == pytest.approx(0.902 - 0.4 * 0.3)
    assert table[0][5] == pytest.approx(np.mean(table[0][2:5]))
    look(figures(section)[0].drawing)


def test_temporal_needs_several_modes():
    assert temporal_section(parts_of(episodes(fading))) is None


def test_a_missing_cell_is_missing_in_the_temporal_table():
    rows = episodes(fading, modes=("full", "first_half"))
    rows = [row for row in rows if (row["mode"], row["objective"], row["eps"]) != ("first_half", "pda", 0.2)]
    (_, half) = lines(temporal_section(parts_of(rows)), "temporal")
    assert np.isnan(half[3])
    assert np.isnan(half[5])
    assert half[4] == pytest.approx(0.602)


def test_defenses_as_table_and_figure():
    def left(row):
        spared = {"none": 0.0, "jpeg(75)": 0.25 if row["adaptive"] else 0.5}[row["defense"]]
        return 900.0 - (1 - spared) * (900.0 - fading(row) + row["seed"])

    rows = episodes(left, defenses=("none", "jpeg(75)"), adaptive=(False, True))
    section = recovery_section(parts_of(rows))
    table = lines(section, "defenses")
    assert [row[2] for row in table][-1] == "**mean over attacks**"
    np.testing.assert_allclose(table[-1][6:], [0.5, 0.25, 0.25])
    np.testing.assert_allclose(table[1][3:6], [0.5, 0.7, 0.6])
    assert np.isnan(table[0][7])  # random noise knows no defense
    look(figures(section)[0].drawing)


def test_recovery_needs_a_defense_and_the_same_attacks_without_it():
    assert recovery_section(parts_of(episodes(fading))) is None
    assert "which this study does not have" in said(recovery_section(parts_of(episodes(fading, defenses=("blur",)))))


AGENTS = [("a", "dreamer"), ("b", "r2dreamer"), ("c", "infonce")]


def moved(row):
    """Attacks computed on `a` do half their harm elsewhere, those on `b` a quarter, on `c` none."""
    share = {"a": 0.5, "b": 0.25, "c": 0.0}.get(row["source"], 1.0)
    return 900.0 - share * (900.0 - fading(row) + row["seed"])


def test_transfer_by_hand():
    section = transfer_section(parts_of(episodes(moved, victims=AGENTS, sources=("self", "a", "b", "c"))))
    matrix = lines(section, "transfer_matrix")
    # White box: a mean drop of 0.1 + (0.2 + 0.3) / 2.
    np.testing.assert_allclose(matrix[0][1:], [np.nan, 0.225, 0.225])
    np.testing.assert_allclose(matrix[1][1:], [0.1625, np.nan, 0.1625])
    np.testing.assert_allclose(matrix[2][1:], [0.1, 0.1, np.nan])
    np.testing.assert_allclose(matrix[3][1:], 0.35)
    pda, vsa = lines(section, "transfer_objectives")
    np.testing.assert_allclose(pda[1:], [0.1 + 0.2 * 0.25, 0.1 + 0.025, 0.1 + 0.05, 0.1 + 0.2 * 0.375])
    np.testing.assert_allclose(vsa[1], 0.1 + 0.3 * 0.25)
    for figure in figures(section):
        look(figure.drawing)


def test_transfer_stays_out_of_the_other_sections():
    alone = parts_of(episodes(fading, victims=AGENTS, modes=("full", "first_half"), defenses=("none", "blur")))
    rows = episodes(moved, victims=AGENTS, modes=("full", "first_half"), defenses=("none", "blur"),
                    sources=("self", "a", "b"))  # fmt: skip
    both = parts_of([row | {"return": fading(row) if row["source"] in ("self", "none") else 0.0} for row in rows])
    assert {block.setting.source for block, _ in both} == {"self", "a", "b"}
    for section, name in (
        (strongest_section, "strongest"), (temporal_section, "temporal"), (recovery_section, "defenses"),
        (ranking_section, "ranking"),
    ):  # fmt: skip
        want, got = lines(section(alone), name), lines(section(both), name)
        assert [[str(cell) for cell in row[1:]] for row in want] == [[str(cell) for cell in row[1:]] for row in got]


def test_no_transfer_without_other_sources():
    assert transfer_section(parts_of(episodes(fading, victims=AGENTS))) is None
    assert transfer_section([]) is None


def test_sources_belong_to_the_tasks_that_they_play():
    rows = [*episodes(moved, victims=AGENTS[:2], sources=("self", "a", "b")),
            *episodes(moved, victims=AGENTS[2:], tasks=("dmc_b",))]  # fmt: skip
    study = {"sources": ["self", "a", "agents/b.safetensors", "c"]}
    found = {(block.victim, block.setting.source) for block in blocks(columns_of(rows), study)}
    assert found == {("a", "self"), ("a", "b"), ("b", "self"), ("b", "a"), ("c", "self")}


def test_a_source_without_rows_yet_is_missing():
    rows = episodes(fading, victims=AGENTS[:2])
    found = {b.setting.source: b for b in blocks(columns_of(rows), {"sources": ["self", "a"]}) if b.victim == "b"}
    # Random noise has no source, so its episodes and the clean ones belong to every setting.
    assert found["a"].missing[:, :, 0].sum() == 0
    assert found["a"].missing[:, :, 1:, 1:].all()


def test_settings_tell_the_source_only_where_one_differs():
    own, other = Setting("full", "all", "float", "none", False), Setting("full", "all", "float", "none", False, "b")
    assert setting_name(own, told_axes([own])) == "full"
    assert setting_name(own, told_axes([own, other])) == "full, computed on the victim"
    assert setting_name(other, told_axes([own, other])) == "full, computed on b"
    assert told_axes([own._replace(source="none")]) == {"mode"}
    assert noise_setting(other._replace(adaptive=True)) == own


def ranked(row):
    """Victim `a` is the most robust but for its defense; `b` is between, `c` the least."""
    scale = {"a": 0.5, "b": 0.75, "c": 1.0}[row["victim"]] * {"first_half": 0.5, "sparse(2)": 0.4}.get(row["mode"], 1.0)
    helped = {"a": 0.2, "b": 0.6, "c": 0.4}[row["victim"]] if row["defense"] != "none" else 0.0
    return 900.0 - scale * (1 - helped) * (900.0 - fading(row) + row["seed"])


def test_ranking_by_hand():
    rows = episodes(ranked, victims=AGENTS, modes=("full", "first_half", "sparse(2)"), defenses=("none", "blur"))
    section = ranking_section(parts_of(rows))
    table = lines(section, "ranking")
    assert [row[0] for row in table] == ["`a`", "`b`", "`c`"]
    top, low = 0.9 - 0.5 * (0.05 + 0.2 + 0.3) / 3, 0.9 - (0.05 + 0.2 + 0.3) / 3
    mid = (top + low) / 2
    np.testing.assert_allclose([row[1] for row in table], [0.85 * top + 0.15 * low, 0.85 * mid + 0.15 * top,
                                                           0.85 * low + 0.15 * mid])  # fmt: skip
    np.testing.assert_allclose(table[0][2:], [top, 0.9 - (0.9 - top) / 2, 0.9 - (0.9 - top) * 0.4, 0.2])
    look(figures(section)[0].drawing)


def test_ranking_says_what_does_not_count():
    rows = episodes(ranked, victims=AGENTS, modes=("full", "first_half"))
    section = ranking_section(parts_of(rows))
    assert "Not counted: sparse(2) (not all have it), recovery (not all have it)." in said(section)
    assert figures(section) == []
    same = ranking_section(parts_of(episodes(fading, victims=AGENTS, modes=("full", "first_half"))))
    assert "There is no ranking" in said(same)
    assert all(np.isnan(row[1]) for row in lines(same, "ranking"))


def test_no_ranking_of_one_victim_or_by_one_dimension():
    modes = ("full", "first_half")
    assert ranking_section(parts_of(episodes(ranked, victims=AGENTS[:1], modes=modes))) is None
    assert ranking_section(parts_of(episodes(ranked, victims=AGENTS))) is None


def test_one_panel_a_task():
    section = tasks_section(parts_of(episodes(fading, victims=AGENTS, tasks=("dmc_a", "dmc_b"))))
    table = lines(section, "tasks")
    assert [row[:2] for row in table] == [[f"`{task}`", f"`{name}`"] for task in ("dmc_a", "dmc_b") for name in "abc"]
    np.testing.assert_allclose(table[0][2:], [0.852, 0.702, 0.602])
    drawing = figures(section)[0].drawing
    assert len(drawing.axes) == 2
    look(drawing)
    assert tasks_section(parts_of(episodes(fading))) is None


@pytest.mark.parametrize("letters", [1, 2, 3, 20, 36, 37])
def test_names_too_long_for_a_figure_keep_their_ends_apart(letters):
    names = [f"dmc_cartpole_balance_{family}_tiny" for family in ("dreamer", "r2dreamer", "infonce", "dreamerpro")]
    shown = [drawable(name, letters) for name in names]
    assert all(len(text) == min(letters, len(name)) for text, name in zip(shown, names, strict=True))
    assert len({*shown}) == (4 if letters >= 20 else 1)


def directions(section):
    """By a word of its finding: verdict, mean difference, and the counts of victims."""
    table = lines(section, "directions")
    return lambda *words: next(row[1:] for row in table if all(word in row[0] for word in words))


def test_directions_of_objectives_by_hand():
    section = directions_section(parts_of(episodes(fading, objectives=tuple(HARM), victims=[("a", "x"), ("b", "y")])))
    found = directions(section)
    # nAUC is 0.902 minus half the harm at the largest budget: noise beside DCA, then DCA and LDA beside VSA and PEA.
    assert found("random")[0] == found("VSA")[0] == "**holds**"
    np.testing.assert_allclose(found("random")[1:], [0.025, 2, 2, 0, 0])
    np.testing.assert_allclose(found("VSA")[1:], [0.1375, 2, 2, 0, 0])
    assert len(lines(section, "directions")) == 2


def test_directions_may_be_open_or_the_opposite():
    def left(row):
        """Noise harms as much as VSA, give or take the seed's luck, in `a`, and more in `b`."""
        luck = {1: 30.0, 2: 0.0, 3: -30.0}[row["seed"]] if row["objective"] == "random" else 0.0
        worse = 100.0 if (row["victim"], row["objective"]) == ("b", "random") else 0.0
        return 900.0 - (row["objective"] != "clean") * (200.0 + luck + worse)

    rows = episodes(left, objectives=("random", "vsa"), victims=[("a", "x"), ("b", "y")])
    verdict, difference, *counts = directions(directions_section(parts_of(rows)))("random")
    assert (verdict, counts) == ("**opposite**", [2, 0, 1, 1])
    assert difference == pytest.approx(-0.0375)  # the area of a harm of 100 at budgets 0.1 and 0.2 is 0.075


def test_directions_of_families():
    def left(row):
        return 900.0 - (row["objective"] != "clean") * {"a": 300.0, "b": 100.0, "c": 300.0}[row["victim"]]

    found = directions(directions_section(parts_of(episodes(left, victims=AGENTS))))
    assert found("R2-Dreamer")[:3] == ["**holds**", pytest.approx(0.15), 1]  # areas of 0.225 and 0.075
    with pytest.raises(StopIteration):
        found("DreamerPro")
    elsewhere = [*episodes(left, victims=AGENTS[:2]), *episodes(left, victims=AGENTS[2:], tasks=("dmc_b",))]
    assert found("R2-Dreamer") == directions(directions_section(parts_of(elsewhere)))("R2-Dreamer")


def test_directions_in_time():
    share = {"none": 0.0, "full": 1.0, "first_half": 0.4, "second_half": 0.6, "sparse(2)": 0.4, "sparse(4)": 0.4}

    def left(row):
        return 900.0 - share[row["mode"]] * (900.0 - fading(row) + row["seed"])

    found = directions(directions_section(parts_of(episodes(left, modes=tuple(share)[1:]))))
    assert (found("every frame")[0], found("first half", "second")[0]) == ("**holds**", "**opposite**")
    np.testing.assert_allclose(found("every frame")[1], 0.6 * 0.25)
    assert found("every 2nd")[:2] == ["**open**", 0.0]
    with pytest.raises(StopIteration):
        found("every 6th")


def test_directions_of_defenses():
    spared = {"none": 0.0, "jpeg(75)": 0.5, "median": 0.1, "noise(0.04)": 0.2}

    def left(row):
        return 900.0 - (1 - spared[row["defense"]] * (1 - row["adaptive"])) * (900.0 - fading(row) + row["seed"])

    found = directions(directions_section(parts_of(episodes(left, defenses=tuple(spared), adaptive=(False, True)))))
    np.testing.assert_allclose([found("JPEG", "more")[1], found("JPEG", "less")[1]], [0.3, 0.5])
    np.testing.assert_allclose([found("median", "more")[1], found("median", "less")[1]], [-0.1, 0.1])
    assert found("median", "more")[0] == "**opposite**"
    np.testing.assert_allclose(found("Gaussian noise", "less")[1], 0.2)


def test_directions_of_transfer():
    rows = episodes(moved, victims=AGENTS, sources=("self", "a", "b", "c"))
    verdict, difference, victims, *_ = directions(directions_section(parts_of(rows)))("InfoNCE")
    assert (verdict, victims) == ("**opposite**", 2)
    np.testing.assert_allclose(difference, -np.mean([0.0625, 0.125]))


def test_no_directions_without_cells_that_show_any():
    assert directions_section(parts_of(episodes(fading, objectives=("pda",)))) is None
    assert directions_section(parts_of(episodes(fading, modes=("first_half",)))) is None
    assert directions_section([]) is None
    rows = [row for row in episodes(fading, objectives=("random", "vsa")) if row["objective"] != "random"]
    assert directions_section(parts_of(rows, {"objectives": ["random", "vsa"]})) is None  # not yet played


def test_published_numbers_stand_beside_the_same_cells():
    objectives, how = ("random", "pda", "vsa"), (FGSM, PGD)
    rows = episodes(fading, tasks=TASKS["DMC"][:2], budgets=(*BUDGETS[1:], 0.06), optimizers=how, objectives=objectives)
    section = published_section(columns_of(rows), parts_of(rows))
    ((suite, family, told, printed, ours),) = lines(section, "published_clean")
    assert (suite, family, printed, ours) == ("DMC", "`r2dreamer`", 928.52, 902.0)
    assert told == "**partial**, 2 of 10: `dmc_reacher_easy`, `dmc_reacher_hard`"
    paper, here = lines(section, "published_nauc")
    assert paper[2:] == ["paper", 0.819, 0.351, 0.381, 0.421, 0.350, 0.391]
    assert here[2] == "here, 2 of 10 tasks, **partial**"
    # The mean of 5 eps over [0, 0.16] is 0.4.
    np.testing.assert_allclose(here[3:], [0.862, 0.742, np.nan, np.nan, 0.662, np.nan])
    assert "published_strongest" not in [part.name for part in section.parts if isinstance(part, Table)]


def test_all_tasks_of_a_benchmark_are_not_partial():
    def left(row):
        return fading(row) / 1000

    rows = episodes(left, tasks=[task.replace("_", "-").replace("-", "_", 1) for task in TASKS["MetaWorld"]],
                    budgets=BUDGETS[1:], optimizers=(FGSM, PGD), seeds=(1, 2),
                    objectives=("random", "pda", "pea", "dca", "vsa", "lda"))  # fmt: skip
    section = published_section(columns_of(rows), parts_of(rows))
    assert lines(section, "published_clean")[0][2] == "all 10"
    assert lines(section, "published_nauc")[1][2] == "here, 10 of 10 tasks"
    shares = {row[0]: row[1:] for row in lines(section, "published_strongest")}
    assert shares["VSA"] == [40.0, 100.0]
    assert shares["PEA"] == [35.0, 0.0]


@pytest.mark.parametrize(
    "change",
    [{"agent": "tdmpc"}, {"task": "dmc_cheetah_run"}, {"max_return": 500.0}],
    ids=["family", "task", "short episodes"],
)
def test_other_cells_are_not_compared(change):
    rows = [row | change for row in episodes(fading, budgets=BUDGETS[1:], optimizers=(FGSM, PGD))]
    assert published_section(columns_of(rows), parts_of(rows)) is None


@pytest.mark.parametrize("how", [{"optimizers": (PGD,)}, {"budgets": BUDGETS[1:-1]}, {"modes": ("first_half",)}])
def test_other_attacks_leave_the_clean_returns_only(how):
    rows = episodes(fading, **({"budgets": BUDGETS[1:], "optimizers": (FGSM, PGD)} | how))
    section = published_section(columns_of(rows), parts_of(rows))
    assert [part.name for part in section.parts if isinstance(part, Table)] == ["published_clean"]


def test_curves_are_drawn_without_paper():
    parts = parts_of(episodes(fading, victims=AGENTS, optimizers=(FGSM, PGD), tasks=("dmc_a", "dmc_b")))
    drawing = draw_curves(parts)
    assert len(drawing.axes) == 6
    look(drawing)


MAKERS = (tasks_section, temporal_section, recovery_section, transfer_section, strongest_section)


@pytest.mark.parametrize("name", ["$x^2$ \\frac", "名前" * 30, "<script>", "a" * 100, "‮evil\x07"])
def test_hostile_names_are_inert(name):
    victims = [(name, "dreamer"), ("b", name)]
    rows = episodes(fading, victims=victims, tasks=(name, "b"), modes=("full", name), defenses=("none", name),
                    sources=("self", "b"), objectives=("random", "pda", name), seeds=(1, 2))  # fmt: skip
    parts = parts_of(rows)
    found = [make(parts) for make in MAKERS]
    drawings = [figure.drawing for section in found for figure in figures(section)]
    for text in (text for section in found for text in all_texts(section)):
        assert name not in re.sub(r"`[^`]*`", "", text)
    for drawing in (*drawings, draw_curves([part for part in parts if not part[0].setting.transferred][:2])):
        look(drawing)
        assert not any(text.get_text().count("\x07") or text.get_text().count("‮") for text in drawing.findobj(Text))
