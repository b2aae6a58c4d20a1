"""Agents by name or path. A shipped agent is a weight file and its card, side by side in `shipped/`."""

from pathlib import Path

import jax
import jax.numpy as jnp

from wmjax import runtime
from wmjax.agents.base import Params
from wmjax.agents.dreamer import Dreamer
from wmjax.agents.weights import Card, read, read_card
from wmjax.core.errors import unknown_name
from wmjax.core.text import as_path

_SHIPPED = Path(__file__).parent / "shipped"


def names() -> list[str]:
    """Return the names of the shipped agents, sorted."""
    return sorted(path.stem for path in _SHIPPED.glob("*.safetensors"))


def is_path(name_or_path: str | Path) -> bool:
    """Return whether this is the path of a weight file, and not the name of a shipped agent."""
    path = Path(name_or_path)
    return path.suffix == ".safetensors" or len(path.parts) > 1


def locate(name_or_path: str | Path) -> Path:
    """Return the weight file of a shipped agent, or the path itself; raises InputError for an unknown name."""
    path = as_path(name_or_path)
    if is_path(path):
        return path
    if str(name_or_path) not in names():
        raise unknown_name("agent", str(name_or_path), names(), also="a path that ends in .safetensors")
    return _SHIPPED / f"{path}.safetensors"


def card(name_or_path: str | Path) -> Card:
    """Return what the weight file says of itself; raises InputError as `load` does."""
    return read_card(locate(name_or_path))


def description(name: str) -> str:
    """Return the Markdown card of a shipped agent: training, returns, caveats; raises InputError for other names."""
    if name not in names():
        raise unknown_name("agent", name, names())
    return (_SHIPPED / f"{name}.md").read_text(encoding="utf-8")


def load(name_or_path: str | Path) -> tuple[Dreamer, Params]:
    """Return (victim, params): the agent's sizes with its functions, and its weights as a pytree of float32 arrays.

    Raises InputError for an unknown name (the message lists the known ones), a missing file, or one that is not ours,
    and where JAX's back end does not start.
    """
    found, params = read(locate(name_or_path))
    runtime.local_devices()
    return found.victim, jax.tree.map(jnp.asarray, params)


def caveat(name_or_path: str | Path) -> str | None:
    """Return the quoted warning on a shipped agent's card, what its results must not be used for; None without one."""
    path = locate(name_or_path).with_suffix(".md")
    if path.parent != _SHIPPED:
        return None
    lines = path.read_text(encoding="utf-8").splitlines()
    return " ".join(line[1:].strip() for line in lines if line.startswith(">")) or None
