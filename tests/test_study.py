"""A study means the same whether it was written in a file or in Python, and whatever kind of numbers it is made of."""

import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import wmjax
from wmjax import attacks, envs
from wmjax.agents import zoo
from wmjax.core.errors import InputError
from wmjax.core.text import as_path
from wmjax.envs.base import TASKS, spec
from wmjax.study.run_plan import prepare
from wmjax.study.spec import Study
from wmjax.study.study_file import parse_study, read_study
from wmjax.train.job import prepare as prepare_training

AGENT = "dmc_cartpole_balance_r2dreamer_1m"
GOOD = {"victims": [AGENT], "objectives": ["pda"], "budgets": [0.1], "seeds": [20]}


def study(**given) -> Study:
    return Study(**GOOD | given)


@pytest.mark.parametrize(
    ("field", "given", "value"),
    [
        ("seeds", range(3), (0, 1, 2)),
        ("seeds", "0..2", (0, 1, 2)),
        ("seeds", np.arange(3), (0, 1, 2)),
        ("seeds", np.arange(3, dtype=np.uint8), (0, 1, 2)),
        ("seeds", jnp.arange(3), (0, 1, 2)),
        ("seeds", (np.int64(0), 1, np.uint32(2)), (0, 1, 2)),
        ("seeds", {0: "a", 1: "b", 2: "c"}.keys(), (0, 1, 2)),
        ("budgets", ["8/255"], (8 / 255,)),
        ("budgets", (0, np.float32(0.04), 1), (0.0, 0.04, 1.0)),
        ("budgets", np.float32([0.02, 0.04]), (0.02, 0.04)),
        ("budgets", np.linspace(0, 1, 3), (0.0, 0.5, 1.0)),
        ("budgets", jnp.float32([0.02, 0.04]), (0.02, 0.04)),
        ("victims", [Path("a") / "b.safetensors"], ("a/b.safetensors",)),
        ("victims", (Path(AGENT),), (AGENT,)),
        ("objectives", np.array(["pda", "vsa"]), ("pda", "vsa")),
        ("adaptive", np.array([False]), (False,)),
        ("steps", np.int32(3), 3),
        ("draws", jnp.int32(2), 2),
        ("tasks", ["dmc_cup_catch", "dmc-walker-walk"], ("dmc_ball_in_cup_catch", "dmc_walker_walk")),
    ],
)
def test_python_s_and_numpy_s_values_are_those_of_a_file(field, given, value):
    made = study(**{field: given})
    assert getattr(made, field) == value
    plain = study(**{field: list(value) if isinstance(value, tuple) else value})
    assert json.dumps(asdict(made)) == json.dumps(asdict(plain))
    assert made == plain


def test_a_generator_is_a_list():
    assert study(seeds=(seed for seed in range(3))).seeds == (0, 1, 2)


def test_a_changed_study_is_checked_again():
    assert replace(study(), seeds=np.arange(2)).seeds == (0, 1)
    with pytest.raises(InputError, match=r"seeds\[1\]: 1.5 is not a whole number"):
        replace(study(), seeds=[1, 1.5])


@pytest.mark.parametrize(
    ("field", "given", "words"),
    [
        ("seeds", (1.0, 2.0), "seeds[0]: 1.0 is not a whole number"),
        ("seeds", np.array([1.0]), "seeds[0]: np.float64(1.0) is not a whole number"),
        ("seeds", (True,), "seeds[0]: True is not a whole number"),
        ("seeds", np.array([True]), "is not a whole number"),
        ("seeds", 5, "seeds: 5 is not a list"),
        ("seeds", np.int64(5), "seeds: np.int64(5) is not a list"),
        ("seeds", np.array(5), "seeds: array(5) is not a list"),
        ("seeds", np.zeros((2, 2), int), "seeds[0]: array([0, 0]) is not a whole number"),
        ("seeds", {1, 2}, "seeds: {1, 2} is not a list"),
        ("seeds", None, "seeds: None is not a list"),
        ("seeds", itertools.count(), "seeds lists more than 1000000 values"),
        ("seeds", range(10**12), "seeds lists more than 1000000 values"),
        ("budgets", np.float32([np.nan]), "budgets[0]: nan is not a number"),
        ("budgets", [np.inf], "budgets[0]: inf is not a number"),
        ("budgets", [1j], "budgets[0]: 1j is not a number"),
        ("budgets", [True], "budgets[0]: True is not a number"),
        ("budgets", 0.1, "budgets: 0.1 is not a list"),
        ("victims", AGENT, f"victims: '{AGENT}' is not a list"),
        ("victims", Path("a.safetensors"), "victims: PosixPath('a.safetensors') is not a list"),
        ("victims", [b"a.safetensors"], "victims[0]: b'a.safetensors' is not a text"),
        ("objectives", "pda", "objectives: 'pda' is not a list"),
        ("steps", 2.0, "steps: 2.0 is not a whole number"),
        ("steps", None, "steps: None is not a whole number"),
        ("name", None, "name: None is not a text"),
        ("traces", True, "traces: True is not a text"),
    ],
)
def test_what_means_nothing_is_named(field, given, words):
    with pytest.raises(InputError) as error:
        study(**{field: given})
    assert words in str(error.value)
    assert str(error.value).isprintable()


def test_all_that_is_wrong_is_one_line():
    with pytest.raises(InputError, match=r"^victims\[0\]: 1 .*; seeds: 5 is not a list; draws: .*; and 1 more$"):
        study(victims=[1], seeds=5, steps="x", draws="y")


WHOLE = {
    "batch": lambda n: prepare(study(), batch=n).batch,
    "attacks.optimizer": lambda n: attacks.optimizer("pgd", n).steps,
    "attacks.Attack": lambda n: attacks.Attack(draws=n).draws,
    "attacks.timing": lambda n: len(attacks.timing("full", n).mask),
    "attacks.region": lambda n: len(attacks.region("all", n)),
    "envs.make": lambda n: envs.make("dmc_cartpole_balance", "device", batch=n, workers=n).batch,
    "training seeds": lambda n: prepare_training("dmc_cartpole_balance", "infonce", "tiny", seeds=[n]).seeds[0],
    "training steps": lambda n: (
        prepare_training("dmc_walker_run", "infonce", "tiny", steps=n and 10**4 * n).steps // 10**4
    ),
}


@pytest.mark.parametrize("call", WHOLE.values(), ids=WHOLE)
def test_whole_numbers_may_be_numpy_s_and_no_others(call):
    for number in (3, np.int64(3), np.uint32(3)):
        assert type(call(number)) is int
        assert call(number) == 3
    for wrong in (3.0, np.float32(3), -1, "3"):
        with pytest.raises(InputError, match="whole number"):
            call(wrong)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: spec("dmc_walker_wlak"), "did you mean 'dmc_walker_walk'?"),
        (lambda: spec("walker_walk"), "did you mean 'dmc_walker_walk'?"),
        (lambda: spec("DMC Walker Walk"), "did you mean 'dmc_walker_walk'?"),
        (lambda: zoo.locate("dmc_cartpole_balance_r2dreamer_2m"), "'dmc_cartpole_balance_r2dreamer_1m'?"),
        (lambda: prepare_training("dmc_walker_walk", "R2-Dreamer", "tiny"), "did you mean 'r2dreamer'?"),
        (lambda: attacks.optimizer("pgd_restart"), "did you mean 'pgd_restarts'?"),
        (lambda: attacks.defense("jpg"), "did you mean 'jpeg'?"),
        (lambda: attacks.threat(["vas"], [0.1]), "unknown objective 'vas'"),
        (lambda: read_study("arb4wm_main"), "or a path of a TOML file; did you mean 'arb4wm-main'?"),
        (lambda: parse_study(GOOD | {"budget": [0.1]}), "did you mean 'budgets'?"),
        (lambda: envs.make("dmc_walker_walk", "gpu"), "unknown backend 'gpu'; known: device, host"),
    ],
)
def test_near_misses_are_suggested(call, words):
    with pytest.raises(InputError) as error:
        call()
    assert words in str(error.value)


def test_what_is_no_name_or_list_is_an_input_error():
    for call in (
        lambda: spec(["x"]),
        lambda: attacks.optimizer(["x"]),
        lambda: attacks.defense({}),
        lambda: prepare_training("dmc_walker_run", "infonce", "tiny", seeds=5),
        lambda: prepare_training("dmc_walker_run", "infonce", "tiny", seeds="12"),
        lambda: prepare_training("dmc_walker_run", "infonce", "tiny", seeds=range(10**9)),
        lambda: study(seeds=[np.timedelta64(3, "D")]),
        lambda: wmjax.convert("a.pt", "b.safetensors", ignore="model"),
    ):
        with pytest.raises(InputError):
            call()
    assert str(study(budgets=[-0.0, 0.1]).budgets) == "(0.0, 0.1)"


def test_far_names_suggest_nothing():
    with pytest.raises(InputError, match=r"known: [^?]*$"):
        spec("x" * 100_000)


def test_tasks_have_the_reference_s_names():
    assert {spec(name).task for name in TASKS} == set(TASKS)
    assert spec("dmc_cup_catch") is spec("dmc_ball_in_cup_catch")
    assert prepare_training("dmc_cup_catch", "infonce", "tiny").name == "dmc_ball_in_cup_catch_infonce_tiny"
    with pytest.raises(InputError, match="task 'metaworld_door-open' cannot be played"):
        spec("metaworld_door-open")


class TestPaths:
    """Of a study file's agents."""

    @pytest.fixture
    def folder(self, tmp_path, monkeypatch):
        """A study file in a folder of its own, beside the current one; returns both folders and what reads the file."""
        studies, here = tmp_path / "studies", tmp_path / "here"
        for place in (studies, here):
            place.mkdir()
        monkeypatch.chdir(here)
        monkeypatch.setenv("HOME", str(tmp_path))

        def read(*victims: str, **given) -> tuple[str, ...]:
            text = "\n".join(f"{name} = {json.dumps(value)}" for name, value in (GOOD | {"victims": victims}).items())
            (studies / "study.toml").write_text(text, encoding="utf-8")
            return read_study("../studies/study.toml", **given).victims

        return studies, here, read

    @pytest.mark.parametrize("name", ["a.safetensors", "sub/ü b.safetensors"])
    def test_begin_at_the_file_or_else_here(self, folder, name):
        studies, here, read = folder
        for place in (here, studies):
            (place / "sub").mkdir()
        (here / name).touch()
        assert Path(*read(name)).samefile(here / name)
        (here / name).unlink()
        (studies / name).touch()
        assert Path(*read(name)).samefile(studies / name)

    def test_that_lead_to_two_files_are_refused(self, folder):
        studies, here, read = folder
        for place in (here, studies):
            (place / "a.safetensors").touch()
        with pytest.raises(InputError, match=f"victims: 'a.safetensors' is both {here}/a.* and {studies}/a"):
            read("a.safetensors")
        (here / "a.safetensors").unlink()
        (here / "a.safetensors").symlink_to(studies / "a.safetensors")
        assert Path(*read("a.safetensors")).samefile(studies / "a.safetensors")

    def test_that_lead_nowhere_name_the_folders(self, folder):
        studies, here, read = folder
        with pytest.raises(InputError, match=f"victims: 'a.safetensors': no such file in {studies} or {here}"):
            read("a.safetensors")
        with pytest.raises(InputError, match=r"no such file in /absent$"):
            read("/absent/a.safetensors")

    def test_of_the_command_line_begin_here(self, folder):
        studies, _, read = folder
        (studies / "a.safetensors").touch()
        assert read("absent.safetensors", changes=['victims = ["a.safetensors"]']) == ("a.safetensors",)

    @pytest.mark.parametrize("home", ["~", "$HOME", "${HOME}"])
    def test_may_begin_at_home(self, folder, home, tmp_path):
        _, _, read = folder
        (tmp_path / "a.safetensors").touch()
        assert read(f"{home}/a.safetensors") == (f"{tmp_path}/a.safetensors",)
        assert zoo.locate(f"{home}/a.safetensors") == tmp_path / "a.safetensors"
        assert prepare(study(), out=f"{home}/results").folder == tmp_path / "results"
        training = prepare_training("dmc_walker_walk", "infonce", "tiny", out=f"{home}/run")
        assert training.folder == tmp_path / "run"
        with pytest.raises(InputError, match=f"{tmp_path}/x.pt: no such file"):
            wmjax.convert(f"{home}/x.pt", f"{home}/x.safetensors")

    @pytest.mark.parametrize("text", ["$SECRET/a", "$HOMER/a", "a/~/b", "a$HOME", "~nobody-of-this-name/a"])
    def test_have_no_other_variables(self, text, monkeypatch):
        monkeypatch.setenv("SECRET", "secret")
        assert as_path(text) == Path(text)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_encodings_of_study_files(encoding, newline, tmp_path):
    text = newline.join(f"{name} = {json.dumps(value)}" for name, value in GOOD.items()) + f"{newline}# ü"
    path = tmp_path / "study.toml"
    path.write_bytes(text.encode(encoding))
    if encoding.startswith("utf-8"):
        assert read_study(path) == study()
    else:
        with pytest.raises(InputError, match="not a text in UTF-8; save it as UTF-8"):
            read_study(path)


def test_a_dictionary_is_no_study(tmp_path):
    with pytest.raises(InputError, match="study is a dict; expected a Study, or the name or path of one"):
        wmjax.run(GOOD, tmp_path / "out")
    assert not (tmp_path / "out").exists()
