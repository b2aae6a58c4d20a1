"""Where a run stands, on disk: the whole state and what was logged so far, whole or not at all, by orbax."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from wmjax.core.errors import InputError


@contextmanager
def checkpoints(folder: Path) -> Iterator[ocp.CheckpointManager]:
    """Open the checkpoints in `folder`, of which the newest is kept."""
    # Not in the background: the next call of the program reuses the memory that is being written.
    options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=False)
    with ocp.CheckpointManager(folder.resolve(), options=options) as manager:
        yield manager


def save(manager: ocp.CheckpointManager, step: int, state: Any, log: list[dict[str, Any]]) -> None:
    """Write a checkpoint; raises InputError where the disk is full or cannot be written."""
    parts = ocp.args.Composite(state=ocp.args.StandardSave(_plain(state)), log=ocp.args.JsonSave(log))
    try:
        manager.save(step, args=parts)
    except OSError as error:
        raise InputError(f"{manager.directory}: cannot be written ({error.strerror or error})") from None


def restore(manager: ocp.CheckpointManager, like: Any) -> tuple[Any, list[dict[str, Any]]] | None:
    """Return the newest state, of the shapes `like`, and its log; None where there is none.

    Raises InputError for a checkpoint that is damaged or of another run.
    """
    step = manager.latest_step()
    if step is None:
        return None
    plain = jax.eval_shape(_plain, like)
    parts = ocp.args.Composite(state=ocp.args.StandardRestore(plain), log=ocp.args.JsonRestore())
    try:
        found = manager.restore(step, args=parts)
    except Exception as error:  # whatever orbax and its storage raise on damaged files
        reason = " ".join(str(error).split())
        raise InputError(f"{manager.directory}: checkpoint {step} cannot be read ({reason:.120})") from None
    return jax.tree.map(_as_was, found["state"], like), cast(list[dict[str, Any]], found["log"])


def _plain(state: Any) -> Any:
    """Return `state` as orbax takes it: random keys as the numbers that they are made of, empty arrays as a zero."""
    plain = lambda x: jax.random.key_data(x) if _is_key(x) else x if x.size else jnp.zeros((), x.dtype)  # noqa: E731
    return jax.tree.map(plain, state)


def _as_was(x: Any, like: Any) -> Any:
    if _is_key(like):
        return jax.random.wrap_key_data(x)
    return x if like.size else jnp.zeros(like.shape, like.dtype)


def _is_key(x: Any) -> bool:
    return bool(jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key))
