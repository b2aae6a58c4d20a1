"""Study files: what is right is read, and what is wrong is named in one line, whatever it is."""

import os
import re
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings

from wmjax import cli
from wmjax.agents import weights, zoo
from wmjax.attacks import objective_weights
from wmjax.core.errors import InputError
from wmjax.envs import TASKS
from wmjax.study.run import run
from wmjax.study.spec import Study
from wmjax.study.study_file import parse_study, read_study, shipped_studies

AGENT = "dmc_cartpole_balance_r2dreamer_1m"
GOOD = {"victims": [AGENT], "objectives": ["pda"], "budgets": [0.1], "seeds": [20]}


@pytest.fixture
def file(tmp_path):
    """Write a study file: the good one, with fields given as TOML in place of its own."""

    def write(text: str | bytes = b"", **given: str):
        path = tmp_path / "study.toml"
        good = dict(victims=f'["{AGENT}"]', objectives='["pda"]', budgets="[0.1]", seeds="[20]")
        lines = "\n".join(f"{name} = {value}" for name, value in (good | given).items())
        path.write_bytes(text if isinstance(text, bytes) and text else f"{lines}\n{text or ''}".encode())
        return path

    return write


def complaint(call, *args, **kwargs) -> str:
    """The message of the InputError that the call must raise; it must be one line that a person can read."""
    with pytest.raises(InputError) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert message.isprintable()
    return message


def test_every_field(file):
    path = file(
        name='"a-b_1"', objectives='["random", "dca", "target(-0.5)", "vsa+0.5*pea"]', budgets='[0, 0.5, 1, "8/255"]',
        seeds='"20..22"', optimizers='["pgd", "apgd(20)"]', modes='["first_half", "sparse(3)", "policy_top(2)"]',
        regions='["all", "patch(16)"]', frames='["uint8", "float"]', defenses='["none", "jpeg", "blur(1.50)"]',
        adaptive="[true, false]", tasks='["dmc_walker_run"]', noise='"fresh"', draws="4", steps="3", episode_steps="7",
        backend='"device"',
    )  # fmt: skip
    assert read_study(path) == Study(
        victims=(AGENT,), objectives=("random", "dca", "target(-0.5)", "vsa+0.5*pea"), budgets=(0.0, 0.5, 1.0, 8 / 255),
        seeds=(20, 21, 22), optimizers=("pgd", "apgd(20)"), modes=("first_half", "sparse(3)", "policy_top(2)"),
        regions=("all", "patch(16)"), frames=("uint8", "float"), defenses=("none", "jpeg(75)", "blur(1.5)"),
        adaptive=(True, False), tasks=("dmc_walker_run",), noise="fresh", draws=4, steps=3, episode_steps=7,
        backend="device", name="a-b_1",
    )  # fmt: skip


def test_defaults_are_the_benchmark_s(file):
    study = read_study(file())
    assert (study.optimizers, study.modes, study.tasks, study.steps) == (("fgsm", "pgd"), ("full",), (), 10)
    assert (study.noise, study.episode_steps, study.backend, study.name) == ("fresh", 500, "host", "study")
    assert (study.defenses, study.adaptive, study.draws) == (("none",), (False,), 1)
    assert (study.frames, study.regions) == (("float",), ("all",))
    assert (study.sources, study.traces) == (("self",), "first")


def test_the_shipped_studies_are_the_benchmark_s():
    assert shipped_studies() == ["arb4wm-defense", "arb4wm-main", "arb4wm-temporal", "arb4wm-transfer", "quickstart"]
    text = Path(cli.__file__).read_text(encoding="utf-8")  # its help cannot wait for the package to be imported
    for name in shipped_studies():
        study = read_study(name)
        assert study.name == name
        assert name in text
        baseline = set() if name == "arb4wm-transfer" else {"random"}
        assert set(study.objectives) == {"pda", "pea", "vsa", "lda", "dca"} | baseline
    main, temporal, defense = (read_study(f"arb4wm-{name}") for name in ("main", "temporal", "defense"))
    assert main.budgets == (0, 0.02, 0.04, 0.08, 0.12, 0.16)
    assert temporal.modes == ("full", "first_half", "second_half", "sparse(2)", "sparse(4)", "sparse(6)")
    assert temporal.budgets == defense.budgets == (0, 0.04, 0.08, 0.12)
    assert defense.defenses == ("none", "jpeg(75)", "median", "noise(0.04)")
    assert main.seeds == temporal.seeds == defense.seeds == tuple(range(20, 40))
    assert main.optimizers == ("fgsm", "pgd")
    transfer = read_study("arb4wm-transfer")
    assert (transfer.sources, transfer.optimizers, transfer.budgets) == (("victims",), ("mi_fgsm",), main.budgets)


def test_fields_may_be_changed_by_further_lines(file):
    lines = ["seeds = '1..3'", 'victims = ["a.safetensors"]\nnoise = "mode"']
    changed = read_study("quickstart", lines)
    assert changed == replace(read_study("quickstart"), seeds=(1, 2, 3), victims=("a.safetensors",), noise="mode")
    assert read_study(file(), ["steps = 3"]).steps == 3
    assert "field 'stepz'; known: " in complaint(read_study, file(), ["stepz = 3"])
    assert "steps is 0" in complaint(read_study, file(), ["steps = 0"])
    for wrong in ("steps", "steps =", "=", "[" * 5000):
        assert "is not a line such as" in complaint(read_study, file(), [wrong])


def test_an_unknown_study_lists_the_known_ones():
    message = complaint(read_study, "quickstrat")
    assert all(word in message for word in (*shipped_studies(), "quickstrat", "TOML"))


def test_the_quickstart_attacks_every_objective_of_the_benchmark():
    study = read_study()
    assert study.name == "quickstart"
    assert set(study.objectives) == {"random", "pda", "pea", "vsa", "lda", "dca"}
    assert set(study.victims) <= set(zoo.names())
    assert 0 in study.budgets


@pytest.mark.parametrize("text", ["0..0", "4294967295..4294967295", " 7 .. 9 "])
def test_seed_ranges_hold_both_ends(text):
    first, last = map(int, text.split(".."))
    assert parse_study(GOOD | {"seeds": text}).seeds == tuple(range(first, last + 1))


WRONG = [
    ("victims", "[]", "empty"),
    ("victims", '"x"', "'x' is not a list"),
    ("victims", "[1]", "1 is not a text"),
    ("victims", '["a\\nb.safetensors"]', r"'a\\nb.safetensors'"),
    ("victims", '["a", "a"]', "'a' more than once"),
    ("objectives", '["pga"]', "'pga'; known: boundary, ce, critic, dca, "),
    ("objectives", '["clean"]', "clean is part of every study"),
    ("objectives", '["target(2)"]', "objective is 'target\\(2\\)'; target takes one number from -1 to 1"),
    ("objectives", '["vsa+vsa"]', "objective is 'vsa\\+vsa'; it names vsa twice"),
    ("objectives", '["0*vsa"]', "objective is '0\\*vsa'; weights are numbers above 0"),
    ("objectives", '["vsa+random"]', "unknown objective 'random'"),
    ("objectives", "[]", "empty"),
    ("objectives", '["pda", ["pda"]]', r"\['pda'\] is not a text"),
    ("optimizers", '["adam"]', "'adam'; known: apgd, di_fgsm, fab, fgsm, mi_fgsm"),
    ("optimizers", '["apgd(0)"]', "steps is 0; apgd needs at least 1"),
    ("optimizers", '["apgd(1.5)"]', r"'apgd\(1.5\)' is not a name, or a name with a whole number of steps"),
    ("optimizers", '["apgd(x)"]', r"'apgd\(x\)'; known: apgd"),
    ("optimizers", '["fab"]', r"fab needs objectives with a boundary \(boundary\), and pda has none"),
    ("optimizers", '["fgsm(2)"]', "steps is 2; fgsm takes exactly 1"),
    ("optimizers", '["pgd", "pgd(10)"]', "optimizers lists pgd of 10 steps more than once"),
    ("optimizers", "[]", "empty; objectives other than random need one of fgsm, pgd, "),
    ("budgets", "[]", "empty"),
    ("budgets", "0.1", "0.1 is not a list"),
    ("budgets", "[-0.1]", r"-0.1 is neither 0 nor in \[1e-09, 1\]"),
    ("budgets", "[1.5]", r"1.5 is neither 0 nor in"),
    ("budgets", "[1e-320]", "neither 0 nor in"),
    ("objectives", '["vsa", "1*vsa"]', r"'vsa' and '1\*vsa' are the same"),
    ("objectives", '["target(1)", "target(1.0)"]', r"'target\(1\)' and 'target\(1.0\)' are the same"),
    ("objectives", '["vsa+pea", "pea+vsa"]', "are the same"),
    ("modes", '["sparse(2)", "sparse(2,0)"]', r"'sparse\(2\)' and 'sparse\(2,0\)' are the same"),
    ("modes", '["full", "frames(0,499)"]', "are the same"),
    ("modes", '["sparse( 2)"]', "unknown mode"),
    ("regions", '["all", "patch(64)"]', "'all' and 'patch\\(64\\)' are the same"),
    ("optimizers", '["pgd(10001)"]', "steps of pgd is 10001; allowed: 1 to 10000"),
    ("budgets", '["8/0"]', "'8/0' is not a number; write 0.04 or \"8/255\""),
    ("budgets", "[true]", "True is not a number"),
    ("budgets", "[nan]", "nan is not a number"),
    ("budgets", "[inf]", "inf is not a number"),
    ("budgets", "[1e999]", "inf is not a number"),
    ("budgets", f"[1{'0' * 400}]", "10000.* is not a number"),
    ("budgets", '[0, 0.0, "0/255"]', "0.0 more than once"),
    ("seeds", "[]", "empty"),
    ("seeds", "20", "20 is not a list"),
    ("seeds", '"39..20"', r"'39..20'; expected a list, or first..last with at most 100000"),
    ("seeds", '"0..100000"', r"'0..100000'; expected a list, or first..last with at most 100000"),
    ("seeds", '"20"', r"'20'; expected a list, or first..last"),
    ("seeds", "[1.0]", "1.0 is not a whole number"),
    ("seeds", "[true]", "True is not a whole number"),
    ("seeds", "[-1]", r"-1 is not in \[0, 2\^32\)"),
    ("seeds", "[4294967296]", r"4294967296 is not in \[0, 2\^32\)"),
    ("seeds", f"[1{'0' * 30}]", "10000.* is not a whole number"),
    ("seeds", f"[0x{'f' * 5000}]", "a huge int is not a whole number"),
    ("seeds", "[7, 8, 7]", "7 more than once"),
    ("seeds", "[1979-05-27]", "datetime.date.* is not a whole number"),
    ("modes", "[]", "empty"),
    ("modes", '["half"]', r"'half'; known: full, first_half, second_half, sparse\(n\)"),
    ("modes", '["sparse(0)"]', r"'sparse\(0\)'; known"),
    ("modes", '["frames(0,500)"]', "frames from 0 to 499"),
    ("regions", "[]", "empty"),
    ("regions", '["middle"]', r"'middle'; known: all, patch\(n\), "),
    ("regions", '["patch(65)"]', r"'patch\(65\)'; known: .* from 1 to 64"),
    ("frames", "[]", "empty"),
    ("frames", '["int8"]', "'int8'; known: float, uint8"),
    ("defenses", "[]", "empty"),
    ("defenses", '["armour"]', "'armour'; known: bits, blur, "),
    ("defenses", '["jpeg(0)"]', "quality of defense jpeg is 0"),
    ("defenses", '["jpeg", "none", "jpeg(75)"]', r"'jpeg\(75\)' more than once"),
    ("adaptive", "[]", "empty"),
    ("adaptive", "[1]", "1 is not true or false"),
    ("adaptive", '["false"]', "'false' is not true or false"),
    ("adaptive", "true", "True is not a list"),
    ("adaptive", "[true]", "defenses lists none that an attacker could know"),
    ("adaptive", "[false, true]", "defenses lists none that an attacker could know"),
    ("adaptive", "[false, false]", "False more than once"),
    ("draws", "0", "0; allowed: 1 to 64"),
    ("draws", "65", "65; allowed: 1 to 64"),
    ("draws", "true", "True is not a whole number"),
    ("tasks", '["dmc_walker_fly"]', "'dmc_walker_fly'; known: dmc_ball_in_cup_catch"),
    ("noise", '"loud"', "'loud'; known: fresh, mode, shared"),
    ("backend", '"cloud"', "unknown backend 'cloud'; known: device, host"),
    ("noise", "[]", r"\[\] is not a text"),
    ("steps", "0", "0; pgd needs at least 1"),
    ("steps", "10001", "10001; allowed: 1 to 10000"),
    ("steps", '"3"', "'3' is not a whole number"),
    ("steps", "{a = {b = 1}}", "{'a': {'b': 1}} is not a whole number"),
    ("episode_steps", "0", "0; allowed: 1 to 500"),
    ("episode_steps", "501", "501; allowed: 1 to 500"),
    ("name", '"../up"', "'../up'; allowed: letters, digits, - and _"),
    ("name", '""', "''; allowed: letters, digits, - and _"),
    ("name", f'"{"x" * 5000}"', "'xxx.*; allowed: .* at most 64"),
    ("budget", "[0.1]", "unknown field 'budget'; known: adaptive, backend, budgets, "),
]  # fmt: skip


def test_fab_goes_with_a_boundary_and_with_noise():
    study = parse_study(GOOD | {"optimizers": ["fab", "pgd"], "objectives": ["boundary", "random"]})
    assert study.attacks() == [("fab", 10), ("pgd", 10)]


@pytest.mark.parametrize(("field", "value", "expected"), WRONG)
def test_a_wrong_value_is_named(file, field, value, expected):
    path = file(**{field: value})
    message = complaint(read_study, path)
    assert message.startswith(f"{path}: ")
    assert field.rstrip("s") in message  # "unknown objective", of the field objectives
    assert re.search(expected, message)
    assert len(message) < 500 + len(str(path))


@pytest.mark.parametrize("field", GOOD)
def test_a_missing_field_is_named(field):
    assert complaint(parse_study, {k: v for k, v in GOOD.items() if k != field}).startswith(f"{field} is missing")


def test_many_wrong_values_still_make_one_short_line():
    message = complaint(parse_study, GOOD | {"seeds": ["x"] * 10_000, "steps": None})
    assert "seeds[0]: 'x'" in message
    assert "and 9998 more" in message
    assert len(message) < 500


@pytest.mark.parametrize(
    "text",
    [
        b"a =",
        b"\x00",
        b"\xff\xfe",
        b"[" * 100_000,
        b"victims = " + b"[" * 20_000,
        b"seeds = [" + b"9" * 5000 + b"]",
        b"victims.a = 1\nvictims.a = 2",
        b"# " + b"x" * (1 << 17),
    ],
    ids=["toml", "nul", "utf-8", "tables", "nesting", "digits", "twice", "size"],
)
def test_what_is_not_toml(file, text):
    assert complaint(read_study, path := file(text)).startswith(f"{path}: ")


def test_no_such_file(tmp_path):
    assert "cannot be read (No such file" in complaint(read_study, tmp_path / "study.toml")


def test_what_is_not_a_regular_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        assert complaint(read_study, path) == f"{path}: not a regular file"


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**29),
    st.floats(),
    st.text(max_size=20),
    st.dates(),
    st.sampled_from([0, 20, 0.1, 1e308, 10**400, "8/255", "8/0", "-1/2", "20..39", "39..20", "1/1" * 100]),
    st.sampled_from(["pda", "random", "clean", "pgd", "full", "sparse(2)", "sparse(0)", "fresh", "none", *TASKS]),
    st.sampled_from(["vsa+0.5*pea", "pea+pea", "target(1)", "fab", "jpeg", "jpeg(1e9)", "all", "patch(0)", "uint8"]),
    st.sampled_from(["../../etc/passwd", "/dev/zero", "a/b", "a\0b", "~", ".", "", AGENT, "\u202e", "名前"]),
)
values = st.one_of(
    scalars,
    st.lists(scalars, max_size=4),
    st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner), max_leaves=8),
)
fields = st.sampled_from(list(Study.__dataclass_fields__)) | st.text(max_size=10)


@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(fields, values, max_size=4), st.sampled_from([{}, GOOD, GOOD]))
def test_any_value_gives_a_study_or_one_line(given, rest):
    study, message = None, ""
    try:
        study = parse_study(rest | given)
    except InputError as error:
        message = str(error)
    if study is None:
        assert message.isprintable()
        assert 10 < len(message) < 1000
    else:
        assert np.isfinite(objective_weights(study.objectives)).all()
        assert all(0 <= eps <= 1 for eps in study.budgets)
        assert all(type(seed) is int and 0 <= seed < 2**32 for seed in study.seeds)
        assert re.fullmatch(r"[\w-]{1,64}", study.name)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=60) | st.text("[]{}=.,'\"#\n 01e+-_ab", max_size=60).map(str.encode))
def test_any_bytes_are_no_study(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_study(path)


class TestVictims:
    """What only their files can tell; nothing may have been written when it turns out."""

    @pytest.fixture
    def refused(self, tmp_path):
        def call(*victims: str, **axes) -> str:
            message = complaint(run, parse_study(GOOD | {"victims": list(map(str, victims))} | axes), tmp_path / "out")
            assert not (tmp_path / "out").exists()
            return message

        return call

    @pytest.fixture
    def agent(self, tmp_path):
        """Write an agent whose card differs from the shipped one's."""
        shipped = zoo.locate(AGENT)
        card, flat = weights.read_card(shipped), safetensors.numpy.load_file(shipped)

        def write(name: str, **changes):
            path = tmp_path / f"{name}.safetensors"
            weights.write(path, replace(card, **changes), flat)
            return path

        return write

    def test_unknown_name(self, refused):
        assert re.search(f"unknown agent 'nobody'; known: .*{AGENT}", refused("nobody"))

    @pytest.mark.parametrize("path", ["./lost.safetensors", "lost.safetensors", "../../etc/lost", "/etc/lost"])
    def test_missing_file(self, refused, path):
        assert "lost" in (message := refused(path))
        assert "no such file" in message

    @pytest.mark.parametrize("path", ["/etc/passwd", "/dev/null", "/etc", "/tmp/.."])
    def test_foreign_file(self, refused, path):
        assert path in refused(path)

    def test_foreign_safetensors(self, refused, tmp_path):
        path = tmp_path / "other.safetensors"
        safetensors.numpy.save_file({"x": np.zeros(3, np.float32)}, path)
        assert "not an agent converted by wmjax" in refused(path)
        path.write_bytes(path.read_bytes()[:-1])
        assert "not an agent converted by wmjax" in refused(path)

    def test_two_of_one_name(self, refused, agent):
        assert f"two are called {AGENT}" in refused(AGENT, agent(AGENT))

    def test_long_name(self, refused):
        assert "100 bytes" in refused(f"./{'ä' * 51}.safetensors")

    def test_task_mismatch(self, refused):
        message = refused(AGENT, tasks=["dmc_cartpole_swingup"])
        assert f"{AGENT} was trained on dmc_cartpole_balance, which is not listed" in message

    def test_task_of_nobody(self, refused):
        message = refused(AGENT, tasks=["dmc_cartpole_swingup", "dmc_cartpole_balance"])
        assert "no victim of the study was trained on dmc_cartpole_swingup" in message

    def test_sizes_that_do_not_fit_the_task(self, refused, agent):
        assert "has action_size 1, but dmc_walker_walk has 6" in refused(agent("a", task="dmc_walker_walk"))
        assert "has action_repeat 4, but dmc_cartpole_balance has 2" in refused(agent("b", action_repeat=4))

    def test_no_task(self, refused, agent):
        assert "does not say what it was trained on" in refused(agent("a", task=None))

    def test_too_many_episodes(self, refused):
        message = refused(AGENT, seeds="0..99999", optimizers=["pgd"], budgets=[i / 10 for i in range(11)])
        assert "has 1100001 episodes; at most 1000000" in message

    @pytest.mark.parametrize("batch", [0, -1, 65537])
    def test_batch(self, tmp_path, batch):
        assert complaint(run, parse_study(GOOD), tmp_path / "out", batch=batch).startswith(f"batch is {batch}")


class TestSources:
    """Agents that attacks are computed on."""

    refused, agent = TestVictims.refused, TestVictims.agent

    def test_unknown_name(self, refused):
        assert "unknown agent 'nobody'" in refused(AGENT, sources=["nobody"])

    def test_missing_file(self, refused):
        assert "no such file" in refused(AGENT, sources=["self", "lost.safetensors"])

    def test_other_file_of_a_victim_s_name(self, refused, agent, tmp_path):
        path = agent(AGENT)
        assert f"sources: {AGENT} is also the name of a victim" in refused(AGENT, sources=[str(path)])

    def test_other_task(self, refused, agent):
        path = agent("elsewhere", task="dmc_cartpole_swingup")
        assert "sources: elsewhere attacks no victim" in refused(AGENT, sources=[str(path)])

    @pytest.mark.parametrize("word", ["self", "victims", "none", ".hidden"])
    def test_words_are_no_names(self, refused, agent, word):
        path = str(agent(word))
        assert f"{word} is no name for an agent" in refused(AGENT, sources=[path])
        assert f"{word} is no name for an agent" in refused(path)

    def test_control_characters(self):
        assert "has control characters" in complaint(parse_study, GOOD | {"sources": ["a\nb"]})

    def test_words_do_not_go_among_victims(self):
        assert "victims: 'self' is not an agent" in complaint(parse_study, GOOD | {"victims": ["self"]})
