"""`wmjax doctor`: what this machine offers, what is wrong with it, and how to mend that."""

import importlib.metadata as metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from wmjax import runtime
from wmjax.core import machine
from wmjax.render import BACKENDS

Status = Literal["ok", "warning", "error"]
_COLOURS: dict[Status, str] = {"ok": "green", "warning": "yellow", "error": "red"}

_UNINSTALL = "pip uninstall -y mujoco mujoco-core mujoco-studio"  # what 4.0 split off overwrites older versions' files
_SIMULATION = """
from dm_control import suite
env = suite.load("reacher", "easy")
env.reset()
env.step([0.0, 0.0])
"""
_GL_PACKAGES = (
    'on Debian or Ubuntu: apt-get install libosmesa6 libegl1 libgl1; studies with backend = "device" need none'
)
_FRAME_MEAN = (61.5, 95.6, 131.3)
_FRAME_STD = (35.2, 23.8, 22.7)
_FRAME_TOLERANCE = 5.0
_FRAME = """
import json
from wmjax import envs
with envs.make("dmc_reacher_easy") as env:
    pixels = env.reset([0]).image.reshape(-1, 3)
print(json.dumps([pixels.mean(0).tolist(), pixels.std(0).tolist()]))
"""


@dataclass(frozen=True)
class Finding:
    """The outcome of one check."""

    check: str
    status: Status
    detail: str
    remedy: str = ""
    """What to do, where something is wrong."""


def main() -> int:
    """Print all findings; return 1 if something essential is broken, else 0."""
    console = Console()
    with console.status("checking"):
        findings = check()
    table = Table("check", "status", "found", box=None, pad_edge=False)
    for finding in findings:
        detail = f"{finding.detail}\n  mend: {finding.remedy}" if finding.remedy else finding.detail
        table.add_row(escape(finding.check), f"[{_COLOURS[finding.status]}]{finding.status}[/]", escape(detail))
    console.print(table)
    broken = [finding.check for finding in findings if finding.status == "error"]
    console.print(f"broken: {', '.join(broken)}" if broken else "everything essential works", markup=False)
    return 1 if broken else 0


def check() -> list[Finding]:
    """Run every check; takes a few seconds, most of them for drawing a frame with each OpenGL back end."""
    simulation = check_simulation()
    skipped = Finding("OpenGL", "warning", "not checked, since there is nothing to draw", "mend the simulation first")
    return [
        *check_versions(),
        check_devices(),
        simulation,
        *(check_rendering() if simulation.status == "ok" else [skipped]),
        check_cache(),
        check_folder("current folder", Path.cwd(), "start wmjax elsewhere, or give --out"),
    ]


def check_versions() -> list[Finding]:
    """Compare Python and the installed packages with what wmjax's own metadata asks for."""
    try:
        ours = metadata.metadata("wmjax")
    except metadata.PackageNotFoundError:
        detail = "wmjax is not installed but imported from a folder, so versions are not checked"
        return [Finding("versions", "warning", detail, "pip install -e . in that folder")]
    python = platform.python_version()
    wanted = SpecifierSet(ours["Requires-Python"] or "")
    findings = [
        Finding("python", "ok", python)
        if wanted.contains(python, prereleases=True)
        else Finding("python", "error", f"{python}, but wmjax needs {wanted}", "install wmjax with another Python")
    ]
    for text in metadata.requires("wmjax") or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            findings.append(_check_version(requirement, missing="error"))
        elif requirement.name == "torch" and requirement.marker.evaluate({"extra": "convert"}):
            findings.append(_check_version(requirement, missing="ok"))
    return findings


def _check_version(requirement: Requirement, missing: Status) -> Finding:
    name, wanted = requirement.name, requirement.specifier
    install = f'pip install "{name}{wanted}"'
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        if missing == "ok":
            return Finding(name, missing, f"not installed; only needed to convert checkpoints ({install})")
        return Finding(name, missing, f"not installed; wmjax needs {wanted}", install)
    if wanted.contains(version, prereleases=True):
        return Finding(name, "ok", version)
    if name == "mujoco":
        install = f"{_UNINSTALL}; {install}"
    return Finding(name, "error", f"{version}, but wmjax needs {wanted}", install)


def check_devices() -> Finding:
    """Compute something on JAX's default device, and notice a GPU that JAX does not use."""
    cores = machine.cores()
    try:
        import jax

        devices = jax.devices()
        jax.block_until_ready(jax.numpy.ones(8) * 2)
    except Exception as error:  # a broken driver surfaces as one of many types
        return Finding("devices", "error", f"JAX does not compute: {error}", "reinstall jax, or set JAX_PLATFORMS=cpu")
    detail = f"{len(devices)} x {devices[0].device_kind} ({devices[0].platform}), {cores} CPU cores"
    if devices[0].platform == "cpu" and Path("/dev/nvidiactl").exists():
        return Finding("devices", "warning", f"{detail}; there is an NVIDIA GPU, unused", 'pip install "jax[cuda12]"')
    return Finding("devices", "ok", detail)


def check_simulation() -> Finding:
    """Load and step a task without drawing it, which only versions of dm_control and MuJoCo that match can."""
    _, error = _probe(_SIMULATION, "disable")
    if error is None:
        return Finding("simulation", "ok", "dm_control and MuJoCo step a task")
    try:
        needed = [Requirement(text) for text in metadata.requires("wmjax") or ()]
    except metadata.PackageNotFoundError:
        remedy = "pip install -e . in wmjax's folder"
    else:
        pins = [
            f'"{pin.name}{pin.specifier}"' for pin in needed if pin.name.replace("-", "_") in ("mujoco", "dm_control")
        ]
        remedy = f"{_UNINSTALL}; pip install {' '.join(pins)}"
    return Finding("simulation", "error", f"dm_control does not step a task: {error}", remedy)


def check_rendering() -> list[Finding]:
    """Draw a known frame with each OpenGL back end, every one in processes of its own; one that works is enough."""
    errors = {name: _frame_error(name) for name in BACKENDS}
    chosen = os.environ.get("MUJOCO_GL", "")
    usable = errors.get(chosen.lower(), f"MUJOCO_GL={chosen} is not a back end") if chosen else None
    broken: Status = "error" if all(errors.values()) else "warning"
    findings = [
        Finding(f"OpenGL {name}", broken, error, _GL_PACKAGES)
        if error
        else Finding(f"OpenGL {name}", "ok", "draws the expected frame")
        for name, error in errors.items()
    ]
    if usable:
        works = [name for name, error in errors.items() if not error]
        remedy = f"unset MUJOCO_GL, or set it to {' or '.join(works)}" if works else _GL_PACKAGES
        findings.append(Finding("MUJOCO_GL", "error", usable, remedy))
    return findings


def _frame_error(backend: str) -> str | None:
    """Return what is wrong with a frame drawn by `backend`, if anything."""
    printed, error = _probe(_FRAME, backend)
    if error is not None:
        return error
    mean, std = json.loads(printed)
    differences = [abs(a - b) for a, b in zip([*mean, *std], [*_FRAME_MEAN, *_FRAME_STD], strict=True)]
    if max(differences) > _FRAME_TOLERANCE:
        return (
            f"the frame is not the expected one: mean colour {[round(value, 1) for value in mean]}, not {_FRAME_MEAN}"
        )
    return None


def _probe(code: str, backend: str) -> tuple[str, str | None]:
    """Run `code` in a process of its own; return what it prints, and the error that ended it, if any."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"MUJOCO_GL": backend, "PYTHONPATH": path},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=120,
        )
    except subprocess.TimeoutExpired as error:
        return "", f"not done after {error.timeout:.0f} s"
    if done.returncode:
        return "", (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return done.stdout, None


def check_cache() -> Finding:
    """Check that compiled programs can be kept; without, each start compiles them again."""
    folder, remedy = runtime.cache_dir(), "set WMJAX_CACHE to a folder you can write to"
    if folder is None:
        return Finding("cache folder", "warning", "it lies in a home folder that does not exist", remedy)
    return check_folder("cache folder", folder, remedy)


def check_folder(name: str, folder: Path, remedy: str) -> Finding:
    """Check that `folder` can be written to, creating it if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding(name, "warning", f"can not write to {folder}: {error.strerror}", remedy)
    return Finding(name, "ok", str(folder))
