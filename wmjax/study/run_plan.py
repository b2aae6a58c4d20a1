"""A study as one machine is to play it: agents, chunks and batch, known before its folder is touched."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from wmjax import runtime
from wmjax.agents import zoo
from wmjax.agents.weights import Card, file_sha256
from wmjax.core import machine
from wmjax.core.errors import InputError
from wmjax.core.jax_settings import arithmetic, fixed_settings
from wmjax.core.numbers import whole
from wmjax.core.text import as_path, as_text
from wmjax.envs.base import task_name
from wmjax.study.device_worker import DeviceWorker
from wmjax.study.memory import batch_size
from wmjax.study.plan import Chunk, Episode, plan
from wmjax.study.schema import SCHEMA_VERSION
from wmjax.study.spec import WORDS, Study
from wmjax.study.store import read_manifest
from wmjax.study.study_file import read_study


@dataclass(frozen=True)
class Job:
    """A study as this machine is to play it: all that is known before its folder is touched."""

    study: Study
    folder: Path
    devices: list[Any]
    batch: int
    agents: dict[str, Path]  #: weight files of victims and sources, by name
    cards: dict[str, Card]  #: theirs
    chunks: list[Chunk]  #: of the whole study, the most work first
    part: slice  #: which of them are this machine's
    notes: tuple[str, ...]  #: caveats of the victims
    identity: dict[str, Any]  #: a folder holds the results of one

    def device_workers(self) -> list[DeviceWorker]:
        """Return a device worker for each device; together they have an environment process a core."""
        workers = max(1, machine.cores() // len(self.devices))
        return [DeviceWorker(device, workers, self.agents) for device in self.devices]

    def records(self, episode: Episode) -> bool:
        """Return whether to keep an episode frame by frame; of the first seed those clean and at the largest budget."""
        if self.study.traces != "first":
            return self.study.traces == "all"
        kept = episode.objective == "clean" or 0 < episode.eps == max(self.study.budgets)
        return kept and episode.seed == self.study.seeds[0]


@fixed_settings()
def prepare(
    study: Study | str | Path = "quickstart",
    out: str | Path | None = None,
    *,
    batch: int | None = None,
    shard: str | None = None,
) -> Job:
    """Return what `run`, given the same, would do; it reads the study and the agents, and writes nothing.

    Raises InputError for a wrong study or machine.
    """
    if not isinstance(study, Study | str | os.PathLike):
        raise InputError(f"study is a {type(study).__name__}; expected a Study, or the name or path of one")
    if not isinstance(study, Study):
        study = read_study(study)
    devices = runtime.local_devices()
    if batch is not None:
        batch = whole("batch", batch, 1, 65536)
    part = _part(shard)
    victims, cards = _agents("victims", study.victims)
    sources, others = _agents("sources", [name for name in study.sources if name not in WORDS])
    agents, cards = victims | sources, cards | others
    if twins := [name for name in victims if agents[name].resolve() != victims[name].resolve()]:
        raise InputError(f"sources: {twins[0]} is also the name of a victim, which is another file")
    if "victims" in study.sources:
        sources |= victims
    hashes = {name: file_sha256(path) for name, path in agents.items()}
    folder = as_path(out or Path("runs") / study.name)
    if batch is None:
        batch = _begun(folder) or batch_size(study, [card.victim for card in cards.values()], devices)
    own, other = ({name: cards[name] for name in group} for group in (victims, sources))
    chunks = plan(study, own, other, hashes, batch)
    notes = [note for note in map(zoo.caveat, victims.values()) if note]
    if study.sources != ("self",) and not any(chunk.source_sha256 for chunk in chunks):
        notes.append("No attack of this study is computed on another agent than its victim: see sources.")
    # Agents by name: wherever a machine keeps their files, their hashes say what they are.
    names = [name if name in WORDS else as_text(zoo.locate(name).stem) for name in study.sources]
    identity = {
        "study": asdict(study) | {"victims": list(victims), "sources": names},
        "victims": hashes,
        "batch": batch,
        "schema": SCHEMA_VERSION,
        "versions": runtime.versions(),  # other pixels, physics or rounding are other results
        **arithmetic(devices),
    }
    identity = json.loads(json.dumps(identity))  # as it will be read back
    return Job(study, folder, devices, batch, agents, cards, chunks, part, tuple(notes), identity)


def _begun(folder: Path) -> int | None:
    """Return the batch that a folder's study was begun with, wherever that was; None where there is none."""
    identity = (read_manifest(folder) or {}).get("identity", {})
    batch = identity.get("batch")
    return batch if type(batch) is int and 1 <= batch <= 65536 else None


def _part(shard: str | None) -> slice:
    """Return which of the chunks, the most work first, are a machine's: every n-th from the i-th on."""
    if shard is None:
        return slice(None)
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", str(shard), re.ASCII)
    i, n = map(int, match.groups()) if match else (0, 0)
    if not 1 <= i <= n:
        raise InputError(f"shard is {shard!r:.80}; allowed: i/n with 1 <= i <= n < 10^9, such as 1/3")
    return slice(i - 1, None, n)


def _agents(field: str, names: Sequence[str]) -> tuple[dict[str, Path], dict[str, Card]]:
    """Return the weight files, and what they say of themselves, by name: a shipped agent's own, or the file's stem."""
    found: dict[str, Path] = {}
    cards: dict[str, Card] = {}
    for given in names:
        try:
            path = zoo.locate(given)
            name = as_text(path.stem)
            if name in found:
                raise InputError(f"two are called {name}")
            if name in (*WORDS, "none") or name.startswith("."):
                raise InputError(f"{path}: {name} is no name for an agent; rename its file")
            if len(name.encode()) > 100:
                raise InputError(f"{name[:40]}... is longer than a name can be (100 bytes)")
            card = zoo.card(path)
            cards[name] = card if card.task is None else replace(card, task=task_name(card.task))
        except InputError as error:
            raise InputError(f"{field}: {error}") from None
        found[name] = path
    return found, cards
