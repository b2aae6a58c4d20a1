"""Plays one attacked episode at a time, as a tiny study in a folder of its own. JAX is loaded when it is asked to."""

import hashlib
import json
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from wmjax.core.errors import InputError, unknown_name
from wmjax.core.files import make_folder
from wmjax.core.text import as_path
from wmjax.report.labels import objective_label, optimizer_label
from wmjax.report.markdown import plain
from wmjax.study.schema import SCHEMA_VERSION

_BATCH = 2  # an attack and its probe of budget 0 share a program

_FIELDS = {
    "victim": "victims",
    "task": "tasks",
    "objective": "objectives",
    "optimizer": "optimizers",
    "budget": "budgets",
    "mode": "modes",
    "defense": "defenses",
    "adaptive": "adaptive",
    "seed": "seeds",
    "steps": "steps",
    "noise": "noise",
    "length": "episode_steps",
    "region": "regions",
    "frames": "frames",
    "draws": "draws",
    "source": "sources",
}
"""The form's fields, and the study's that they are."""
_ONE = ("steps", "noise", "draws", "episode_steps")  # fields of a study that are no lists


class Busy(Exception):
    """Raised where an episode is played already."""


class _Stopped(Exception):
    """Raised inside of a study that is to end."""


@dataclass(frozen=True)
class State:
    """How far the episode is."""

    phase: str = "idle"  #: idle, running, stopping, done, failed or stopped
    what: str = ""  #: which episode; foreign text
    done: int = 0  #: agent steps of all its chunks
    total: int = 0  #: 0: not yet known
    message: str = ""  #: what went wrong
    results: str = ""  #: where it is to be seen, of a finished one


class Launcher:
    """One episode at a time, in a thread beside the server's."""

    def __init__(self, folder: Path, victims: Mapping[str, str], opened: Callable[[Path], str]) -> None:
        """Write to `folder`/<hash>; `victims` are files by name, beside the zoo's; `opened` takes finished folders."""
        self._folder, self._victims, self._opened = folder, victims, opened
        self._lock, self._stop = threading.Lock(), threading.Event()
        self.state = State()

    def vocabulary(self) -> dict[str, Any]:
        """Return what the form offers: names by field, and the agents with their tasks."""
        from wmjax.attacks.defenses import DEFENSES, named
        from wmjax.attacks.objectives import OBJECTIVES
        from wmjax.attacks.optimizers import OPTIMIZERS
        from wmjax.attacks.threat import NOISES
        from wmjax.envs.base import TASKS
        from wmjax.study.spec import FRAMES

        agents = self._agents()
        return {
            "victim": {name: self._task(path) for name, path in agents.items()},
            "task": list(TASKS),
            "objective": ["random", *OBJECTIVES],
            "optimizer": sorted(OPTIMIZERS),
            "mode": ["full", "first_half", "second_half", "sparse(2)", "policy_top(50)", "value_top(50)"],
            "defense": [named(name)[2] for name in DEFENSES],
            "noise": list(NOISES),
            "region": ["all", "patch(16)", "border(8)", "red", "green", "blue"],
            "frames": list(FRAMES),
            "source": ["self", *agents],
        }

    def start(self, form: Mapping[str, Any]) -> None:
        """Start the episode that the form describes; raises InputError where there is none such, Busy during another.

        An episode that was played before is not played again.
        """
        from wmjax.study.study_file import parse_study

        if unknown := [name for name in form if name not in _FIELDS]:
            raise unknown_name("field", unknown[0], _FIELDS)
        if missing := [name for name in _FIELDS if name not in form]:
            raise InputError(f"{missing[0]} is missing")
        agents = self._agents()
        for name, known in (("victim", agents), ("source", {"self": "self"} | agents)):
            if not isinstance(form[name], str) or form[name] not in known:
                raise unknown_name(name, form[name], known)
        paths = {"victim": agents[form["victim"]], "source": agents.get(form["source"], "self")}
        values = dict(form) | paths | {"budget": _budget(form["budget"])}
        study = parse_study(
            {field: values[name] if field in _ONE else [values[name]] for name, field in _FIELDS.items()}
            | {"name": "view", "traces": "first"}
        )
        if study.budgets == (0.0,):
            raise InputError("budgets is 0; an attack needs more")
        what = f"{_attack(study)}, ε = {form['budget']}, on {form['task']}, seed {form['seed']}"
        with self._lock:
            if self.state.phase in ("running", "stopping"):
                raise Busy
            self._stop.clear()
            self.state = State("running", what)
        # A daemon: it may be inside of XLA when the server ends.
        threading.Thread(target=self._play, args=(study,), daemon=True).start()

    def stop(self) -> None:
        """Let the episode end after its current step."""
        with self._lock:
            if self.state.phase == "running":
                self._stop.set()
                self.state = replace(self.state, phase="stopping")

    def _play(self, study: Any) -> None:
        try:
            from wmjax import runtime
            from wmjax.study.run import run

            runtime.use_compilation_cache()
            make_folder(self._folder)
            outcome = run(study, self._folder / _digest(study), batch=_BATCH, on_progress=self._advance)
            if outcome.failed:
                self._end("failed", message=f"failed twice: {next(iter(outcome.failed.values()))}")
            else:
                self._end("done", results=self._opened(outcome.folder))
        except _Stopped:
            self._end("stopped")
        except InputError as error:
            self._end("failed", message=str(error))
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            self._end("failed", message=f"{type(error).__name__}: {error!s:.400}; the terminal says more")

    def _advance(self, progress: Any) -> None:
        if self._stop.is_set():
            raise _Stopped
        with self._lock:
            self.state = replace(self.state, done=progress.done, total=progress.total)
        if progress.message is not None:
            print(f"wmjax: {progress.message}", file=sys.stderr)

    def _end(self, phase: str, message: str = "", results: str = "") -> None:
        with self._lock:
            self.state = replace(self.state, phase=phase, message=plain(message), results=results)

    def _agents(self) -> dict[str, str]:
        from wmjax.agents import zoo

        own = {name: path for name, path in self._victims.items() if _is_file(path)}
        return own | {name: name for name in zoo.names()}

    def _task(self, path: str) -> str | None:
        from wmjax.agents import zoo

        try:
            return zoo.card(path).task
        except InputError:  # starting it will say what is wrong
            return None


def _is_file(path: str) -> bool:
    try:
        return as_path(path).is_file()
    except (OSError, ValueError):  # longer than a path can be, for one
        return False


def _budget(text: Any) -> Any:
    """Return the number that the text is, else the text: a study knows 8/255."""
    try:
        return float(text) if isinstance(text, str) else text
    except ValueError:
        return text


def _attack(study: Any) -> str:
    """Return `VSA by PGD-10`."""
    (objective,), ((name, steps),) = study.objectives, study.attacks()
    return objective_label(objective) + ("" if objective == "random" else f" by {optimizer_label(name, steps)}")


def _digest(study: Any) -> str:
    """Return the name of the study's folder: equal for an equal study of equal agents."""
    from wmjax.agents import zoo
    from wmjax.agents.weights import file_sha256

    names = [
        SCHEMA_VERSION,
        asdict(study),
        [file_sha256(zoo.locate(name)) for name in (*study.victims, *study.sources) if name != "self"],
    ]
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16]
