"""Whether a run can fit the machine, before anything is compiled or written."""

import math
from typing import Any

import jax
from jax.sharding import Mesh

from wmjax import runtime
from wmjax.core.errors import InputError
from wmjax.train.trainer import Plan


def check_memory(plan: Plan, training: Any, mesh: Mesh) -> None:
    """Raise InputError where the shapes [S, ...] of all that a run is, and of an update, plainly exceed the memory."""
    devices = list(mesh.devices.flat)
    room = runtime.memory(devices)
    seeds = training.replay.count.shape[0] // len(devices)
    arrays = (x for x in jax.tree.leaves(training) if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key))
    needed = sum(math.prod(x.shape) * x.dtype.itemsize for x in arrays) // len(devices) + seeds * _update(plan)
    if room is not None and needed > room:
        raise InputError(
            f"training needs at least {needed / 1e9:,.1f} GB of memory, and a device has {room / 1e9:,.1f} GB; "
            "allowed: fewer seeds, or a smaller max_size, batch_size, batch_length, imag_horizon or env_num"
        )


def _update(plan: Plan) -> int:
    """Return the bytes that an update of one seed keeps at least: the encoder's stages, and the imagined latents."""
    victim, recipe = plan.victim, plan.recipe
    each = victim.stage_size + (recipe.imag_horizon + 1) * victim.feature_size
    return 4 * recipe.batch_size * recipe.batch_length * each
