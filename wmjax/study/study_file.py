"""From a TOML file to a study: what is wrong in it is said in one message that names file and field."""

import os
import tomllib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from wmjax.agents import zoo
from wmjax.core.errors import InputError, unknown_name
from wmjax.core.files import check_file
from wmjax.core.text import as_path, as_text
from wmjax.core.toml_overrides import toml_overrides
from wmjax.study.spec import Study

_STUDIES = Path(__file__).parent / "studies"
_FILE_BYTES = 1 << 16


def shipped_studies() -> list[str]:
    """Return the names of the studies that come with wmjax."""
    return sorted(path.stem for path in _STUDIES.glob("*.toml"))


def read_study(name_or_path: str | Path = "quickstart", changes: Sequence[str] = ()) -> Study:
    """Return a shipped study by name, or that of a TOML file, with lines of TOML that `changes` fields put last.

    Relative paths of agents begin at the file's folder, or else at the current one; those in `changes` at the latter.
    Raises InputError naming file and field.
    """
    path = as_path(name_or_path)
    if path.suffix != ".toml" and len(path.parts) == 1 and not os.path.exists(path):
        if str(name_or_path) not in shipped_studies():
            raise unknown_name("study", str(name_or_path), shipped_studies(), also="a path of a TOML file")
        path = _STUDIES / f"{name_or_path}.toml"
    try:
        check_file(path, _FILE_BYTES)
        text = path.read_bytes().decode("utf-8-sig")  # some editors begin files with a byte order mark
        data = tomllib.loads(text)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a text in UTF-8; save it as UTF-8") from None
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # wrong TOML, a number of thousands of digits
        raise InputError(f"{path}: not a TOML file ({error!s:.200})") from None
    changed = toml_overrides(changes, "seeds = [1, 2]")
    try:
        for name in ("victims", "sources"):
            if name in data and name not in changed:
                data[name] = _beside(path.parent, name, data[name])
        return parse_study(data | changed)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _beside(folder: Path, field: str, agents: Any) -> Any:
    """Return the agents that a study file in `folder` lists, with paths that lead to their files from here.

    Relative paths begin at the file's folder, or else at the current one. Raises InputError where they lead to two
    different files.
    """
    return [_found(folder, field, agent) for agent in agents] if isinstance(agents, list) else agents


def _found(folder: Path, field: str, agent: Any) -> Any:
    if not isinstance(agent, str) or not zoo.is_path(agent):
        return agent
    here, there = as_path(agent), folder / as_path(agent)
    try:
        exist = here.exists(), there.exists()
        if all(exist) and not here.samefile(there):
            raise InputError(
                f"{field}: {agent!r:.80} is both {here.resolve()} and {there.resolve()}; give one of these"
            )
    except OSError:  # which opening the file will tell
        return agent
    if not any(exist):
        folders = " or ".join(dict.fromkeys(str(path.parent.resolve()) for path in (there, here)))
        raise InputError(f"{field}: {agent!r:.80}: no such file in {folders}")
    return as_text(str(there if exist[1] else here))


def parse_study(data: dict[str, Any]) -> Study:
    """Return the study that the keys of a TOML file describe; raises InputError naming the field."""
    known = [field.name for field in fields(Study)]
    for key in data:
        if key not in known:
            raise unknown_name("field", key, known)
    for key in ("victims", "objectives", "budgets", "seeds"):
        if key not in data:
            raise InputError(f"{key} is missing; a study needs victims, objectives, budgets and seeds")
    return Study(**data)
