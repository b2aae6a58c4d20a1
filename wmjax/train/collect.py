"""The agent at play: N episodes side by side that never end, each followed by the next."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct

from wmjax.agents.base import Belief, Params
from wmjax.agents.dreamer import Dreamer
from wmjax.envs import dmc
from wmjax.envs.device import begin, go_on, look
from wmjax.render.scene import Scene
from wmjax.train.replay import Moment, classes


@struct.dataclass
class Task:
    """What is played, as arrays: sibling tasks share programs."""

    params: dmc.Params
    scene: Scene
    steps: jax.Array  #: [] int32, T, agent steps of an episode


@struct.dataclass
class Play:
    """Where the N episodes stand."""

    worlds: dmc.EnvState  #: [N, ...]
    belief: Belief  #: [N] before the next frame
    action: jax.Array  #: [N, A] taken before it
    t: jax.Array  #: [] int32, agent steps done in this episode
    score: jax.Array  #: [N] reward so far in this episode
    scores: jax.Array  #: [N] returns of the episodes before, NaN as long as there are none


def begin_play(victim: Dreamer, world: dmc.DmcEnv, task: Task, envs: int, key: jax.Array) -> Play:
    """Start N = `envs` episodes; the key is consumed."""
    return Play(
        worlds=begin(world, task.params, jax.random.split(key, envs)),
        belief=victim.initial(envs),
        action=jnp.zeros((envs, victim.action_size)),
        t=jnp.zeros((), jnp.int32),
        score=jnp.zeros(envs),
        scores=jnp.full(envs, jnp.nan, jnp.float32),
    )


def play(
    victim: Dreamer, world: dmc.DmcEnv, params: Params, task: Task, now: Play, key: jax.Array
) -> tuple[Play, Moment]:
    """See a frame, and act on it by a sample of the policy; behind an episode's last frame the next one begins.

    The agent remembers the action as it was drawn; the world takes it clipped into [-1, 1]. The key is consumed.
    """
    of_latent, of_action, of_worlds = jax.random.split(key, 3)
    envs = len(now.score)
    image = look(task.scene, now.worlds)
    prediction = victim.predict(params, now.belief, now.action)
    embedding = victim.embed(params, image.astype(jnp.float32) / 255)
    noise = jax.random.gumbel(of_latent, (envs, *victim.latent_shape))
    belief, internals = victim.update(params, prediction, embedding, noise)
    last = now.t == task.steps
    drawn = internals.policy.sample(jax.random.normal(of_action, now.action.shape))
    action = jnp.where(last, 0.0, drawn)
    moment = Moment(
        image=image,
        action=action,
        reward=now.worlds.reward.astype(jnp.float32),
        is_first=jnp.full(envs, now.t == 0),
        is_last=jnp.full(envs, last),
        stoch=classes(belief.stoch),
        deter=belief.deter,
    )
    score = now.score + moment.reward
    on = lambda: Play(  # noqa: E731
        go_on(world, now.worlds, jnp.clip(action, -1.0, 1.0)), belief, action, now.t + 1, score, now.scores
    )
    again = lambda: replace(begin_play(victim, world, task, envs, of_worlds), scores=score)  # noqa: E731
    return jax.lax.cond(last, again, on), moment
