"""`wmjax doctor`: each thing that can be wrong is found, graded, and comes with a remedy."""

import importlib.metadata as metadata
import pwd

import jax
import pytest

from wmjax import doctor, runtime
from wmjax.doctor import Finding


def statuses(findings):
    return {finding.check: finding.status for finding in findings}


def test_versions_are_held_against_the_package_metadata(monkeypatch):
    wanted = ["numpy<1", "rich>=1", "no-such-thing>=2", "torch>=99; extra == 'convert'", "pytest>=99; extra == 'dev'"]
    monkeypatch.setattr(metadata, "metadata", lambda name: {"Requires-Python": ">=3.11"})
    monkeypatch.setattr(metadata, "requires", lambda name: wanted)
    findings = {finding.check: finding for finding in doctor.check_versions()}
    assert set(findings) == {"python", "numpy", "rich", "no-such-thing", "torch"}
    assert findings["python"].status == findings["rich"].status == "ok"
    assert findings["numpy"].status == "error"
    assert findings["numpy"].remedy == 'pip install "numpy<1"'
    assert findings["no-such-thing"].status == "error"
    assert "not installed" in findings["no-such-thing"].detail


def test_torch_is_optional():
    requirement = doctor.Requirement("no-such-thing>=2; extra == 'convert'")
    found = doctor._check_version(requirement, missing="ok")
    assert found.status == "ok"
    assert "only needed to convert" in found.detail


def test_an_old_python_and_a_bare_source_tree_are_found(monkeypatch):
    monkeypatch.setattr(metadata, "metadata", lambda name: {"Requires-Python": ">=4"})
    assert statuses(doctor.check_versions())["python"] == "error"

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "metadata", missing)
    assert statuses(doctor.check_versions()) == {"versions": "warning"}


def test_a_jax_that_does_not_compute_is_an_error(monkeypatch):
    assert doctor.check_devices().status == "ok"

    def broken():
        raise RuntimeError("no driver")

    monkeypatch.setattr(jax, "devices", broken)
    found = doctor.check_devices()
    assert found.status == "error"
    assert "no driver" in found.detail
    assert found.remedy


def test_a_frame_is_drawn_and_judged(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    findings = doctor.check_rendering()
    assert set(statuses(findings)) == {"OpenGL egl", "OpenGL osmesa"}
    assert "ok" in statuses(findings).values()
    for code, message in (
        ("print('[[0, 0, 0], [0, 0, 0]]')", "not the expected one"),
        ("raise SystemExit(3)", "exit code 3"),
        ("import sys; sys.exit('no display')", "no display"),
    ):
        monkeypatch.setattr(doctor, "_FRAME", code)
        assert message in doctor._frame_error("egl")


def test_a_simulation_that_does_not_step_is_told_apart_from_opengl(monkeypatch):
    assert doctor.check_simulation() == Finding("simulation", "ok", "dm_control and MuJoCo step a task")
    monkeypatch.setattr(doctor, "_SIMULATION", "raise AttributeError('qM')")
    wanted = ["mujoco>=3.10,<3.11", "dm-control==1.0.43", "numpy>=2"]
    monkeypatch.setattr(metadata, "requires", lambda name: wanted)
    found = doctor.check_simulation()
    assert found.status == "error"
    assert "AttributeError: qM" in found.detail
    assert found.remedy.endswith('pip install "mujoco<3.11,>=3.10" "dm-control==1.0.43"')
    monkeypatch.setattr(doctor, "_frame_error", lambda name: pytest.fail("there is nothing to draw"))
    assert [finding.status for finding in doctor.check() if "OpenGL" in finding.check] == ["warning"]


def test_a_cache_in_no_home_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.setenv("WMJAX_CACHE", "~nosuch-user/x")
    runtime.use_compilation_cache()
    assert runtime.cache_dir() is None
    assert doctor.check_cache().status == "warning"
    monkeypatch.setenv("WMJAX_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert runtime.cache_dir() == tmp_path / ".cache" / "wmjax"
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", lambda user: {}[user])
    assert runtime.cache_dir() is None


@pytest.mark.parametrize(
    ("broken", "chosen", "expected"),
    [
        (set(), "", ["ok", "ok"]),
        ({"egl"}, "", ["warning", "ok"]),
        ({"egl", "osmesa"}, "", ["error", "error"]),
        ({"egl"}, "osmesa", ["warning", "ok"]),
        ({"egl"}, "egl", ["warning", "ok", "error"]),
        (set(), "glfw", ["ok", "ok", "error"]),
    ],
)
def test_one_back_end_is_enough_unless_another_is_chosen(broken, chosen, expected, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", chosen)
    monkeypatch.setattr(doctor, "_frame_error", lambda name: "no picture" if name in broken else None)
    findings = doctor.check_rendering()
    assert [finding.status for finding in findings] == expected
    assert all(finding.remedy for finding in findings if finding.status != "ok")


def test_a_folder_that_can_not_be_written_is_a_warning(tmp_path):
    assert doctor.check_folder("cache", tmp_path / "new", "").status == "ok"
    file = tmp_path / "file"
    file.touch()
    found = doctor.check_folder("cache", file / "below", "elsewhere")
    assert found.status == "warning"
    assert found.remedy == "elsewhere"


@pytest.mark.parametrize(("worst", "code"), [("ok", 0), ("warning", 0), ("error", 1)])
def test_the_exit_code_tells_whether_something_essential_is_broken(worst, code, monkeypatch, capsys):
    findings = [Finding("python", "ok", "3.11"), Finding("OpenGL [egl]", worst, "[none]", "install it")]
    monkeypatch.setattr(doctor, "check", lambda: findings)
    assert doctor.main() == code
    printed = capsys.readouterr().out
    assert "mend: install it" in printed
    assert "OpenGL [egl]" in printed
    assert "[none]" in printed
    assert ("broken: OpenGL [egl]" in printed) == bool(code)
