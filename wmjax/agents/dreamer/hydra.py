"""The configuration that hydra leaves beside a checkpoint: its entries, with references followed, or an error."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wmjax.core.errors import InputError
from wmjax.core.files import check_file

FILE = Path(".hydra") / "config.yaml"

LARGEST = 1 << 18  # bytes; real ones have about 6,000
_LONGEST_NUMBER = 64
_MOST_REFERENCES = 32

_REFERENCE = re.compile(r"\$\{(\.*)([\w/-]+(?:\.[\w/-]+)*)\}")
_FLOAT = re.compile(r"[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$")
"""Numbers to OmegaConf, text to PyYAML: 1e-2, 5e5, 1.01e6."""


class Unresolved(InputError):
    """An entry is there, but its value cannot be known from the file."""


@dataclass(frozen=True)
class Found:
    """An entry's value, and the name under which it stands: another one where references were followed."""

    value: Any
    name: str

    def told(self, asked: str) -> str:
        """Return `NAME is VALUE`, with the entry that was asked for where that is another."""
        return f"{self.name} is {brief(self.value)}" + (f" (for {asked})" if self.name != asked else "")


@dataclass(frozen=True)
class Config:
    """A run's configuration; `tree` is empty where there is no file. An entry in `ignored` counts as absent."""

    path: Path
    tree: Any
    ignored: tuple[str, ...] = ()
    lacks: str = ""  #: for the message where a hint is missing: what did not tell it

    def find(self, name: str) -> Found | None:
        """Return the entry, followed through `${other.entry}`; None where it is absent.

        Raises Unresolved where it is there but cannot be followed: a resolver such as `${oc.env:X}`, text with a
        reference in it, a reference to nothing or to itself, a value that is still to be filled in (`???`).
        """
        return self._follow((), name.split("."), name, [_MOST_REFERENCES])

    def ignores(self, name: str) -> bool:
        """Return whether the entry or a section around it is in `ignored`."""
        return any(name == entry or name.startswith(f"{entry}.") for entry in self.ignored)

    def _follow(self, start: tuple[str, ...], parts: list[str], asked: str, left: list[int]) -> Found | None:
        where: tuple[str, ...] = ()
        value = self.tree
        for part in (*start, *parts):
            if not isinstance(value, dict):
                told = Found(value, ".".join(where)).told(asked)
                raise Unresolved(f"{self.path}: {told}, no section: {asked} cannot be resolved")
            if part not in value or self.ignores(".".join((*where, part))):
                return None
            where, value = (*where, part), value[part]
            if not isinstance(value, str) or not ("${" in value or value == "???"):
                continue
            lost = Unresolved(f"{self.path}: {Found(value, '.'.join(where)).told(asked)}, which cannot be resolved")
            reference = _REFERENCE.fullmatch(value)
            # All references of one question share the count: a chain for each part of a name might never end.
            left[0] -= 1
            if reference is None or left[0] < 0 or len(reference[1]) > len(where):
                raise lost
            # `${.x}` stands beside the entry, `${..x}` beside the section that it is in.
            base = where[: -len(reference[1])] if reference[1] else ()
            target = reference[2].split(".")
            found = self._follow(base, target, asked, left)
            if found is None:
                if self.ignores(".".join((*base, *target))):
                    return None
                raise lost
            where, value = tuple(found.name.split(".")), found.value
        return Found(value, ".".join(where))


def read_config(checkpoint: Path, ignored: tuple[str, ...] = ()) -> Config:
    """Return the configuration beside a checkpoint or, where there is none, one folder up.

    Raises InputError where the file is no configuration of the R2-Dreamer code, or lacks an entry of `ignored`.
    """
    path = next(filter(_there, places(checkpoint)), None)
    if path is None:
        if ignored:
            raise InputError(f"ignore is {ignored[0]!r:.80}, but there is no {listed_places(checkpoint)}")
        return Config(places(checkpoint)[0], {}, lacks=f"; there is no {listed_places(checkpoint)}")
    tree = _read(path)
    for name in ignored:
        value = tree
        for part in name.split("."):
            if not isinstance(value, dict) or part not in value:
                raise InputError(f"ignore is {name!r:.80}; {path} has no such entry")
            value = value[part]
    return Config(path, tree, tuple(sorted(set(ignored))), lacks=f"; {path} does not tell")


def places(checkpoint: Path) -> tuple[Path, Path]:
    """Return where a checkpoint's configuration may be."""
    above = Path(os.path.abspath(checkpoint)).parent.parent
    return checkpoint.parent / FILE, above / FILE


def listed_places(checkpoint: Path) -> str:
    """Return the same in words."""
    return " or ".join(map(str, places(checkpoint)))


def brief(value: Any) -> str:
    """Return a value for a message: a YAML file may share parts so often that writing them out never ends."""
    scalar = lambda x: x is None or isinstance(x, bool | int | float | str)  # noqa: E731
    if scalar(value) or (isinstance(value, list) and len(value) < 9 and all(map(scalar, value))):
        return f"{value!r:.80}"
    return f"a {type(value).__name__}"


def _there(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    return True


def _read(path: Path) -> Any:
    try:
        import yaml
    except ImportError:
        raise InputError(f"reading {path} needs PyYAML: pip install 'wmjax[convert]'") from None

    class Loader(yaml.SafeLoader):
        """What OmegaConf reads, and nothing that takes more time or memory than the file has bytes."""

        def flatten_mapping(self, node: Any) -> None:
            """Refuse what OmegaConf never writes: merged mappings, which may double with every line, and twins."""
            names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if "<<" in names or len(set(names)) < len(names):
                raise yaml.constructor.ConstructorError(None, None, "merged or repeated entries", node.start_mark)

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            """Refuse a number of so many digits that reading or showing it takes long."""
            if node.tag.endswith((":int", ":float")) and len(node.value) > _LONGEST_NUMBER:
                raise yaml.constructor.ConstructorError(None, None, "a number too long", node.start_mark)
            return super().construct_object(node, deep)

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789"))
    try:
        check_file(path, LARGEST)
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader)
        if not all(isinstance(tree[part], dict) for part in ("env", "model")):
            raise ValueError("env and model are no sections")
    except Exception as error:  # the library's own for a strange file are of many kinds
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: not the config of an R2-Dreamer run ({reason:.160})") from None
    return tree
