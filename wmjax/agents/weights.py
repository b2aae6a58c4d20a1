"""The weight file: safetensors with one JSON card that says what the agent is and where it came from."""

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import cattrs
import jax
import numpy as np
import safetensors.numpy
from flax.traverse_util import flatten_dict, unflatten_dict

import wmjax
from wmjax.agents.base import Params
from wmjax.agents.dreamer import AGENTS, Dreamer
from wmjax.core.errors import InputError
from wmjax.core.files import check_file, plain_name, write_atomically

FORMAT = "wmjax-victim-1"
_LARGEST_SIZE = 1 << 17
_MOST_LAYERS = 32
_MOST_STAGES = 8

_TRAINING_ONLY = ("ema_encoder", "ema_obs_proj", "feat_proj", "obs_proj", "projector", "prototypes", "return_ema")
"""Parts that no inference reads; kept so that converting loses nothing."""


@dataclass(frozen=True)
class Card:
    """What a weight file says of itself."""

    victim: Dreamer
    task: str | None  #: what it was trained on, e.g. `dmc_walker_walk`
    action_repeat: int
    source: str  #: file name of the checkpoint it was converted from
    source_sha256: str
    converter: str = wmjax.__version__
    dropped: dict[str, int] = field(default_factory=dict)  #: tensors left out, by prefix of their keys
    ignored: tuple[str, ...] = ()  #: entries of the configuration that were read as if they were not there


def write(path: Path, card: Card, flat: Mapping[str, np.ndarray]) -> None:
    """Write `flat` (names as `rssm/prior/out/kernel`) and `card`, whole or not at all; same input, same bytes.

    Raises InputError where `path` cannot be written.
    """
    # One metadata entry: the library does not keep the order of several.
    data = safetensors.numpy.save(dict(flat), metadata={"wmjax": card_text(card)})
    write_atomically(path, data)


def read(path: Path) -> tuple[Card, Params]:
    """Return the card and the weights (nested dict of float32 NumPy arrays) of a weight file.

    Raises InputError where the file is missing, is not one of ours, or its tensors do not fit its card.
    """
    card = read_card(path)
    with _foreign_is_input_error(path):
        with plain_name(path) as name:
            flat = safetensors.numpy.load_file(name)
        # Sorted, a name that is also the folder of another comes first, and the other has no place.
        tree = unflatten_dict(dict(sorted(flat.items())), sep="/")
    check_tree(flat, card.victim, str(path))
    return card, tree


def read_card(path: Path) -> Card:
    """Return the card alone; raises InputError where the file is missing or not one of ours."""
    with _foreign_is_input_error(path):
        check_file(path)
        with plain_name(path) as name, safetensors.safe_open(name, framework="numpy") as file:
            text = file.metadata()["wmjax"]
        values = json.loads(text)
        if values.pop("format") != FORMAT:
            raise InputError(f"{path}: written by another version of wmjax; convert the checkpoint again")
        card = cattrs.Converter(forbid_extra_keys=True).structure(values, Card)
        # Structuring is lenient, "8" and true count as integers; a card that we wrote comes back as the same text.
        if card_text(card) != text or card.action_repeat < 1:
            raise ValueError("not written by `write`")
        check_sizes(card.victim)
    return card


def card_text(card: Card) -> str:
    """Return the card as a weight file holds it: what later versions added is there only where it says something."""
    values = asdict(card)
    for name in ("dropped", "ignored"):
        if not values[name]:
            del values[name]
    if card.victim.horizon == Dreamer.horizon:
        del values["victim"]["horizon"]
    return json.dumps({"format": FORMAT, **values}, sort_keys=True)


@contextmanager
def _foreign_is_input_error(path: Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except Exception:
        raise InputError(f"{path}: not an agent converted by wmjax; `wmjax convert` makes one from latest.pt") from None


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.cache
def template(victim: Dreamer) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight that inference reads, by name."""
    # The key is made inside: a real one would need a device.
    tree = jax.eval_shape(lambda: victim.init(jax.random.key(0)))
    return {name: leaf.shape for name, leaf in flatten_dict(tree, sep="/").items()}


def check_tree(flat: Mapping[str, np.ndarray], victim: Dreamer, where: str) -> None:
    """Raise InputError, naming `where` and the tensor, unless `flat` is float32, finite and of the victim's sizes."""
    shapes = template(victim)
    extra = {name for name in flat if name.split("/")[0] not in _TRAINING_ONLY}
    for what, names in (("missing", shapes.keys() - extra), ("unknown", extra - shapes.keys())):
        if names:
            raise InputError(f"{where}: {what} weights: {listed(names)}")
    for name, array in flat.items():
        expected = shapes.get(name, array.shape)
        if array.shape != expected or array.dtype != np.float32:
            raise InputError(f"{where}: {name} is {array.dtype}{list(array.shape)}, expected float32{list(expected)}")
        if not np.isfinite(array).all():
            raise InputError(f"{where}: {name} holds NaN or infinite values")


def check_sizes(victim: Dreamer) -> None:
    """Raise ValueError unless the sizes can be those of an agent; only then is asking for its `template` safe."""
    decodes = victim.agent == "dreamer"
    for name, size in asdict(victim).items():
        if isinstance(size, int) and name != "horizon":
            layers = name.endswith("_layers")
            optional = (layers and name != "obs_layers") or (name.startswith("decoder_") and not decodes)
            if not (0 if optional else 1) <= size <= (_MOST_LAYERS if layers else _LARGEST_SIZE):
                raise ValueError(f"{name} is {size}")
    sound = (
        victim.agent in AGENTS
        and 1 <= len(victim.depths) <= _MOST_STAGES
        and all(1 <= depth <= _LARGEST_SIZE for depth in victim.depths)
        and victim.deter % victim.blocks == 0
        and not (decodes and (victim.depths[-1] % victim.decoder_blocks or victim.deter % victim.decoder_blocks))
        and victim.bins % 2 == 1
        and 1 <= victim.horizon < 1 << 31
    )
    if not sound:
        raise ValueError("sizes that do not fit together")


def listed(names: Any, most: int = 12) -> str:
    """Return names, sorted and comma-separated; past `most` of them a count."""
    names = sorted(map(str, names))
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
