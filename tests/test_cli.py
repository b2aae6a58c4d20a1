"""The command line: exit codes, one-line errors, and that help needs nothing heavy."""

import os
import signal
import subprocess
import sys

import pytest

from wmjax import cli, doctor
from wmjax.grid import run as grid
from wmjax.train import run as training


@pytest.fixture
def wmjax(monkeypatch, capsys, tmp_path):
    """Run the command line in this process, in an empty folder; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(cli.os, "_exit", sys.exit)  # the tests go on
    terminate = signal.getsignal(signal.SIGTERM)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["wmjax", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    yield run
    signal.signal(signal.SIGTERM, terminate)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "absent.toml"], ["absent.toml", "No such file"]),
        (["run", "wrong.toml"], ["wrong.toml", "objectve", "known", "objectives"]),
        (["run", "unknown.toml"], ["unknown agent", "nobody", "dmc_cartpole_balance_r2dreamer_1m"]),
        (["run", "--batch", "0"], ["batch is 0", "1 to"]),
        (["report", "absent"], ["absent"]),
        (["report", "."], ["rows"]),
        (["convert", "absent.pt", "-o", "out.safetensors"], ["absent.pt", "no such file"]),
        (["convert", "wrong.toml", "-o", "out.safetensors"], ["wrong.toml", "not a checkpoint"]),
        (["convert", "wrong.toml", "-o", "out.bin"], ["out.bin", ".safetensors"]),
        (["train", "--task", "dmc_cartpole"], ["unknown task", "dmc_cartpole_balance"]),
        (["train", "--task", "dmc_reacher_easy", "--agent", "ppo"], ["unknown agent 'ppo'", "infonce"]),
        (["train", "--task", "dmc_reacher_easy", "--size", "1g"], ["unknown size '1g'", "tiny"]),
        (["train", "--task", "dmc_reacher_easy", "--seeds", "1", "1"], ["seeds are (1, 1)"]),
        (["train", "--task", "dmc_reacher_easy", "--set", "lr = fast"], ["lr = fast"]),
        (["train", "--task", "dmc_reacher_easy", "--out", "wrong.toml"], ["wrong.toml", "cannot be written"]),
        (["export", "nobody", "-o", "latest.pt"], ["unknown agent", "nobody"]),
        (["export", "dmc_cartpole_balance_r2dreamer_1m", "-o", "a.bin"], ["a.bin", ".pt"]),
        (["zoo", "c/a.safetensors"], ["unknown agent", "c/a.safetensors", "dmc_cartpole_balance_r2dreamer_1m"]),
        (["zoo", "nobody"], ["nobody", "known", "dmc_cartpole_balance_r2dreamer_1m"]),
    ],
)
def test_wrong_input_is_one_line_and_code_2(wmjax, tmp_path, arguments, words):
    axes = "budgets = [0.1]\nseeds = [1]\n"
    (tmp_path / "wrong.toml").write_text(f'objectve = ["pda"]\nvictims = ["nobody"]\n{axes}')
    (tmp_path / "unknown.toml").write_text(f'objectives = ["pda"]\nvictims = ["nobody"]\n{axes}')
    before = sorted(tmp_path.rglob("*"))
    code, out, err = wmjax(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("wmjax: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    for word in words:
        assert word in err
    assert sorted(tmp_path.rglob("*")) == before


def test_unknown_command_and_option_are_code_2(wmjax):
    assert wmjax("frobnicate")[0] == 2
    assert wmjax("run", "--frobnicate")[0] == 2


def test_zoo_lists_agents_and_shows_a_card(wmjax):
    code, out, _ = wmjax("zoo")
    assert code == 0
    assert "dmc_cartpole_balance_r2dreamer_1m" in out
    code, out, _ = wmjax("zoo", "dmc_cartpole_balance_r2dreamer_1m")
    assert code == 0
    assert "606.4" in out
    assert "half-trained" in out


def test_help_does_not_import_jax():
    code = """
import sys
from wmjax import cli
sys.argv = ["wmjax", "--help"]
try:
    cli.main()
except SystemExit as stop:
    assert not stop.code
assert "jax" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("run", "report", "convert", "zoo", "doctor"):
        assert name in done.stdout


def test_interruption_is_code_130(wmjax, monkeypatch):
    def interrupted(_: cli.Run) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_run", interrupted)
    code, _, err = wmjax("run")
    assert code == 130
    assert "goes on where this one stopped" in err


def test_doctor_survives_a_jax_that_does_not_import(wmjax, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.setattr(doctor, "check", lambda: [doctor.check_devices()])
    code, out, err = wmjax("doctor")
    assert code == 1
    assert "JAX does not compute" in out
    assert err == ""


def test_progress_is_plain_lines_where_nobody_watches(wmjax, monkeypatch):
    def fake(*_, on_progress, **__):
        for done in (0, 7, 19, 5, 20, 45, 50, 50):
            on_progress(grid.Progress(done, 50))
        raise KeyboardInterrupt

    monkeypatch.setattr(grid, "run", fake)
    code, out, _ = wmjax("run")
    assert code == 130
    assert out.splitlines() == [
        "0 % (0/50 agent steps)",
        "14 % (7/50 agent steps)",
        "38 % (19/50 agent steps)",
        "40 % (20/50 agent steps)",
        "90 % (45/50 agent steps)",
        "100 % (50/50 agent steps)",
    ]


def test_training_says_how_far_it_is_and_where_the_agent_went(wmjax, monkeypatch, tmp_path):
    def fake(job, *, on_progress):
        for steps, score in ((50, [None]), (60, [12.4]), (100, [25.6])):
            on_progress(training.Progress(steps, 100, {"episode/score": score}))
        return job

    monkeypatch.setattr(training, "train", fake)
    monkeypatch.setattr("wmjax.train.finish.finish", lambda job: [job.folder / f"{job.name}.safetensors"])
    code, out, _ = wmjax("train", "--task", "dmc_reacher_easy", "--out", "run")
    assert code == 0
    assert out.splitlines() == [
        "50 of 100 environment steps: first episodes",
        "60 of 100 environment steps: return 12",
        "100 of 100 environment steps: return 26",
        "agent: run/dmc_reacher_easy_r2dreamer_tiny.safetensors",
    ]

    def diverging(job, *, on_progress):
        raise FloatingPointError("the loss is no longer finite after 7 updates")

    monkeypatch.setattr(training, "train", diverging)
    code, _, err = wmjax("train", "--task", "dmc_reacher_easy", "--out", "run")
    assert code == 1
    assert err.startswith("wmjax: the loss is no longer finite after 7 updates; ")


def test_help_names_a_document_that_exists(wmjax):
    code, out, _ = wmjax("run", "--help")
    assert code == 0
    assert "README.md" in out
    assert "docs/" not in out


def test_a_file_s_name_does_not_steer_the_terminal(wmjax, tmp_path):
    (tmp_path / "a\033[31mred\nnew line").mkdir()
    code, _, said = wmjax("report", "a\033[31mred\nnew line")
    assert code == 2
    assert len(said.splitlines()) == 1
    assert "\033" not in said


@pytest.mark.parametrize("command", [["run"], ["view", "."]])
def test_an_impossible_gl(wmjax, monkeypatch, command):
    monkeypatch.setenv("MUJOCO_GL", "nonsense")
    code, _, said = wmjax(*command)
    assert code == 2
    assert "MUJOCO_GL is 'nonsense'; allowed: egl, glfw, osmesa" in said


def test_an_interrupt_waits_for_the_imports():
    order = []

    def importing():
        with cli._undisturbed():
            os.kill(os.getpid(), signal.SIGINT)
            order.append("imported")

    with pytest.raises(KeyboardInterrupt):
        importing()
    assert order == ["imported"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
