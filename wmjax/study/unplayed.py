"""The rows of episodes that could not be played: their cells and why, and no outcome."""

from dataclasses import asdict
from typing import Any

import pyarrow as pa

from wmjax.study.plan import Chunk
from wmjax.study.schema import SCHEMA


def unplayed(chunk: Chunk, agent: str, device: str, error: str) -> list[dict[str, Any]]:
    """Return the rows of a chunk whose victim is of family `agent`; `error` says in a line what went wrong."""
    unknown = {column.name: float("nan") for column in SCHEMA if pa.types.is_floating(column.type)}
    known = chunk.columns(agent, device) | {"attacked": 0, "nan": False, "error": error}
    return [unknown | asdict(episode) | known for episode in chunk.episodes]
