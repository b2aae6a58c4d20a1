"""What a trained agent leaves behind: its weight file, and a card that says what it is worth."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from wmjax import envs, runtime
from wmjax.agents.base import Params
from wmjax.agents.dreamer import Dreamer
from wmjax.agents.weights import Card, write
from wmjax.core import machine
from wmjax.core.jax_settings import fixed_settings
from wmjax.train.card import Facts, Point, margin, write_card
from wmjax.train.evaluate import clean_returns, random_returns
from wmjax.train.job import Job
from wmjax.train.learner import split
from wmjax.train.multi_seed import agents, devices
from wmjax.train.run import Trained
from wmjax.train.trainer import untrained

SEEDS = range(20, 40)
"""Of the clean episodes that a card tells of."""

BACKENDS = ("device", "host")
"""What these are played on; the device comes first, for the agents that the trained one is compared with."""

CLEARLY = 5.0
"""Standard errors by which an agent must beat itself untrained, or its card warns."""

_CAVEAT = (
    "This agent is not clearly better than an untrained one: what attacks do to it says nothing about how robust a "
    "trained agent is."
)
_VERSIONS = ("wmjax", "jax", "mujoco")


@fixed_settings()
def finish(trained: Trained, seeds: range = SEEDS) -> list[Path]:
    """Write a weight file and a card for every seed's agent, and return the former's paths.

    Clean episodes of the agent, of itself untrained, and of random actions are played for the card.
    """
    job, plan, files = trained.job, trained.plan, []
    by_chance = {"device": random_returns(job.task, seeds)}
    for i, (seed, params) in enumerate(zip(job.seeds, agents(trained.state), strict=True)):
        name = job.name if len(job.seeds) == 1 else f"{job.name}_seed{seed}"
        path = job.folder / f"{name}.safetensors"
        _write(path, job, seed, plan.victim, params)
        before = untrained(plan, jax.random.key(seed)).params
        returns = {back: _returns(plan.victim, params, job.task, back, seeds, name) for back in BACKENDS}
        untaught = {"device": _returns(plan.victim, before, job.task, "device", seeds, "")}
        _, errors = margin(returns["device"], untaught["device"])
        facts = Facts(
            name=name,
            task=job.task,
            victim=plan.victim,
            size=job.size,
            parameters=sum(x.size for x in jax.tree.leaves(split(params)[0])),
            recipe=job.recipe,
            seed=seed,
            env_steps=trained.log[-1]["steps"],
            updates=trained.log[-1]["updates"],
            seconds=trained.log[-1]["seconds"],
            machine=_machine(len(job.seeds)),
            versions={package: job.identity["versions"][package] for package in _VERSIONS},
            command=job.command,
            seeds=seeds,
            trained=returns,
            untrained=untaught,
            random=by_chance,
            caveat=None if errors > CLEARLY else _CAVEAT,
            curve=[
                Point(row["steps"], row["episode/score"][i], scores[i] if scores else None)
                for row in trained.log
                for scores in [row.get("episode/eval_score")]
            ],
        )
        write_card(path.with_suffix(".md"), facts)
        files.append(path)
    return files


def _returns(victim: Dreamer, params: Params, task: str, backend: str, seeds: range, name: str) -> np.ndarray:
    """Return what the agent's clean episodes bring, those that a study of an agent of this name plays."""
    return clean_returns(victim, params, task, backend, seeds, workers=machine.cores(), name=name)


def _write(path: Path, job: Job, seed: int, victim: Dreamer, params: Params) -> None:
    origin = json.dumps(job.identity | {"seeds": [seed]}, sort_keys=True)
    card = Card(
        victim=replace(victim, horizon=job.recipe.horizon),
        task=job.task,
        action_repeat=envs.EnvSpec.action_repeat,
        source="wmjax train",
        source_sha256=hashlib.sha256(origin.encode()).hexdigest(),
    )
    write(path, card, {name: np.asarray(x) for name, x in flatten_dict(params, sep="/").items()})


def _machine(seeds: int) -> str:
    """Return what so many seeds were trained on, in words."""
    found, used = runtime.local_devices(), devices(seeds).size
    if found[0].platform != "cpu":
        return f"{used} x {found[0].device_kind}"
    cores = used if len(found) > 1 else machine.cores()  # a device a core, or one for all of them
    return f"{cores} CPU core{'s' * (cores > 1)}"
