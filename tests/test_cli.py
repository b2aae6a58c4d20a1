"""The command line: exit codes, one-line errors, help that needs nothing heavy; every command in odd places."""

import html
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wmjax import cli, doctor, runtime
from wmjax.agents import zoo
from wmjax.core.text import as_path
from wmjax.study import run as grid
from wmjax.study.schema import TIMING
from wmjax.study.store import read_shard
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
        (["report", 300 * "a"], ["no such folder"]),
        (["merge", "loop", "--out", "whole"], ["loop", "cannot be read (Too many levels of symbolic links)"]),
        (["report", "unlisted"], ["unlisted/rows", "cannot be read (Too many levels of symbolic links)"]),
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
    (tmp_path / "unlisted").mkdir()
    for link in ("loop", "unlisted/rows"):
        (tmp_path / link).symlink_to(tmp_path / link)
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
    monkeypatch.setattr("wmjax.train.export_run.finish", lambda job: [job.folder / f"{job.name}.safetensors"])
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


# ---- in a C locale, and from and into odd paths

STUDY, AGENT, OUT = "stüdy 100% #1?.toml", "wëights & $50%", "http:r_ünï '100%' #1?"
SURROUNDINGS = {
    "C locale": ("é [1] 5%s #?&", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    "odd paths": ("-ö \"%d\n' [*] \udcff", {"LC_ALL": "C.UTF-8"}),
}
"""Name: (a folder, which holds all that is read and written, and variables)."""


class Shell:
    """A place where commands are run, all by one process: they share its compiled programs."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder = folder
        for name in ("höme", "tmp %"):
            self.path(name).mkdir(parents=True)
        self.path("cäche").symlink_to(Path(runtime.cache_dir()).resolve())
        self.path(STUDY).write_text(
            f'victims = ["{AGENT}.safetensors"]\ntasks = ["dmc_cartpole_balance"]\nobjectives = ["random"]\n'
            'budgets = ["8/255"]\nseeds = [1]\nepisode_steps = 2\n',
            encoding="utf-8",
        )
        shutil.copy(zoo.locate("dmc_cartpole_balance_r2dreamer_tiny"), self.path(f"{AGENT}.safetensors"))
        places = {"HOME": "höme", "TMPDIR": "tmp %", "WMJAX_CACHE": "cäche"}
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHON"))},
            **{name: str(self.path(place)) for name, place in places.items()},
            "PYTHONPATH": str(Path(__file__).parents[1]),
            **variables,
        }
        self.process = self.start(str(Path(__file__).with_name("commands.py")), stdin=subprocess.PIPE)

    def path(self, *names: str) -> Path:
        """The path of something in the folder, whatever the locale of the tests themselves."""
        return as_path(self.folder.joinpath(*names))

    def start(self, *arguments: str, **options) -> subprocess.Popen:
        command = [sys.executable, *arguments]
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, **options)

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Run a command; returns (exit code, stdout, stderr)."""
        self.process.stdin.write("\0".join(arguments).encode().hex().encode() + b"\n")
        self.process.stdin.flush()
        code = self.process.stdout.readline()
        out, err = ((self.folder / name).read_bytes().decode(errors="surrogateescape") for name in ("out", "err"))
        assert code, err
        return int(code), out, err

    def shards(self) -> dict[Path, int]:
        """The chunks' files, and when they were written."""
        return {path: path.stat().st_mtime_ns for path in self.path(OUT, "rows").iterdir()}


@pytest.fixture(scope="module", params=list(SURROUNDINGS))
def shell(request, tmp_path_factory):
    name, variables = SURROUNDINGS[request.param]
    shell = Shell(as_path(tmp_path_factory.mktemp("shell") / name), variables)
    with shell.process:
        yield shell
        shell.process.stdin.close()


@pytest.fixture(scope="module")
def played(shell):
    """The shell, after a study was played into its folder OUT, in two parts that were merged."""
    for part in ("1/2", "2/2"):
        code, out, err = shell("run", STUDY, f"--out={part[0]} ü", "--shard", part)
        assert (code, err) == (0, "")
        assert out.endswith(f"\nreport: {part[0]} ü/report/report.html\n")
    code, out, err = shell("merge", "1 ü", "2 ü", f"--out={OUT}")
    assert (code, err) == (0, "")
    assert out == f"{OUT}: 2 chunks played, 0 failed, 0 missing\nreport: {OUT}/report/report.html\n"
    return shell


def test_a_study_goes_on_anywhere(played):
    before = played.shards()
    code, out, err = played("run", STUDY, f"--out={OUT}")
    assert (code, err) == (0, "")
    assert out == f"100 % (4/4 agent steps)\nreport: {OUT}/report/report.html\n"
    assert played.shards() == before
    manifest = json.loads(played.path(OUT, "manifest.json").read_bytes())
    assert manifest["command"] == ["wmjax", "run", STUDY, f"--out={OUT}"]
    assert list(manifest["identity"]["victims"]) == [AGENT]
    assert {row["victim"] for path in before for row in read_shard(path).to_pylist()} == {AGENT}


def test_a_damaged_shard_is_made_again_anywhere(played):
    path, other = sorted(played.shards())
    content, before = path.read_bytes(), played.shards()[other]
    path.write_bytes(content[: len(content) // 2])
    code, out, err = played("run", STUDY, f"--out={OUT}")
    assert (code, err) == (0, "")
    assert "not a readable Parquet file" in out
    assert "0 % (2/4 agent steps)" in out
    assert played.shards()[other] == before
    again, first = read_shard(path), pq.read_table(pa.BufferReader(content))
    assert repr(again.drop_columns(list(TIMING)).to_pylist()) == repr(first.drop_columns(list(TIMING)).to_pylist())


def test_a_shard_that_cannot_be_opened_is_not_played_again(played):
    path = min(played.shards())
    kept = path.rename(path.with_suffix(".kept"))
    path.symlink_to(path.name)  # to itself
    try:
        for command in (("run", STUDY, f"--out={OUT}"), ("report", f"./{OUT}")):
            code, out, err = played(*command)
            assert (code, out) == (2, "")
            assert err.endswith(f"{path.name}: cannot be read (Too many levels of symbolic links)\n")
    finally:
        kept.rename(path)


def test_a_report_is_written_anywhere(played):
    assert played("report", f"./{OUT}") == (0, f"report: {OUT}/report/report.html\n", "")
    report = played.path(OUT, "report")
    assert {path.name for path in report.iterdir()} > {"report.html", "report.md", "episode.mp4", "episode.png"}
    assert AGENT in (report / "report.md").read_text(encoding="utf-8")
    assert shlex.quote(STUDY) in html.unescape((report / "report.html").read_text(encoding="utf-8"))
    assert "wëights \\& \\$50\\%" in (report / "tables" / "clean.tex").read_text(encoding="utf-8")


def test_results_are_looked_at_anywhere(played):
    # As in a terminal: a background job would ignore the signal.
    script = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import wmjax.cli as c; c.main()"
    with played.start("-c", script, "view", str(as_path(f"./{OUT}")), stderr=subprocess.PIPE) as server:
        try:
            name, _, port = server.stdout.readline().decode().partition(": http://127.0.0.1:")
            assert name == OUT

            def get(path: str) -> bytes:
                with closing(HTTPConnection("127.0.0.1", int(port.split("/")[0]), timeout=20)) as client:
                    client.request("GET", path)
                    return client.getresponse().read()

            assert b"<html" in get("/")
            study = json.loads(get("/api/results/study"))
            assert {"name": "victim", "label": "victim", "shown": True, "values": [AGENT]} in study["axes"]
            cell = json.loads(get(f"/api/results/study/cells/{study['first']}"))
            trace = cell["episodes"][0]["attacked"]["trace"]
            assert get(f"/api/results/study/traces/{trace}/seen.png").startswith(b"\x89PNG")
            assert AGENT in json.loads(get("/api/vocabulary"))["victim"]
            server.send_signal(signal.SIGINT)
            _, err = server.communicate(timeout=20)
        finally:
            server.kill()
    assert (server.returncode, err) == (130, b"wmjax: interrupted\n")


def test_agents_are_listed_and_described_anywhere(shell):
    code, out, err = shell("zoo")
    assert (code, err) == (0, "")
    assert "dmc_cartpole_balance_r2dreamer_1m" in out
    code, out, err = shell("zoo", "dmc_cartpole_balance_r2dreamer_1m")
    assert (code, err) == (0, "")
    assert "606.4" in out


def test_agents_come_and_go_anywhere(shell):
    pytest.importorskip("torch", reason="PyTorch's files need torch")
    assert shell("export", f"{AGENT}.safetensors", "-o", "läst.pt") == (0, "läst.pt\n", "")
    assert shell("convert", "läst.pt", "-o", "ü.safetensors") == (0, "ü.safetensors\n", "")
    weights = [zoo.load(shell.path(f"{name}.safetensors"))[1] for name in (AGENT, "ü")]
    assert jax.tree.all(jax.tree.map(np.array_equal, *weights))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "ü.toml"], ["No such file"]),
        (["run", STUDY, "--set", 'victims = ["ö"]'], ["unknown agent"]),
        (["run", STUDY, "--out", STUDY], ["manifest.json: cannot be read (Not a directory)"]),
        (["report", "ü"], ["no such folder"]),
        (["merge", "ü", "--out", "ö"], ["holds no study"]),
        (["view", "ü"], ["no such folder"]),
        (["zoo", "ü"], ["unknown agent"]),
        (["train", "--task", "ü"], ["unknown task"]),
        (["convert", "ü.pt", "-o", "ö.safetensors"], ["no such file"]),
        (["export", "ü", "-o", "ö.pt"], ["unknown agent"]),
    ],
    ids=lambda words: words[0],
)
def test_wrong_input_is_one_line_anywhere(shell, arguments, words):
    code, out, err = shell(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("wmjax: ")
    assert err.count("\n") == 1
    assert all(word in err for word in words)


def test_the_doctor_looks_anywhere(shell):
    code, out, err = shell("doctor")
    assert (code, err) == (0, "")
    assert "everything essential works" in out
    assert "cäche" in out
