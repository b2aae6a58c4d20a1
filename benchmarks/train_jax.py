"""The wmjax side of `train.py`: its own updates in one compiled loop, on all cores or a run a core."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import wmjax
from wmjax import runtime
from wmjax.agents.base import Belief
from wmjax.agents.dreamer import Dreamer
from wmjax.train import learner as learning
from wmjax.train.batch import Batch, draw
from wmjax.train.learner import Learner, Metrics
from wmjax.train.optimizer import optimizer
from wmjax.train.recipe import Recipe


@dataclass
class Training:
    """An agent in training on one device, with the batches of a timed run."""

    victim: Dreamer
    recipe: Recipe
    learner: Learner
    batches: Batch
    key: jax.Array

    def run(self) -> Metrics:
        """Do the updates of all batches, and return what each logged."""
        self.learner, metrics = updates(self.victim, self.recipe, self.learner, self.batches, self.key)
        return jax.block_until_ready(metrics)


_trainings: list[Training] = []


def use_cores(a_run_a_core: bool) -> None:
    """Say how the cores are used, before JAX computes: by the threads of one run, or by a run each."""
    if a_run_a_core:
        runtime.use_all_cores()
    runtime.use_compilation_cache()


def begin(agent: str, sequences: dict[str, np.ndarray], path: str) -> None:
    """Convert and load the agent that the other side wrote; one training on every device."""
    wmjax.convert(path, f"{path}.safetensors", stoch=sequences["stoch"].shape[-2], agent=agent)
    victim, params = wmjax.load(f"{path}.safetensors")
    _, size, length = sequences["reward"].shape
    recipe = Recipe(batch_size=size, batch_length=length)
    arrays = {name: jnp.asarray(part) for name, part in sequences.items()}
    batches = Batch(initial=Belief(arrays.pop("stoch"), arrays.pop("deter")), **arrays)
    trained, _ = learning.split(params)
    learner = Learner(params, optimizer(victim, recipe).init(trained), jnp.zeros((), jnp.int32))
    state = learner, batches, jax.random.key(0)
    _trainings[:] = [Training(victim, recipe, *jax.device_put(state, device)) for device in jax.local_devices()]


@partial(jax.jit, static_argnums=(0, 1))
def updates(
    victim: Dreamer, recipe: Recipe, learner: Learner, batches: Batch, key: jax.Array
) -> tuple[Learner, Metrics]:
    """Do an update with every batch: the agent after them, and what each logged."""

    def one(learner: Learner, given: tuple[Batch, jax.Array]) -> tuple[Learner, Metrics]:
        learner, _, metrics = learning.update(victim, recipe, learner, *given)
        return learner, metrics

    return jax.lax.scan(one, learner, (batches, jax.random.split(key, len(batches.reward))))


def losses() -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Return the loss terms of the first update, and the noise that it drew."""
    now, *_ = _trainings
    metrics = now.run()
    terms = {name.removeprefix("loss/"): float(term[0]) for name, term in metrics.items() if name.startswith("loss/")}
    updates, size, length = now.batches.reward.shape
    noise = draw(now.victim, now.recipe, size, length, jax.random.split(now.key, updates)[0])
    return terms, {name: np.asarray(part) for name, part in vars(noise).items() if part is not None}


def run() -> tuple[float, float]:
    """Do the updates of all batches in every training at once: wall and processor seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(len(_trainings)) as pool:
        list(pool.map(Training.run, _trainings))
    return time.perf_counter() - wall, time.process_time() - cpu
