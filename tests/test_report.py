"""The report of synthetic rows: numbers, what is missing, hostile names, wrong files, figures and the video."""

import errno
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from PIL import Image

from wmjax.core.errors import InputError
from wmjax.report import report
from wmjax.report.checks import CHECKS
from wmjax.report.curves import _spread
from wmjax.report.load_results import read_rows
from wmjax.report.plot_style import objective_styles
from wmjax.report.traces import lowest_pairs
from wmjax.study.schema import SCHEMA, SCHEMA_VERSION

DEFAULTS = {"string": "none", "int32": 1, "int64": 1, "double": 0.0, "float": 0.5, "bool": False}
STRENGTH = {"random": 0.3, "pda": 2.0, "pea": 2.6, "dca": 1.0, "vsa": 3.2, "lda": 1.4}
STEPS = {"none": 0, "fgsm": 1, "pgd": 10}


def make_row(**values):
    """A row with every column: those of `values`, and harmless ones."""
    defaults = {field.name: DEFAULTS[str(field.type)] for field in SCHEMA}
    defaults |= {"victim": "agent", "agent": "r2dreamer", "task": "dmc_cartpole_balance", "objective": "clean"}
    defaults |= {"max_return": 1000.0, "length": 500, "schema": SCHEMA_VERSION, "wmjax": "0.1.0", "device": "cpu"}
    defaults |= {"victim_sha256": "ab" * 32, "zero_grad": 0.0, "steps": STEPS.get(values.get("optimizer", "none"), 1)}
    defaults |= {"draws": int(values.get("optimizer", "none") != "none"), "loss_first": 0.1, "saturated": 0.0}
    defaults |= {"restart_gap": float("nan"), "loss_error": 0.0, "max_delta": values.get("eps", 0.0), "error": ""}
    if values.get("objective", "clean") != "clean":
        defaults |= {"frames": "float", "region": "all", "source": "self"}
    if values.get("optimizer", "none") == "none":
        defaults |= {"source": "none"}
    return defaults | values


def make_study(
    *, victims=("agent",), tasks=("dmc_cartpole_balance",), objectives=tuple(STRENGTH), optimizers=("fgsm", "pgd"),
    budgets=(0.02, 0.04, 0.08), modes=("full",), seeds=range(20, 25), clean=900.0, spread=30.0,
):  # fmt: skip
    """The rows of a full grid whose returns fall with the budget, faster for stronger objectives."""
    rows = []
    for v, victim in enumerate(victims):
        for t, task in enumerate(tasks):
            for seed in seeds:
                luck = np.random.default_rng([v, t, seed]).normal()
                level = clean - 40 * v - 60 * t + spread * luck
                cell = {"victim": victim, "task": task, "seed": seed}
                rows.append(make_row(**cell, **{"return": level}))
                for objective in objectives:
                    for optimizer in ("none",) if objective == "random" else optimizers:
                        for m, mode in enumerate(modes):
                            for eps in budgets:
                                rate = STRENGTH.get(objective, 2.0) * (2.2 if optimizer == "pgd" else 1.0) / (1 + m)
                                noise = np.random.default_rng([v, t, seed, int(1e4 * eps), len(objective)]).normal()
                                value = level * np.exp(-4 * rate * eps) + spread * noise * eps * 4
                                attack = {"objective": objective, "optimizer": optimizer, "mode": mode, "eps": eps}
                                rows.append(make_row(**cell, **attack, **{"return": float(np.clip(value, 0, 1000))}))
    return rows


def write_rows(folder, rows, name="chunk", schema=SCHEMA):
    (folder / "rows").mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / "rows" / f"{name}.parquet")


def write_trace(folder, *, frames=None, steps=40, seed=20, eps=0.08, size=64, **cell):
    """A recorded episode: a ball that moves, a perturbation where attacked, reward that decays where attacked."""
    (folder / "traces").mkdir(parents=True, exist_ok=True)
    clean = cell.get("objective", "clean") == "clean"
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size]
    camera = np.empty((steps, size, size, 3), np.uint8)
    for t in range(steps):
        centre = size * (0.5 + (0.1 if clean else 0.35) * np.sin(t / 9))
        ball = (x - centre) ** 2 + (y - 0.6 * size) ** 2 < (size / 9) ** 2
        sky = np.stack([40 + y, 70 + y, 120 + y], -1)
        camera[t] = np.where(ball[..., None], (230, 180, 60), sky)
    attacked = np.full(steps, not clean)
    delta = np.rint(255 * eps * np.sign(rng.normal(size=camera.shape))).astype(np.int16)
    seen = np.where(attacked[:, None, None, None], np.clip(camera + delta, 0, 255), camera).astype(np.uint8)
    reward = np.full(steps, 1.8, np.float32) if clean else (1.8 * np.exp(-np.arange(steps) / 90)).astype(np.float32)
    meta = make_row(
        **{"seed": seed, "eps": 0.0 if clean else eps, "return": float(reward.sum()), "mode": "full"} | cell
    )
    arrays = {"frames": camera, "seen": seen, "reward": reward, "attacked": attacked, "action": np.zeros((steps, 1))}
    name = f"{len(list((folder / 'traces').iterdir()))}_{meta['objective']}".replace("/", "_")[:60]
    np.savez_compressed(folder / "traces" / name, **arrays, meta=np.array(json.dumps(meta)))


def tables(page):
    """Every Markdown table of the page: the lists of its cells, header first, without the rule."""
    found, current = [], []
    for line in [*page.splitlines(), ""]:
        if line.startswith("|"):
            current.append([cell.strip() for cell in line.strip("|").split("|")])
        elif current:
            found.append([current[0], *current[2:]])
            current = []
    return found


def table_with(page, column):
    """The first table that has `column`, as one dictionary a line."""
    header, *lines = next(table for table in tables(page) if column in table[0])
    return [dict(zip(header, line, strict=True)) for line in lines]


PAGE = {"report.html", "report.md", "SHA256SUMS"}


def files_of(folder):
    """Content by name of what the report consists of, but for its tables."""
    return {path.name: path.read_bytes() for path in (folder / "report").iterdir() if path.name != "tables"}


def text_of(folder, rows=None, manifest=None):
    if rows is not None:
        write_rows(folder, rows)
    if manifest is not None:
        (folder / "manifest.json").write_text(json.dumps(manifest))
    path = report(folder)
    assert path == folder / "report" / "report.html"
    return path.with_name("report.md").read_text(encoding="utf-8")


def attack(objective, optimizer, eps, value, **more):
    return make_row(objective=objective, optimizer=optimizer, mode="full", eps=eps, **{"return": value} | more)


def two_seeds(lower, upper, **cell):
    return [make_row(seed=0, **cell, **{"return": lower}), make_row(seed=1, **cell, **{"return": upper})]


def by_hand():
    """PGD's mean scores are 1, .5, 0 at budgets 0, .1, .3; FGSM's 1, .75, .5; noise does nothing."""
    rows = two_seeds(1000.0, 1000.0)
    for optimizer, eps, lower, upper in (
        ("pgd", 0.1, 400.0, 600.0), ("pgd", 0.3, 0.0, 0.0), ("fgsm", 0.1, 750.0, 750.0), ("fgsm", 0.3, 500.0, 500.0)
    ):  # fmt: skip
        rows += two_seeds(lower, upper, objective="vsa", optimizer=optimizer, mode="full", eps=eps)
    for eps in (0.1, 0.3):
        rows += two_seeds(1000.0, 1000.0, objective="random", mode="full", eps=eps)
    return rows


def test_nauc_table_by_hand(tmp_path):
    page = text_of(tmp_path, by_hand())
    noise, vsa = table_with(page, "PGD-10")
    # PGD: (.75 * .1 + .25 * .2) / .3, and its draws move by .1 * (.05 + .1) / .3 either way.
    assert vsa["PGD-10"] == "0.417 [0.367, 0.467]"
    # FGSM: (.875 * .1 + .625 * .2) / .3
    assert vsa["FGSM"] == "0.708 [0.708, 0.708]"
    # Their mean, with half of PGD's spread.
    assert vsa["mean"] == "**0.562 [0.537, 0.588]**"
    assert noise["mean"] == noise["FGSM"] == noise["PGD-10"] == "1.000 [1.000, 1.000]"


def test_returns_and_clean_by_hand(tmp_path):
    page = text_of(tmp_path, by_hand())
    (clean,) = table_with(page, "clean return")
    assert (clean["clean return"], clean["episodes"]) == ("1000 [1000, 1000]", "2")
    noise, fgsm, pgd = table_with(page, "ε = 0.3")
    assert (pgd["ε = 0"], pgd["ε = 0.1"], pgd["ε = 0.3"]) == ("1000 [1000, 1000]", "500 [400, 600]", "0 [0, 0]")
    assert (fgsm["optimizer"], noise["optimizer"]) == ("FGSM", "–")


def test_mean_over_tasks_weighs_tasks_and_scales_alike(tmp_path):
    rows = []
    for task, scale, seeds in (("dmc_walker_walk", 1000.0, 2), ("metaworld_reach", 1.0, 6)):
        for seed in range(seeds):
            cell = {"task": task, "max_return": scale, "seed": seed}
            rows.append(make_row(**cell, **{"return": scale}))
            for eps in (0.1, 0.2):
                lost = 0.0 if task == "dmc_walker_walk" else scale
                rows.append(attack("vsa", "pgd", eps, lost, **cell))
    (line,) = table_with(text_of(tmp_path, rows), "ε = 0.2")
    assert line["ε = 0.2"] == "0.500 [0.500, 0.500]"


def test_order_of_rows_and_files_does_not_matter(tmp_path):
    rows = make_study(seeds=range(3))
    text_of(tmp_path / "one", rows)
    shuffled = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    for part in range(4):
        write_rows(tmp_path / "two", shuffled[part::4], name=f"{9 - part}")
    report(tmp_path / "two")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_report_is_a_pure_function_of_the_folder(tmp_path):
    folder = tmp_path / "here"
    write_rows(folder, make_study(seeds=range(2)))
    write_trace(folder)
    write_trace(folder, objective="vsa", optimizer="pgd")
    report(folder)
    first = files_of(folder)
    assert set(first) == {*PAGE, "curves.png", "episode.mp4", "episode.png"}
    folder = folder.rename(tmp_path / "there")
    report(folder)
    assert files_of(folder) == first


def test_missing_cells_are_dashes_and_listed(tmp_path):
    rows = by_hand()
    kept = [r for r in rows if (r["optimizer"], r["eps"]) != ("fgsm", 0.3)]
    page = text_of(tmp_path, kept)
    _, vsa = table_with(page, "PGD-10")
    assert (vsa["FGSM"], vsa["mean"]) == ("–", "–")
    assert vsa["PGD-10"].startswith("0.417")
    (cell,) = table_with(page, "missing seeds")
    assert (cell["attack"], cell["ε"], cell["missing seeds"]) == ("`VSA, FGSM`", "0.3", "2")
    assert "**Missing: 2 episodes**" in page
    _, fgsm, _ = table_with(page, "ε = 0.3")
    assert fgsm["ε = 0.3"] == "–"


def test_a_missing_clean_cell_is_counted_once_and_leaves_nauc_undefined(tmp_path):
    page = text_of(tmp_path, [r for r in by_hand() if r["objective"] != "clean"])
    assert "**Missing: 2 episodes**" in page
    assert {line["mean"] for line in table_with(page, "PGD-10")} == {"–"}
    assert table_with(page, "clean return")[0]["clean return"] == "–"


def test_a_study_that_stopped_early_shows_what_it_still_owes(tmp_path):
    rows = [r for r in make_study(seeds=range(2), budgets=(0.1, 0.2)) if r["optimizer"] != "fgsm"]
    study = {
        "victims": ["agent", "path/of/other.safetensors"],
        "objectives": list(STRENGTH),
        "steps": 10,
        "noise": "none",
    }
    study |= {"optimizers": ["fgsm", "pgd"], "budgets": [0, 0.1, 0.2], "modes": ["full"], "seeds": [0, 1, 2]}
    page = text_of(tmp_path, rows, {"study": study})
    lines = table_with(page, "FGSM")
    assert {line["FGSM"] for line in lines[1:]} == {line["mean"] for line in lines[1:]} == {"–"}
    assert lines[0]["FGSM"] == lines[0]["mean"] != "–"
    assert "Not all objectives have all their cells" in page
    # One clean seed; 2 budgets of 6 attacks that lack one seed, and of 5 that lack all three.
    assert f"**Missing: {1 + 2 * (6 + 15)} episodes**" in page
    assert "**Missing: every episode** of `path/of/other.safetensors`" in page


def test_episodes_that_are_not_a_return_are_left_out_and_counted(tmp_path):
    rows = by_hand()
    rows.append(attack("vsa", "pgd", 0.3, float("nan"), seed=2, nan=True))
    rows.append(attack("vsa", "pgd", 0.1, 123.0, seed=2, nan=True))
    page = text_of(tmp_path, rows)
    assert "**Left out: 2 episodes**" in page
    assert table_with(page, "PGD-10")[1]["PGD-10"].startswith("0.417")


@pytest.mark.parametrize(("seeds", "few"), [(2, True), (9, True), (10, False)])
def test_few_seeds_are_a_warning(tmp_path, seeds, few):
    page = text_of(tmp_path, make_study(seeds=range(seeds), objectives=("vsa",), optimizers=("pgd",)))
    assert (f"**Few seeds**: with {seeds}" in page) == few


def test_one_seed_has_no_interval(tmp_path):
    page = text_of(tmp_path, make_study(seeds=[5]))
    assert "**No interval**" in page
    assert all(line["mean"].strip("*").endswith(" [–]") for line in table_with(page, "PGD-10"))


def test_a_single_budget_has_returns_and_no_nauc(tmp_path):
    page = text_of(tmp_path, make_study(seeds=range(3), budgets=(8 / 255,)))
    assert "There is no nAUC" in page
    assert not any("mean" in table[0] for table in tables(page))
    assert len(table_with(page, "ε = 8/255")) == 11


def test_clean_episodes_alone_make_a_report(tmp_path):
    page = text_of(tmp_path, two_seeds(500.0, 600.0))
    assert "No attacked episodes yet." in page
    assert table_with(page, "clean return")[0]["clean return"] == "550 [500, 600]"
    assert set(files_of(tmp_path)) == PAGE


def test_each_mode_has_its_section_and_figure(tmp_path):
    page = text_of(tmp_path, make_study(seeds=range(2), modes=("sparse(4)", "first_half", "full", "sparse(2)")))
    headings = [line for line in page.splitlines() if line.startswith("## Attacked")]
    assert headings == [f"## Attacked: `{mode}`" for mode in ("full", "first_half", "sparse(2)", "sparse(4)")]
    assert {f"curves{n}.png" for n in ("", "_2", "_3", "_4")} <= set(files_of(tmp_path))
    assert page.count("| victim | objective | mean |") == 4


def test_variants_of_one_optimizer_stay_apart(tmp_path):
    rows = by_hand()
    for noise, level in (("fresh", 100.0), ("shared", 300.0)):
        for eps in (0.1, 0.3):
            rows += two_seeds(
                level, level, objective="vsa", optimizer="pgd", mode="full", eps=eps, steps=50, noise=noise
            )
    _, vsa = table_with(text_of(tmp_path, rows), "PGD-10")
    assert [key for key in vsa if "PGD" in key] == [
        "PGD-10",
        "`PGD-50, fresh noise`",
        "`PGD-50, shared noise`",
    ]
    # The clean score 1 at budget 0, then .1 or .3.
    assert vsa["`PGD-50, fresh noise`"].startswith("0.250")
    assert vsa["`PGD-50, shared noise`"].startswith("0.417")


def test_self_checks_that_fire_are_told_first_and_in_their_section(tmp_path):
    rows = make_study(seeds=range(2))
    page = text_of(tmp_path / "without", rows)
    assert "**Self-check**" not in page
    listed = {line["check"]: line["here"] for line in table_with(page, "here")}
    assert list(listed) == [f"`{check.name}`" for check in CHECKS]
    assert listed["`zero-gradient`"] == "silent"
    assert listed["`restart-gap`"] == "not applicable: no optimizer with restarts in this study"
    for row in rows:
        if row["objective"] == "lda" and row["optimizer"] in ("fgsm", "pgd"):
            row["zero_grad"] = 0.75 if row["seed"] == 20 or row["seed"] == 0 else 0.25
    page = text_of(tmp_path / "with", rows)
    first, section = page.split("## Self-checks")
    assert "**Self-check** `zero-gradient` fired in 6 cells, listed below. Gradients were exactly zero" in first
    assert {line["check"]: line["here"] for line in table_with(page, "here")}["`zero-gradient`"] == (
        "**fired** in 6 cells"
    )
    assert "`agent` on `dmc_cartpole_balance`, `full`: LDA, latent drift, by FGSM, ε = 0.02: share 0.5" in section
    assert "and 1 more cell" in section


def defended(rows, **worth):
    """The rows, and those of the same agent behind each defense of `worth`, with that share of the harm undone.

    Names that end in `_adaptive` are of attacks that know the defense; noise does not exist for them.
    """
    clean = {(row["victim"], row["task"], row["seed"]): row["return"] for row in rows if row["objective"] == "clean"}
    found = list(rows)
    for name, share in worth.items():
        defense, adaptive = name.removesuffix("_adaptive"), name.endswith("_adaptive")
        for row in rows:
            if not (adaptive and row["objective"] in ("clean", "random")):
                harm = clean[row["victim"], row["task"], row["seed"]] - row["return"]
                returned = row["return"] + share * harm
                knows = {"adaptive": adaptive and row["objective"] != "random"}
                found.append(row | knows | {"defense": f"{defense}(75)", "return": returned})
    return found


def test_defenses_are_judged_by_recovery(tmp_path):
    page = text_of(tmp_path, defended(by_hand(), jpeg=0.5, jpeg_adaptive=0.25, blur=-0.5))
    random, fgsm, pgd, mean = [line for line in table_with(page, "recovery") if "jpeg" in line["defense"]]
    assert (fgsm["without"], fgsm["with"], fgsm["with, adaptive"]) == ("0.500", "0.750", "0.625")
    assert (pgd["recovery"], pgd["recovery, adaptive"]) == ("0.50 [0.50, 0.50]", "0.25 [0.25, 0.25]")
    assert (mean["attack"], mean["recovery"], mean["adaptive gap"]) == (
        "**mean over attacks**", "0.50 [0.50, 0.50]", "0.25 [0.25, 0.25]",
    )  # fmt: skip
    # Noise did no harm, so nothing can be given back: missing, and counted.
    assert (random["without"], random["recovery"], random["with, adaptive"]) == ("1.000", "–", "–")
    assert "Undefined here: 1 of 3 pairs of task and attack." in page
    blur = [line for line in table_with(page, "recovery") if "blur" in line["defense"]]
    assert {(line["recovery, adaptive"], line["adaptive gap"]) for line in blur} == {("–", "–")}
    assert blur[-1]["recovery"] == "-0.50 [-0.50, -0.50]"


def test_recovery_needs_the_undefended_agent(tmp_path):
    rows = [row for row in defended(by_hand(), jpeg=0.5) if row["defense"] != "none"]
    assert "this study does not have" in text_of(tmp_path / "one", rows)
    assert "## Defenses" not in text_of(tmp_path / "two", by_hand())


def test_settings_never_mix(tmp_path):
    rows = by_hand()
    far = {"region": "patch(8)", "frames": "uint8"}
    rows += [row | far | {"return": 900.0} for row in by_hand() if row["objective"] != "clean"]
    rows += [row | {"draws": 4, "return": 800.0} for row in by_hand() if row["optimizer"] == "pgd"]
    page = text_of(tmp_path, rows)
    headings = [line for line in page.splitlines() if line.startswith("## Attacked")]
    assert headings == [
        f"## Attacked: `full, {region}, {frames} frames`"
        for region in ("whole image", "region patch(8)")
        for frames in ("float", "uint8")
    ]
    own = {
        heading: table_with(part, "mean") for heading, part in zip(headings, page.split("## Attacked")[1:], strict=True)
    }
    _, vsa = own[headings[0]]
    # The clean score 1 at budget 0, then .8.
    assert vsa["`PGD-10, 1 draw`"].startswith("0.417")
    assert vsa["`PGD-10, 4 draws`"].startswith("0.833")
    _, vsa = own[headings[3]]
    assert vsa["`PGD-10, 1 draw`"].startswith("0.917")
    assert vsa["`PGD-10, 4 draws`"] == "–"
    # Two settings without any row, of 4 attacks; one without the attack of 4 draws: 2 budgets, 2 seeds.
    assert f"**Missing: {2 * 4 * 4 + 4} episodes**" in page
    partly = {f"`{heading.split('`')[1]}`" for heading in headings[1:]}
    assert {line["setting"] for line in table_with(page, "missing seeds")} == partly
    assert {"curves.png", "curves_2.png", "curves_3.png", "curves_4.png"} <= set(files_of(tmp_path))


def test_clean_episodes_and_noise_belong_to_their_defense(tmp_path):
    rows = defended(by_hand(), jpeg=0.5, jpeg_adaptive=0.25)
    for row in rows:
        if row["objective"] == "clean" and row["defense"] != "none":
            row["return"] = 600.0
    page = text_of(tmp_path, rows)
    assert [(line["defense"], line["clean return"]) for line in table_with(page, "clean return")] == [
        ("`jpeg(75)`", "600 [600, 600]"), ("`none`", "1000 [1000, 1000]"),
    ]  # fmt: skip
    adaptive = page.split("## Attacked: `full, defense jpeg(75), adaptive`")[1].split("\n## ")[0]
    noise, fgsm, _ = table_with(adaptive, "ε = 0.3")
    assert (noise["ε = 0"], noise["ε = 0.3"]) == ("600 [600, 600]", "1000 [1000, 1000]")
    assert (fgsm["ε = 0"], fgsm["ε = 0.3"]) == ("600 [600, 600]", "625 [625, 625]")
    assert "**Missing: " not in page


def test_a_study_names_the_settings_it_expects(tmp_path):
    study = {"victims": ["agent"], "objectives": ["random", "vsa"], "optimizers": ["fgsm", "pgd(10)"], "steps": 3}
    study |= {"budgets": [0.1, 0.3], "modes": ["full"], "seeds": [0, 1], "noise": "none", "draws": 1}
    study |= {"regions": ["all"], "frames": ["float"], "defenses": ["none", "jpeg(75)"], "adaptive": [False, True]}
    rows = defended(by_hand(), jpeg=0.5, jpeg_adaptive=0.25)
    assert "**Missing: " not in text_of(tmp_path / "all", rows, {"study": study})
    page = text_of(tmp_path / "bare", by_hand(), {"study": study})
    # Behind the defense: 2 clean, 4 of noise, which is the same adaptive or not, and 8 of VSA, once and again.
    assert f"**Missing: {2 + 4 + 8 + 8} episodes**" in page
    clean, *_ = table_with(page, "missing seeds")
    assert (clean["setting"], clean["attack"]) == ("`none, defense jpeg(75)`", "`clean`")


def test_probes_belong_to_no_curve(tmp_path):
    text = text_of(tmp_path / "without", by_hand())
    probes = [row | {"eps": 0.0} for row in by_hand() if row["objective"] != "clean" and row["eps"] == 0.3]
    for row in probes:
        row["return"], row["max_delta"] = 1000.0, 0.0
    page = text_of(tmp_path / "with", by_hand() + [row for row in probes if row["seed"] == 0])
    assert table_with(page, "PGD-10") == table_with(text, "PGD-10")
    assert table_with(page, "ε = 0.3") == table_with(text, "ε = 0.3")
    assert "3 attacked with ε = 0 as a check" in page
    assert "| `zero-budget-differs` | silent |" in page


def test_diagnostics_are_means_at_the_largest_budget(tmp_path):
    rows = by_hand()
    for row in rows:
        row["drift_h"] = 5.0 if row["eps"] == 0.3 else 77.0
        row["loss_last"] = float("nan") if row["objective"] == "random" else 2.0 * row["seed"]
    page = text_of(tmp_path, rows)
    noise, fgsm, _ = table_with(page, "drift of h")
    assert (fgsm["drift of h"], fgsm["loss, last"]) == ("5.00", "1.000")
    assert "at the largest budget, ε = 0.3." in page
    assert noise["loss, last"] == "–"


def test_manifest_speaks(tmp_path):
    manifest = {"notes": ["Half-trained: <b>no</b> conclusions | about robustness."], "device": "2 x cpu"}
    page = text_of(tmp_path, two_seeds(1.0, 2.0), manifest | {"versions": {"jax": "0.10.2"}, "study": {}})
    assert r"Half-trained: &lt;b&gt;no&lt;/b&gt; conclusions \| about robustness." in page
    assert "jax 0.10.2" in page
    assert "`2 x cpu`" in page


HOSTILE = [
    "<script>alert(1)</script>", "a|b`c``d", "line\nbreak\r\n# heading", "$\\frac{", "](http://x) ![", "../../passwd",
    "\u202egnp.\u200b", "日本語🤖", "", " ", "x" * 300, "a_b*c~~d~~", "@someone #1", "\x00\x1b[31m", "{0} %s {curly",
]  # fmt: skip


@pytest.mark.parametrize(
    "column", ["victim", "task", "objective", "optimizer", "mode", "region", "frames", "defense", "noise"]
)
def test_hostile_names_stay_text(tmp_path, column):
    rows = []
    for name in HOSTILE:
        rows += [
            make_row(**{"return": 900.0} | ({column: name} if column in ("victim", "task") else {}), seed=len(rows))
        ]
        for eps in (0.1, 0.2):
            cell = {
                "objective": "vsa",
                "optimizer": "pgd",
                "mode": "full",
                "eps": eps,
                "return": 10.0,
                "seed": len(rows),
            }
            rows.append(make_row(**cell | {column: name}))
    page = text_of(tmp_path, rows)
    for table in tables(page):
        assert {len(line) for line in table} == {len(table[0])}
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(page)
    assert set(re.findall(r"<(\w+)", html)) <= set(
        ["a", "code", "em", "h1", "h2", "img", "li", "p", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"]
    )
    assert set(re.findall(r'href="([^"]*)"', html)) == {"https://arxiv.org/abs/2606.16605"}
    assert set(re.findall(r"<h1>(.*)</h1>", html)) == {"Robustness under attack"}
    assert all(char == "\n" or char.isprintable() for char in page)
    assert {path.name for path in tmp_path.iterdir()} == {"rows", "report"}


def png(path):
    return np.asarray(Image.open(path).convert("RGB"))


def decode(video):
    """What ffmpeg says of a video while it decodes all of it; fails on an error."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-xerror", "-i", str(video), "-f", "null", "-"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def test_the_figure_shows_every_objective_in_its_colour(tmp_path):
    text_of(tmp_path, make_study(seeds=range(3)))
    picture = png(tmp_path / "report" / "curves.png")
    assert picture.shape[1] > 1200
    colours = set(np.unique(picture.astype(int) @ (1 << 16, 1 << 8, 1)).tolist())
    assert {int(colour[1:], 16) for colour, _ in objective_styles(STRENGTH).values()} <= colours


def test_labels_keep_apart_within_the_panel():
    places = _spread(np.array([500.0, 10.0, 8.0, 9.0, 990.0, 1000.0]), gap=50.0, top=1000.0)
    order = np.argsort([500.0, 10.0, 8.0, 9.0, 990.0, 1000.0])
    assert np.all(np.diff(places[order]) >= 50 - 1e-9)
    assert places.min() >= 0
    assert places.max() <= 1000
    assert places[0] == 500


def test_the_video_plays_in_browsers(tmp_path):
    write_rows(tmp_path, by_hand())
    write_trace(tmp_path, steps=260)
    write_trace(tmp_path, steps=260, objective="vsa", optimizer="pgd")
    page = text_of(tmp_path)
    video = tmp_path / "report" / "episode.mp4"
    assert video.stat().st_size < 3_000_000
    said = decode(video)
    assert re.search(r"Video: h264 .* yuv420p", said)
    assert re.search(r"frame= *130 ", said)
    assert video.read_bytes().find(b"moov") < video.read_bytes().find(b"mdat")
    assert "[![Clean beside attacked; a click plays the video](episode.png)](episode.mp4)" in page


def test_the_poster_shows_the_four_pictures_enlarged(tmp_path):
    write_rows(tmp_path, by_hand())
    write_trace(tmp_path)
    write_trace(tmp_path, objective="vsa", optimizer="pgd", eps=0.08)
    page = text_of(tmp_path)
    ((clean, attacked),) = lowest_pairs(tmp_path, 1)
    poster = png(tmp_path / "report" / "episode.png")
    # The perturbation is 20 grey levels either way, so its factor is 6.
    assert "perturbation times 6 around grey" in page
    change = attacked.seen[-1].astype(int) - attacked.frames[-1]
    expected = (clean.frames[-1], attacked.frames[-1], attacked.seen[-1], 128 + 6 * change)
    for tile, picture in enumerate(expected):
        left = 16 + 272 * tile
        np.testing.assert_array_equal(poster[80 : 80 + 256 : 4, left : left + 256 : 4], picture)
        np.testing.assert_array_equal(poster[83 : 80 + 256 : 4, left + 3 : left + 256 : 4], picture)


def test_the_video_takes_the_lowest_return_with_a_clean_partner(tmp_path):
    write_trace(tmp_path)
    write_trace(tmp_path, objective="vsa", optimizer="pgd", **{"return": 30.0})
    write_trace(tmp_path, objective="pea", optimizer="pgd", **{"return": 20.0})
    write_trace(tmp_path, objective="lda", optimizer="pgd", **{"return": float("nan")})
    write_trace(tmp_path, objective="dca", optimizer="pgd", seed=99, **{"return": 1.0})
    ((clean, attacked),) = lowest_pairs(tmp_path, 1)
    assert (clean.meta["objective"], attacked.meta["objective"]) == ("clean", "pea")


def test_the_video_pairs_episodes_of_one_defense(tmp_path):
    write_trace(tmp_path, **{"return": 90.0})
    write_trace(tmp_path, defense="median", **{"return": 80.0})
    write_trace(tmp_path, objective="vsa", optimizer="pgd", defense="median", adaptive=True, **{"return": 20.0})
    write_trace(tmp_path, objective="vsa", optimizer="pgd", defense="jpeg(75)", **{"return": 10.0})
    write_trace(tmp_path, objective="pea", optimizer="pgd", eps=0.0, **{"return": 5.0})
    ((clean, attacked),) = lowest_pairs(tmp_path, 1)
    assert (clean.meta["return"], attacked.meta["return"]) == (80.0, 20.0)
    assert "mode `full, defense median, adaptive`, ε = 0.08" in text_of(tmp_path, by_hand())


def test_episodes_of_unlike_length_share_a_video(tmp_path):
    write_rows(tmp_path, by_hand())
    write_trace(tmp_path, steps=30)
    write_trace(tmp_path, steps=12, objective="vsa", optimizer="pgd")
    report(tmp_path)
    assert re.search(r"frame= *30 ", decode(tmp_path / "report" / "episode.mp4"))


def test_without_traces_there_is_a_sentence_and_no_stale_video(tmp_path):
    write_rows(tmp_path, make_study(seeds=range(2), modes=("full", "first_half")))
    write_trace(tmp_path, steps=10)
    write_trace(tmp_path, steps=10, objective="vsa", optimizer="pgd")
    report(tmp_path)
    assert {"episode.mp4", "curves_2.png"} <= set(files_of(tmp_path))
    for path in [*(tmp_path / "traces").iterdir(), *(tmp_path / "rows").iterdir()]:
        path.unlink()
    page = text_of(tmp_path, make_study(seeds=range(2)))
    assert "there is no video" in page
    assert set(files_of(tmp_path)) == {*PAGE, "curves.png"}


def test_foreign_files_beside_the_report_stay(tmp_path):
    write_rows(tmp_path, by_hand())
    report(tmp_path)
    kept = {"curves_mine.png", "curves.png.bak", "episode.mp4", "curves_7.png"}
    for name in kept:
        (tmp_path / "report" / name).touch()
    report(tmp_path)
    assert set(files_of(tmp_path)) == {*PAGE, "curves.png", *kept}


@pytest.mark.parametrize("name", ["report", "curves.png", "episode.mp4", "episode.png", "report.md"])
def test_a_report_that_cannot_be_written_names_the_path(tmp_path, name):
    write_rows(tmp_path, by_hand())
    write_trace(tmp_path, steps=4)
    write_trace(tmp_path, steps=4, objective="vsa", optimizer="pgd")
    path = tmp_path / "report"
    if name == "report":
        path.touch()
    else:
        path /= name
        path.mkdir(parents=True)
    with pytest.raises(InputError, match=f"{re.escape(str(path))}(/tables)?: cannot be written") as error:
        report(tmp_path)
    assert "\n" not in str(error.value)


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    write_rows(tmp_path, by_hand())
    report(tmp_path)
    (tmp_path / "report" / "curves_2.png").touch()

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(InputError, match=r"tables/\w+\.csv: cannot be written \(No space left on device\)"):
        report(tmp_path)
    assert "curves_2.png" in files_of(tmp_path)  # stale, but nothing goes before the new report is there


def refused(folder, *, naming):
    with pytest.raises(InputError) as error:
        report(folder)
    assert str(naming) in str(error.value)
    assert not (folder / "report").exists()
    return str(error.value)


def test_a_folder_without_rows_is_refused(tmp_path):
    assert "no such folder" in refused(tmp_path / "nowhere", naming=tmp_path / "nowhere")
    assert "no rows" in refused(tmp_path, naming=tmp_path)
    write_rows(tmp_path, [])
    assert "no rows" in refused(tmp_path, naming=tmp_path)


def test_files_that_are_not_rows_are_refused_by_name(tmp_path):
    write_rows(tmp_path, by_hand())
    other = tmp_path / "rows" / "other.parquet"
    other.write_bytes(b"not parquet at all")
    assert "not a readable Parquet file" in refused(tmp_path, naming=other)
    other.write_bytes((tmp_path / "rows" / "chunk.parquet").read_bytes()[:-200])
    assert "not a readable Parquet file" in refused(tmp_path, naming=other)
    pq.write_table(pa.table({"x": [1, 2]}), other)
    assert "not a table of wmjax rows" in refused(tmp_path, naming=other)
    write_rows(tmp_path, by_hand(), "other", SCHEMA.with_metadata({"wmjax_schema": "999"}))
    assert "schema version 999" in refused(tmp_path, naming=other)
    retyped = SCHEMA.set(SCHEMA.get_field_index("eps"), pa.field("eps", pa.float32(), nullable=False))
    write_rows(tmp_path, by_hand(), "other", retyped)
    assert "'eps'" in refused(tmp_path, naming=other)


@pytest.mark.parametrize(("column", "value"), [("eps", float("nan")), ("eps", -0.1), ("eps", 2.0), ("max_return", 0.0)])
def test_impossible_numbers_are_refused(tmp_path, column, value):
    write_rows(tmp_path, [attack("vsa", "pgd", 0.1, 5.0) | {column: value}])
    assert repr(column) in refused(tmp_path, naming=tmp_path / "rows" / "chunk.parquet")


def test_one_episode_in_two_files_is_refused(tmp_path):
    write_rows(tmp_path, by_hand())
    write_rows(tmp_path, by_hand()[2:3], name="again")
    message = refused(tmp_path, naming=tmp_path / "rows" / "again.parquet")
    assert str(tmp_path / "rows" / "chunk.parquet") in message
    assert "'objective': 'vsa'" in message


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '{"study": {"defenses": "jpeg"}}',
        '{"study": {"draws": "2"}}',
        '{"notes": "text"}',
        '{"notes": [1]}',
        '{"study": {"seeds": "20..39"}}',
        '{"device": 3}',
        "\xff",
    ],
)
def test_a_wrong_manifest_is_refused(tmp_path, text):
    write_rows(tmp_path, by_hand())
    (tmp_path / "manifest.json").write_bytes(text.encode("latin-1"))
    refused(tmp_path, naming=tmp_path / "manifest.json")


def spoil(file, **changes):
    with np.load(file) as arrays:
        kept = {name: value for name, value in (dict(arrays) | changes).items() if value is not None}
    np.savez_compressed(file, **kept)


@pytest.mark.parametrize(
    "changes",
    [
        {"meta": np.array("{}")}, {"meta": np.array("[")}, {"meta": None}, {"meta": np.array({"a": 1}, dtype=object)},
        {"frames": None}, {"frames": np.zeros((3, 64, 64, 3), np.uint8)}, {"seen": np.zeros((40, 64, 64, 3))},
        {"reward": np.full(40, np.nan)}, {"attacked": np.zeros(40)}, {"seen": np.zeros((40, 64, 64, 4), np.uint8)},
    ],
)  # fmt: skip
def test_a_wrong_trace_is_refused_by_name(tmp_path, changes):
    write_rows(tmp_path, by_hand())
    write_trace(tmp_path)
    write_trace(tmp_path, objective="vsa", optimizer="pgd")
    file = next((tmp_path / "traces").glob("*vsa*"))
    spoil(file, **changes)
    refused(tmp_path, naming=file)


@pytest.mark.parametrize(("name", "value"), [("steps", np.nan), ("eps", np.inf), ("seed", 10**400), ("source", 1)])
def test_a_trace_of_an_impossible_cell_is_refused_by_name(tmp_path, name, value):
    write_rows(tmp_path, by_hand())
    write_trace(tmp_path, steps=3)
    file = next((tmp_path / "traces").iterdir())
    with np.load(file) as arrays:
        meta = json.loads(str(arrays["meta"]))
    spoil(file, meta=np.array(json.dumps(meta | {name: value})))
    assert name in refused(tmp_path, naming=file).split("missing or wrong")[1]


def test_a_trace_that_is_no_archive_is_refused_by_name(tmp_path):
    write_rows(tmp_path, by_hand())
    (tmp_path / "traces").mkdir()
    file = tmp_path / "traces" / "x.npz"
    for content in (b"", b"garbage", pickle.dumps([1, 2])):
        file.write_bytes(content)
        refused(tmp_path, naming=file)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8))
def test_damaged_shards_are_read_or_refused(changes):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder, by_hand())
        file = folder / "rows" / "chunk.parquet"
        content = bytearray(file.read_bytes())
        for place, value in changes:
            content[place % len(content)] = value
        file.write_bytes(content)
        try:
            columns, told = set(read_rows(folder)), ""
        except InputError as error:
            columns, told = set(SCHEMA.names), str(error)
        assert columns == set(SCHEMA.names)
        assert not told or str(file) in told


def test_a_report_needs_neither_jax_nor_a_window():
    code = "import sys, wmjax.report; print(*sorted({'jax', 'torch', 'matplotlib.pyplot'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]
    )
    assert done.stdout.strip() == ""


def test_nothing_is_written_through_links(tmp_path):
    """A folder from a stranger may have a report whose files lead elsewhere."""
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in ("report.html", "curves.png", "episode.mp4", "tables/nauc.csv", "SHA256SUMS"):
        (mine / Path(name).name).write_text("kept")
        link = tmp_path / "study" / "report" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(mine / link.name)
    write_rows(tmp_path / "study", by_hand())
    write_trace(tmp_path / "study", steps=4)
    write_trace(tmp_path / "study", steps=4, objective="vsa", optimizer="pgd")
    page = report(tmp_path / "study")
    assert {path.read_text() for path in mine.iterdir()} == {"kept"}
    assert not any(path.is_symlink() for path in page.parent.rglob("*"))
    shutil.rmtree(page.parent)
    page.parent.symlink_to(mine)
    with pytest.raises(InputError, match="report: is a link to another folder"):
        report(tmp_path / "study")
    assert len(list(mine.iterdir())) == 5


def test_numbers_and_names_beyond_reason(tmp_path):
    """What no study writes: a name that ends in NUL, infinite diagnostics of both signs, returns beyond any."""
    rows = [row | {"victim": "a\0", "loss_first": np.inf, "loss_last": -np.inf} for row in by_hand()]
    page = text_of(tmp_path, rows)
    assert "`a\N{REPLACEMENT CHARACTER}`" in page
    assert not re.search(r"\binf\b", page)
    for column, value in (("return", 1e13), ("return", -1e300), ("max_return", 1e-320), ("max_return", 1e300)):
        write_rows(tmp_path / column, [row | {column: value} for row in by_hand()])
        assert "1e+12" in refused(tmp_path / column, naming=repr(column))
