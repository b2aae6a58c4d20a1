"""The clean return of a shipped agent on the device and on the host, in twenty episodes each."""

import jax
import numpy as np

from benchmarks.control import stacked, state_of, suite
from wmjax import attacks, envs, rollout
from wmjax.agents import zoo
from wmjax.envs import dmc

SEEDS = np.arange(20, 40)


def starts(task: str) -> dict[str, np.ndarray]:
    """Return the states in which the host's episodes of `SEEDS` start, by the argument names of `state_at`."""
    spec, states = envs.spec(task), []
    for seed in SEEDS:
        env = suite.load(spec.domain, spec.name, task_kwargs={"random": int(seed)})
        env.reset()
        states.append(state_of(env.physics))
    return stacked(states)


def return_columns(task: str) -> dict[str, float]:
    """Return mean returns, and how much larger those on the device are, with the standard error (`_se`).

    On the device, an episode has a start of its own from the same distribution, or, where it is `paired`, the host's
    start; the agent's latent noise is the host's in both. Nothing for a task that no shipped agent plays.
    """
    found = [name for name in zoo.names() if zoo.card(name).task == task]
    if not found:
        return {}
    victim, params = zoo.load(found[0])
    attack, aim = attacks.Attack(), attacks.threat(["clean"] * len(SEEDS), [0.0] * len(SEEDS))
    clean = np.zeros(envs.spec(task).episode_steps, bool)
    keys = jax.vmap(jax.random.key)(SEEDS.astype(np.uint32))
    with envs.make(task, "host", len(SEEDS), workers=2) as env:
        host = rollout.host(victim, params, env, attack, aim, clean, seeds=SEEDS, keys=keys, attack_keys=keys).returns
    env = envs.make(task, "device", len(SEEDS))
    play = jax.jit(rollout.scan, static_argnums=(0, 1, 2))

    def device(worlds: dmc.EnvState) -> np.ndarray:
        loop = rollout.start(victim, worlds, len(clean))
        _, past = play(victim, attack, env.world, params, env.scene, loop, aim, clean, keys, keys)
        return np.asarray(past.reward, np.float64).sum(axis=0)

    own, paired = device(env.reset(SEEDS).worlds), device(env.state_at(**starts(task)).worlds)
    row = {f"return_{name}": values.mean() for name, values in (("host", host), ("device", own), ("paired", paired))}
    row |= {"return_device_more": own.mean() - host.mean(), "return_paired_more": (paired - host).mean()}
    row |= {"return_device_se": np.sqrt((own.var(ddof=1) + host.var(ddof=1)) / len(SEEDS))}
    row |= {"return_paired_se": (paired - host).std(ddof=1) / np.sqrt(len(SEEDS))}
    return {name: float(value) for name, value in row.items()}
