"""The wmjax side of `attack_step.py`: the public attack, with a thread and a CPU device a core, as studies run it."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

from wmjax import runtime

runtime.use_all_cores()
runtime.use_compilation_cache()

import jax  # noqa: E402
import numpy as np  # noqa: E402

import wmjax  # noqa: E402
from benchmarks.frames import EPS, STEPS, Frames, random_frames  # noqa: E402
from wmjax.agents.base import Belief, Params, Prediction, Victim  # noqa: E402
from wmjax.attacks import (  # noqa: E402
    OPTIMIZERS,
    Attack,
    Frame,
    Perturbed,
    Problem,
    Threat,
    ball,
    draw,
    maximise,
    perturb,
    threat,
)

DEVICES = jax.local_devices()
ATTACK = Attack(OPTIMIZERS["pgd"](STEPS), noise="shared")
CALL = 8
"""Most frames that share a compiled call."""

Call = tuple[Params, Frames, jax.Array, Threat]

jax.tree_util.register_dataclass(Frames)
_agent: list = []


def load_checkpoint(path: str) -> None:
    """Convert and load the agent that the other side wrote."""
    wmjax.convert(path, f"{path}.safetensors", stoch=32, agent="r2dreamer")
    victim, params = wmjax.load(f"{path}.safetensors")
    _agent[:] = [victim, [jax.device_put(params, device) for device in DEVICES]]


def _predict(victim: Victim, params: Params, frames: Frames) -> Prediction:
    return victim.predict(params, Belief(frames.stoch, frames.deter), frames.action)


@partial(jax.jit, static_argnums=(0, 1))
def step(attack: Attack, victim: Victim, params: Params, frames: Frames, key: jax.Array, threat: Threat) -> Perturbed:
    """Attack a frame of every episode, together with what comes once a frame: h_t, the prior and the clean pass."""
    prediction = _predict(victim, params, frames)
    embedding = victim.embed(params, frames.image)
    drawn = draw(victim, jax.random.split(key, len(frames.image)))
    frame = Frame(frames.image, embedding, prediction, frames.gumbel)
    return perturb(attack, victim, params, frame, drawn, threat)


@partial(jax.jit, static_argnums=(0, 1))
def value_step(
    attack: Attack, victim: Victim, params: Params, frames: Frames, key: jax.Array, threat: Threat
) -> tuple[Perturbed, Belief]:
    """Attack the value as `step` does, by a program that knows no other objective; the clean pass is returned."""
    prediction = _predict(victim, params, frames)
    clean, _ = victim.update(params, prediction, victim.embed(params, frames.image), frames.gumbel)

    def loss(image: jax.Array) -> jax.Array:
        _, internals = victim.update(params, prediction, victim.embed(params, image), frames.gumbel)
        return -internals.value

    problem = Problem(frames.image, ball(frames.image, threat.eps), threat.eps, frames.image)
    return maximise(loss, attack.optimizer, problem), clean


WAYS: dict[str, tuple[Callable, str]] = {"all": (step, "vsa"), "critic": (step, "critic"), "value": (value_step, "vsa")}
"""Program and objective: that of all objectives, told to climb two of them, and that of one."""


@partial(jax.jit, static_argnums=0)
def _loss(victim: Victim, params: Params, frames: Frames, image: jax.Array) -> jax.Array:
    _, internals = victim.update(params, _predict(victim, params, frames), victim.embed(params, image), frames.gumbel)
    return -internals.value


@cache
def _calls(objective: str, batch: int) -> list[Call]:
    """Return the calls that make up a batch; call i belongs to device i modulo their number."""
    victim, params = _agent
    groups, classes = victim.latent_shape
    frames = random_frames(batch, stoch=groups, discrete=classes, deter=victim.deter, action=victim.action_size)
    most = min(CALL, -(-batch // len(DEVICES)))
    size = max(size for size in range(1, most + 1) if batch % size == 0)
    calls = []
    for index in range(batch // size):
        worker = index % len(DEVICES)
        part = jax.tree.map(lambda x: x[index * size : (index + 1) * size], frames)  # noqa: B023
        rest = part, jax.random.key(index), threat([objective] * size, [EPS] * size)
        calls.append((params[worker], *jax.device_put(rest, DEVICES[worker])))
    return calls


def _attack(way: str, batch: int) -> list:
    """Run a batch's calls, those of a device one after the other."""
    program, objective = WAYS[way]
    victim, calls, device_workers = _agent[0], _calls(objective, batch), len(DEVICES)
    one = lambda call: jax.block_until_ready(program(ATTACK, victim, *call))  # noqa: E731
    run = lambda worker: [one(call) for call in calls[worker::device_workers]]  # noqa: E731
    with ThreadPoolExecutor(device_workers) as pool:
        by_device = list(pool.map(run, range(device_workers)))
    return [by_device[index % device_workers][index // device_workers] for index in range(len(calls))]


def attack(way: str, batch: int) -> tuple[float, float]:
    """Attack one batch of frames: wall and processor seconds."""
    _calls(WAYS[way][1], batch)
    wall, cpu = time.perf_counter(), time.process_time()
    _attack(way, batch)
    return time.perf_counter() - wall, time.process_time() - cpu


def losses(batch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the losses [B] of the clean and of the attacked frames, and the attacked images."""
    victim, calls, results = _agent[0], _calls("vsa", batch), _attack("all", batch)
    last = [_loss(victim, params, frames, x.image) for (params, frames, *_), x in zip(calls, results, strict=True)]
    first, images = ([getattr(x, name) for x in results] for name in ("loss_first", "image"))
    return np.concatenate(first), np.concatenate(last), np.concatenate(images)


def value_images(batch: int) -> np.ndarray:
    """Return the images that the program of the value alone finds."""
    return np.concatenate([attacked.image for attacked, _ in _attack("value", batch)])
