"""Strict JAX settings for every test, and where the golden outputs of the PyTorch agents lie."""

import gc
import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests run side by side: PyTorch's threads would wait for each other, spinning, many times as long as they compute.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jax
import numpy as np
import pytest
from hypothesis import settings
from programs import QUICK

import wmjax
from wmjax import runtime
from wmjax.agents.dreamer import Dreamer

runtime.use_compilation_cache()
# Small programs too: each module compiles much the same hundred.
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Tracing makes many objects and little garbage.
gc.set_threshold(50_000, 20, 20)

# The first example of a test compiles; and the same examples every time keep the suite's verdict the same.
settings.register_profile("wmjax", deadline=None, derandomize=True, database=None)
settings.load_profile("wmjax")

SHARED = Path(os.environ.get("WMJAX_SHARED", Path(__file__).parents[2] / "shared"))
GOLDENS = {
    "tiny_dreamer": ("latest.pt", 8, "dreamer"),
    "tiny_r2dreamer": ("latest.pt", 8, "r2dreamer"),
    "tiny_infonce": ("latest.pt", 8, "infonce"),
    "tiny_dreamerpro": ("latest.pt", 8, "dreamerpro"),
    "m12_r2dreamer": ("model.pt", 32, "r2dreamer"),
}


UNUSUAL_SETTINGS = {
    "jax_enable_x64": True,
    "jax_default_prng_impl": "rbg",
    "jax_threefry_partitionable": False,
    "jax_default_matmul_precision": "bfloat16",
    "jax_softmax_custom_jvp": True,
    "jax_disable_jit": True,
    "jax_debug_nans": True,
    "jax_debug_infs": True,
    "jax_debug_key_reuse": True,
    "jax_check_tracer_leaks": True,
    "jax_enable_checks": True,
    "jax_thread_guard": True,
    "jax_transfer_guard": "disallow",
}
"""Settings of JAX that change results or end a computation, each with another value than its usual one."""


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """Let go of a module's compiled programs: they are so many that a process could not map them all in memory."""
    yield
    jax.clear_caches()


@pytest.fixture
def setting():
    """A function that sets JAX for all of the process, as the environment or a program would, until the test ends."""
    before = {name: jax.config.values[name] for name in UNUSUAL_SETTINGS}
    yield lambda **values: [jax.config.update(name, value) for name, value in values.items()]
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with golden data and trained checkpoints."""
    if not (SHARED / "golden").is_dir():
        pytest.skip(f"no golden data of the PyTorch agents in {SHARED}; set WMJAX_SHARED to its folder")
    return SHARED


@pytest.fixture(scope="session", params=list(GOLDENS))
def golden(request, shared, tmp_path_factory):
    """(victim, params, arrays) of one golden folder, converted by the project's converter."""
    pytest.importorskip("torch", reason="converting a PyTorch checkpoint needs torch")
    file, stoch, agent = GOLDENS[request.param]
    folder = shared / "golden" / request.param
    out = tmp_path_factory.mktemp("golden") / f"{request.param}.safetensors"
    wmjax.convert(folder / file, out, stoch=stoch, agent=agent)
    victim, params = wmjax.load(out)
    with np.load(folder / "golden.npz") as arrays:
        return victim, params, dict(arrays)


@pytest.fixture
def record_property(record_property):
    """As pytest's, and for NumPy's numbers too: between its processes only Python's own travel."""
    return lambda name, value: record_property(name, float(value))


@pytest.fixture
def agrees(record_property):
    """Assert that two arrays differ by at most `tolerance` of the second's largest magnitude; the error is recorded."""

    def check(what: str, got, want, tolerance: float = 2e-5) -> None:
        got, want = np.asarray(got), np.asarray(want)
        assert got.shape == want.shape, what
        scale = max(np.abs(want).max(initial=0.0), np.finfo(np.float32).tiny)
        error = float(np.abs(got - want).max(initial=0.0) / scale)
        record_property(what, error)
        assert error <= tolerance, f"{what} differs by {error:.3g} of its scale"

    return check


@pytest.fixture(scope="session")
def tiny():
    """(victim, params) of a small random agent that sees 16 x 16 images; its policy and value do depend on them."""
    victim = Dreamer(
        agent="dreamer",
        action_size=2,
        stoch=4,
        discrete=4,
        deter=32,
        hidden=16,
        units=16,
        blocks=4,
        depths=(8, 8),
        kernel_size=5,
        minres=4,
        dyn_layers=1,
        img_layers=2,
        obs_layers=1,
        actor_layers=3,
        critic_layers=3,
        reward_layers=1,
        cont_layers=1,
        bins=31,
        decoder_units=32,
        decoder_blocks=4,
    )
    return victim, jax.jit(victim.init, compiler_options=QUICK)(jax.random.key(0))
