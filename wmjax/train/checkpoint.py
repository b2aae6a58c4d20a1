"""Where a run stands, on disk: the whole state and what was logged so far, whole or not at all, by orbax."""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from wmjax.core.errors import InputError
from wmjax.core.files import make_folder, plain_name


@contextmanager
def checkpoints(folder: Path) -> Iterator[ocp.CheckpointManager]:
    """Open the checkpoints in `folder`, of which the newest is kept, for one process at a time.

    What a killed writer left half-written is removed. Raises InputError where the folder is a link, damaged, or cannot
    be written.
    """
    make_folder(folder)
    # Not in the background: the next call of the program reuses the memory that is being written.
    options = ocp.CheckpointManagerOptions(
        max_to_keep=1, enable_async_checkpointing=False, cleanup_tmp_directories=True
    )
    handlers = {"state": ocp.StandardCheckpointHandler(), "log": ocp.JsonCheckpointHandler()}
    with _quiet(), plain_name(folder.resolve()) as name:
        try:
            manager = ocp.CheckpointManager(name, options=options, item_handlers=handlers)
        except Exception as error:  # whatever orbax raises on damaged files
            raise InputError(f"{folder}: cannot be opened ({_brief(error)})") from None
        with manager:
            yield manager


def save(manager: ocp.CheckpointManager, step: int, state: Any, log: list[dict[str, Any]]) -> None:
    """Write a checkpoint, then forget the one before; raises InputError where the disk is full or cannot be written."""
    parts = ocp.args.Composite(state=ocp.args.StandardSave(_plain(state)), log=ocp.args.JsonSave(log))
    try:
        manager.save(step, args=parts)
    except Exception as error:
        # The storage below orbax raises a ValueError for what the system refuses, and tells its number.
        number = re.search(r"os_error_code='(\d+)'", str(error))
        if number is None and not isinstance(error, OSError):
            raise
        reason = os.strerror(int(number[1])) if number else getattr(error, "strerror", None) or error
        raise InputError(f"{_folder(manager)}: cannot be written ({reason}); the checkpoint before is kept") from None


def restore(manager: ocp.CheckpointManager, like: Any, mesh: Mesh) -> tuple[Any, Any] | None:
    """Return the newest state, of the shapes `like` [S, ...], on the devices of `mesh`, and its log, any JSON.

    Returns None where there is no checkpoint. Raises InputError for one that is damaged or of another run.
    """
    step = manager.latest_step()
    if step is None:
        return None
    # Not where the file says it was: those devices may not be here.
    places = [NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), mesh.axis_names)]
    plain = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=places[x.ndim > 0]), jax.eval_shape(_plain, like)
    )
    parts = ocp.args.Composite(state=ocp.args.StandardRestore(plain), log=ocp.args.JsonRestore())
    try:
        _check_shapes(manager.item_metadata(step)["state"], plain)
        found = manager.restore(step, args=parts)
    except Exception as error:  # whatever orbax and its storage raise on damaged files
        raise InputError(f"{_folder(manager)}: checkpoint {step} cannot be read ({_brief(error)})") from None
    return jax.tree.map(_as_was, found["state"], like), found["log"]


def _folder(manager: ocp.CheckpointManager) -> Path:
    """Return the folder's own name, where the manager was given another."""
    return Path(manager.directory).resolve()


def _check_shapes(found: Any, wanted: Any) -> None:
    """Raise ValueError for an array of another shape, or in pieces larger than itself, before it takes any memory."""
    arrays = _named(found.tree)
    for name, like in _named(wanted).items():
        if name not in arrays:
            continue  # which orbax tells
        shape, pieces = arrays[name].shape, arrays[name].storage.chunk_shape
        if shape != like.shape:
            raise ValueError(f"{name} is {list(shape)}, expected {list(like.shape)}")
        if any(piece > size for piece, size in zip(pieces, shape, strict=True)):
            raise ValueError(f"{name} is stored in pieces of {list(pieces)}")


def _named(tree: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in jax.tree.leaves_with_path(tree)}


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


def _brief(error: Exception) -> str:
    return f"{' '.join(str(error).split()):.120}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Have orbax not log what it raises."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
