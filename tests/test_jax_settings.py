"""Whatever JAX is set to, by the environment or in Python, results are the same, or the setting is refused by name."""

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import UNUSUAL_SETTINGS
from programs import QUICK

import wmjax
from wmjax import attacks, rollout
from wmjax.core import jax_settings
from wmjax.core.errors import InputError
from wmjax.core.image import LEVELS
from wmjax.core.jax_settings import arithmetic, fixed_settings
from wmjax.study.schema import CELL, TIMING
from wmjax.study.store import read_manifest
from wmjax.train.run import train

BATCH = 4
KEY = partial(jax.random.key, impl=jax_settings.GENERATOR)
STUDY = """
victims = ["dmc_cartpole_balance_r2dreamer_1m"]
objectives = ["random", "vsa"]
optimizers = ["pgd"]
budgets = ["8/255"]
seeds = [20]
steps = 2
episode_steps = 3
"""


def assert_same(got, want) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(plain(one), plain(other), strict=True)


def plain(x) -> np.ndarray:
    return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)


def given(victim) -> tuple[np.ndarray, ...]:
    """An image [B, H, W, C], latent noise [B, G, K] and an action [B, A]: NumPy's, so that no setting changes them."""
    rng = np.random.default_rng(0)
    image = LEVELS[rng.integers(0, 256, (BATCH, victim.image_size, victim.image_size, 3))]
    noise = rng.gumbel(size=(BATCH, *victim.latent_shape))
    return image, noise.astype(np.float32), rng.uniform(-1, 1, (BATCH, victim.action_size)).astype(np.float32)


def attacked_frame(optimizer, victim, params, image, noise, action, keys):
    """Everything that README shows of one attacked frame."""
    prediction = victim.predict(params, victim.initial(BATCH), action)
    frame = attacks.Frame(image, victim.embed(params, image), prediction, noise)
    belief, internals = victim.update(params, prediction, frame.embedding, noise)
    defense = attacks.defense("noise")
    attack = attacks.Attack(attacks.optimizer(optimizer, 2), defense=defense, adaptive=True, draws=2)
    strength = attacks.defense_strength(defense, 0.04)
    threat = attacks.threat(["vsa", "pda", "critic", "random"], [8 / 255] * 4, strength=strength)
    perturbed = attacks.perturb(attack, victim, params, frame, attacks.draw(victim, keys), threat)
    return belief, internals, perturbed


@pytest.mark.parametrize("optimizer", ["pgd_random_start", "square"])
def test_an_attack_is_the_same_in_a_caller_s_own_program(optimizer, tiny, setting):
    compiled = jax.jit(attacked_frame, static_argnums=(0, 1), compiler_options=QUICK)
    arguments = (optimizer, *tiny, *given(tiny[0]), jax.random.split(KEY(1), BATCH))
    want = compiled(*arguments)
    own = dict.fromkeys(("jax_disable_jit", "jax_thread_guard", "jax_enable_checks"), False)  # of the caller's program
    setting(**UNUSUAL_SETTINGS | own)
    with jax.transfer_guard("allow"):  # the caller's own arrays
        assert_same(compiled(*arguments), want)


def test_weights_are_drawn_the_same(tiny, setting):
    init = jax.jit(tiny[0].init, compiler_options=QUICK)
    want = init(KEY(0))
    setting(jax_enable_x64=True, jax_threefry_partitionable=False, jax_default_prng_impl="rbg")
    assert_same(init(KEY(0)), want)


def test_every_setting_is_fixed_inside_and_back_outside(setting):
    usual = {name: getattr(jax.config, name) for name in UNUSUAL_SETTINGS} | {
        "jax_default_matmul_precision": "highest",
        "jax_transfer_guard": "allow",
    }
    setting(**UNUSUAL_SETTINGS)
    with fixed_settings():
        assert {name: getattr(jax.config, name) for name in UNUSUAL_SETTINGS} == usual
    assert {name: getattr(jax.config, name) for name in UNUSUAL_SETTINGS} == UNUSUAL_SETTINGS


@pytest.mark.parametrize(
    ("name", "value"),
    [("jax_random_seed_offset", 7), ("jax_high_dynamic_range_gumbel", True), ("jax_no_execution", True)],
)
def test_what_cannot_be_fixed_is_refused_by_name(name, value, tiny, tmp_path):
    before = jax.config.values[name]
    jax.config.update(name, value)
    try:
        for compute in (
            lambda: wmjax.run(out=tmp_path / "out"),
            lambda: attacks.threat(["vsa"], [0.1]),
            lambda: train(None),
        ):
            with pytest.raises(InputError, match=f"{name} is {value}.*allowed: {before}"):
                compute()
    finally:
        jax.config.update(name, before)
    assert not (tmp_path / "out").exists()


def test_keys_of_another_generator_are_refused(tiny):
    keys = jax.random.split(jax.random.key(0, impl="rbg"), BATCH)
    with pytest.raises(InputError, match=r"keys are keys of rbg.*jax_default_prng_impl.*allowed: threefry2x32"):
        attacks.draw(tiny[0], keys)
    attack = attacks.Attack(), attacks.threat(["vsa"] * BATCH, [0.0] * BATCH), np.zeros(2, bool)
    env = wmjax.envs.make("dmc_cartpole_balance", "device", batch=BATCH)
    with pytest.raises(InputError, match="keys are keys of rbg"):
        rollout.device(*tiny, env, *attack, seeds=range(BATCH), keys=keys, attack_keys=keys)


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    """The file of a small study; beside it, in `plain`, are its results as they usually are."""
    path = tmp_path_factory.mktemp("study") / "study.toml"
    path.write_text(STUDY, encoding="utf-8")
    wmjax.run(path, path.with_name("plain"), batch=2)
    return path


def rows(folder: Path) -> list[dict]:
    table = pa.concat_tables(pq.read_table(path) for path in sorted((folder / "rows").iterdir()))
    return table.sort_by([(name, "ascending") for name in CELL]).drop_columns(list(TIMING)).to_pylist()


def test_a_study_is_the_same_where_jax_has_run_already(study, tmp_path, setting):
    setting(**UNUSUAL_SETTINGS)
    assert not wmjax.run(study, tmp_path / "out", batch=2).failed
    assert repr(rows(tmp_path / "out")) == repr(rows(study.with_name("plain")))
    identities = [read_manifest(folder)["identity"] for folder in (tmp_path / "out", study.with_name("plain"))]
    assert identities[0] == identities[1]


def test_physics_and_pixels_on_the_device_are_the_same(setting):
    env = wmjax.envs.make("dmc_cartpole_balance", "device", batch=2)
    play = lambda: env.step(env.reset([1, 2]), np.float32([[0.5], [-1.0]]))  # noqa: E731
    want = play()
    setting(**UNUSUAL_SETTINGS)
    assert_same(play(), want)


def test_a_study_is_the_same_in_a_fresh_process(study, tmp_path):
    surroundings = {name.upper(): str(value) for name, value in UNUSUAL_SETTINGS.items()}
    done = command(["run", study, "--out", tmp_path / "out", "--batch", "2"], **surroundings)
    assert done.returncode == 0, done.stderr
    assert repr(rows(tmp_path / "out")) == repr(rows(study.with_name("plain")))


FAST = "--xla_cpu_enable_fast_math=true"


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, {}),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=2 --xla_dump_to=/tmp/x"}, {}),
        ({"XLA_FLAGS": f"{FAST} --xla_force_host_platform_device_count=2"}, {"XLA_FLAGS": FAST}),
        ({"XLA_FLAGS": "flags.txt"}, {"XLA_FLAGS": FAST}),
        ({"NVIDIA_TF32_OVERRIDE": "0"}, {"NVIDIA_TF32_OVERRIDE": "0"}),
        ({"LIBTPU_INIT_ARGS": ""}, {}),
    ],
)
def test_what_changes_arithmetic_is_told(environment, found, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("flags.txt").write_text(f"{FAST}\n", encoding="utf-8")
    monkeypatch.setenv("XLA_FLAGS", "")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert arithmetic(jax.local_devices()) == found


def test_flags_in_a_file_stay_and_one_that_cannot_be_read_is_named(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("flags.txt").write_text(f"{' ' * 70_000}{FAST}\n", encoding="utf-8")
    monkeypatch.setenv("XLA_FLAGS", "flags.txt")
    wmjax.runtime.use_all_cores()
    assert os.environ["XLA_FLAGS"].startswith(f"{FAST} --xla_force_host_platform_device_count=")
    os.mkfifo("pipe")
    for name in ("absent.txt", "pipe", "."):
        monkeypatch.setenv("XLA_FLAGS", name)
        with pytest.raises(InputError, match=f"XLA_FLAGS is '{name}', neither flags nor a file of flags"):
            wmjax.runtime.use_all_cores()


def test_settings_of_the_compiler_and_other_devices_are_told():
    @dataclass
    class Device:
        device_kind: str
        platform: str = "gpu"

    assert arithmetic([Device("H200"), Device("H200")]) == {"device": "H200"}
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        assert arithmetic(jax.local_devices()) == {"jax_disable_most_optimizations": "True"}
    finally:
        jax.config.update("jax_disable_most_optimizations", False)


def test_a_folder_keeps_to_one_arithmetic(study, monkeypatch):
    """It is refused, and stays as it is, where a flag of XLA was not set before."""
    before = read_manifest(study.with_name("plain"))
    monkeypatch.setenv("XLA_FLAGS", FAST)
    with pytest.raises(InputError, match=f"holds the results of another study.*XLA_FLAGS is '{FAST}', the folder has"):
        wmjax.run(study, study.with_name("plain"), batch=2)
    assert read_manifest(study.with_name("plain")) == before


@pytest.mark.parametrize("platform", ["cuda", "gpu", "tpu", "cpu "])
def test_a_back_end_that_does_not_start_is_one_line(platform, study, tmp_path):
    for arguments in (["run", study, "--out", tmp_path / "out"], ["train", "--task", "dmc_cartpole_balance"]):
        done = command(arguments, JAX_PLATFORMS=platform)
        assert done.returncode == 2
        assert done.stderr.startswith(f"wmjax: JAX_PLATFORMS is {platform!r}, which does not start (")
        assert done.stderr.endswith("; available here: cpu\n")
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def command(arguments: list, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "wmjax", *map(str, arguments)],
        env=os.environ | environment,
        capture_output=True,
        encoding="utf-8",
    )
