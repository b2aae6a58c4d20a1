"""Notebooks run as they stand, in a small setting and a fresh kernel, and were committed with whole outputs."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_BYTES = 1_500_000


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(notebook):
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    return "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request):
    return request.param


@pytest.fixture(scope="module")
def committed(path):
    return nbformat.read(path, as_version=4)


@pytest.fixture(scope="module")
def executed(path):
    """The notebook after a run; an error in a cell, such as a claim that does not hold, is raised."""
    notebook = nbformat.read(path, as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WMJAX_NOTEBOOK_SMALL", "1")
        patch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        place = {"metadata": {"path": str(ROOT)}}
        NotebookClient(notebook, timeout=500, coalesce_streams=True, resources=place).execute()
    return notebook


def test_there_are_notebooks():
    assert NOTEBOOKS


def test_every_cell_that_showed_something_does_so_again(committed, executed):
    kinds = [
        [[(output.output_type, output.get("name")) for output in cell.outputs] for cell in code(notebook)]
        for notebook in (committed, executed)
    ]
    assert kinds[0] == kinds[1]


def test_the_gradients_hold_in_the_small_setting(path, executed):
    if path.stem != "gradients_through_pixels":
        pytest.skip("about another notebook")
    text = printed(executed)
    number = r"(-?\d+\.\d+)"
    found = re.findall(rf"held-out states: clean {number}, random {number}, adversarial {number}", text)
    assert len(found) == 2, "one line for the floor, and one for the light"
    clean, random, adversarial = map(float, found[0])
    assert clean - adversarial > 2 * abs(clean - random)
    table = re.search(r"^thing .*\n((?:\w+ +.*\n)+)", text, re.MULTILINE)
    rows = [[float(x) for x in line.split()[1:]] for line in table[1].splitlines()[:5]]
    assert max(abs(x) for row in rows for x in row) > 0.1
    for row in rows:
        assert row[:3] == pytest.approx(row[3:], rel=0.1, abs=0.05)


def test_the_anatomy_holds_in_the_small_setting(path, executed):
    if path.stem != "anatomy_of_an_attack":
        pytest.skip("about another notebook")
    text = printed(executed)
    number = r"(-?\d+\.\d+)"
    climbs = re.findall(rf"^([\w()]+) +{number} -> +{number}   noise +{number}", text, re.MULTILINE)
    assert len(climbs) == 11, "one line for each objective"
    vsa, dca = ([float(x) for x in climb[1:]] for climb in climbs if climb[0] in ("vsa", "dca"))
    assert vsa[1] > max(vsa[0], vsa[2])
    assert dca[1] > 5 * max(dca[0], dca[2])
    trapped = re.search(r"^shared, from the clean image (.+)$", text, re.MULTILINE)[1]
    assert re.findall(r"\((\d+)%\)", trapped) == ["100", "100", "0", "0"]
    episodes = re.findall(rf"^(\w+) +value +{number}  KL +{number}  groups +{number}", text, re.MULTILINE)
    assert [kind for kind, *_ in episodes] == ["clean", "random", "pda", "vsa", "lda", "dca"]
    assert float(episodes[0][3]) == 0
    assert all(float(groups) > 3 for *_, groups in episodes[2:])
    held_out = re.findall(rf"held-out frames: random {number}, universal {number}, one for each frame {number}", text)
    assert len(held_out) == 2
    for chance, universal, each in held_out:
        assert float(universal) > max(float(chance), 0.4 * float(each))


def test_committed_outputs_are_whole(path, committed):
    assert path.stat().st_size < MOST_BYTES
    outputs = [output for cell in code(committed) for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert [cell.execution_count for cell in code(committed)] == list(range(1, len(code(committed)) + 1))
    for cell in code(committed):
        assert cell.outputs or not re.search(r"^(plt\.show|print)\(", cell.source, re.MULTILINE)


def test_committed_text_names_no_place_on_a_machine(committed):
    texts = [cell.source for cell in committed.cells] + [printed(committed)]
    texts += [str(output.get("data", {}).get("text/plain", "")) for cell in code(committed) for output in cell.outputs]
    for text in texts:
        assert not re.search(r"(?<![\w.])/(?:home|root|tmp|usr|opt|var|mnt|Users)/", text)
