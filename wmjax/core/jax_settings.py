"""The JAX settings that results depend on, fixed while wmjax computes, whatever the environment or the caller has set.

`JAX_ENABLE_X64`, `JAX_THREEFRY_PARTITIONABLE` and others change random numbers and rounding. Every public function that
computes runs under `fixed_settings`, also inside a caller's own `jax.jit`. What no scope can fix is refused by name
(`_UNFIXABLE`), or is named by `arithmetic`, which is part of what identifies a results folder.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from wmjax.core import machine
from wmjax.core.errors import InputError

GENERATOR = "threefry2x32"
"""The random generator that all keys are of."""

_FIXED: dict[str, Any] = {
    # numbers
    "default_prng_impl": GENERATOR,
    "threefry_partitionable": True,
    "default_matmul_precision": "highest",
    "softmax_custom_jvp": False,
    "disable_jit": False,
    # errors that JAX raises on request, of which some would end an episode that has an outcome, such as NaN
    "debug_nans": False,
    "debug_infs": False,
    "debug_key_reuse": False,
    "check_tracer_leaks": False,
    "enable_checks": False,
    "no_tracing": False,
    "thread_guard": False,
    "transfer_guard": "allow",
}
"""Scopes of `jax`, by name, and the value of each."""

_UNFIXABLE: dict[str, Any] = {
    "jax_random_seed_offset": 0,
    "jax_high_dynamic_range_gumbel": False,
    "jax_no_execution": False,
    "jax_eager_constant_folding": False,
}
"""Settings that JAX has no scope for, and the only value of each that results are computed with."""

_COMPILER: dict[str, Any] = {
    "jax_compiler_enable_remat_pass": True,
    "jax_disable_most_optimizations": False,
    "jax_exec_time_optimization_effort": 0.0,
    "jax_optimization_level": "UNKNOWN",
    "jax_threefry_gpu_kernel_lowering": False,
    "jax_use_direct_linearize": True,
}
"""Settings that change how a program is compiled, and with it the last bits of what it computes; JAX's own values."""

_VARIABLES = ("LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE")
"""Environment variables that change arithmetic, besides XLA_FLAGS."""

_HARMLESS_FLAGS = re.compile(
    r"--(xla_cpu_multi_thread_eigen|xla_dump_\w+|xla_force_host_platform_device_count|xla_hlo_profile)(=.*)?"
)
"""XLA flags that change no result."""


@contextmanager
def fixed_settings(precision_of: jax.Array | None = None) -> Iterator[None]:
    """Compute with the settings that results depend on, in this thread; a context manager, and a decorator.

    64-bit numbers are on where `precision_of` is float64, which a caller must have asked for, and else off. Raises
    InputError for a setting that cannot be fixed.
    """
    for name, value in _UNFIXABLE.items():
        if (given := jax.config.values.get(name, value)) != value:
            raise InputError(f"{name} is {given!r:.80}, and results depend on it; allowed: {value!r}")
    with ExitStack() as scopes:
        for name, value in _FIXED.items():
            scopes.enter_context(getattr(jax, name)(value))
        scopes.enter_context(jax.enable_x64(getattr(precision_of, "dtype", None) == jnp.float64))
        yield


def arithmetic(devices: Sequence[Any]) -> dict[str, str]:
    """Return what changes the last bits of results on `devices` and cannot be fixed, by name; {} for plain CPUs.

    These are the kinds of accelerators, flags of XLA, environment variables and JAX's settings of its compiler.
    """
    found = {}
    if devices[0].platform != "cpu":
        found["device"] = ", ".join(sorted({device.device_kind for device in devices}))
    if flags := [flag for flag in machine.xla_flags() if not _HARMLESS_FLAGS.fullmatch(flag)]:
        found["XLA_FLAGS"] = " ".join(sorted(flags))
    found |= {name: os.environ[name] for name in _VARIABLES if os.environ.get(name)}
    for name, usual in _COMPILER.items():
        if (given := jax.config.values.get(name, usual)) != usual:
            found[name] = str(given)
    return found


def check_keys(name: str, keys: jax.Array) -> None:
    """Raise InputError where `keys`, which the caller knows as `name`, are of another generator."""
    if jnp.issubdtype(keys.dtype, jax.dtypes.prng_key) and str(jax.random.key_impl(keys)) != GENERATOR:
        raise InputError(
            f"{name} are keys of {jax.random.key_impl(keys)}, which jax_default_prng_impl may have chosen; "
            f"allowed: {GENERATOR}, as of jax.random.key(seed, impl={GENERATOR!r})"
        )
