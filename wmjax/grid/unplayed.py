"""The rows of episodes that could not be played: their cells and why, and no outcome."""

from dataclasses import asdict
from typing import Any

import pyarrow as pa

import wmjax
from wmjax.envs import spec as env_spec
from wmjax.grid.plan import Chunk
from wmjax.grid.rows import SCHEMA, SCHEMA_VERSION


def unplayed(chunk: Chunk, agent: str, device: str, error: str) -> list[dict[str, Any]]:
    """Return the rows of a chunk whose victim is of family `agent`; `error` says in a line what went wrong."""
    spec = env_spec(chunk.episodes[0].task)
    unknown = {column.name: float("nan") for column in SCHEMA if pa.types.is_floating(column.type)}
    known = {
        "agent": agent,
        "max_return": spec.max_return * chunk.episode_steps / spec.episode_steps,
        "length": chunk.episode_steps,
        "attacked": 0,
        "nan": False,
        "error": error,
        "schema": SCHEMA_VERSION,
        "wmjax": wmjax.__version__,
        "device": device,
        "backend": chunk.backend,
        "victim_sha256": chunk.victim_sha256,
    }
    return [unknown | asdict(episode) | known for episode in chunk.episodes]
