"""Training as a pure function: rounds of playing and learning, from one state to the next."""

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct

from wmjax.agents.dreamer import Dreamer
from wmjax.envs import dmc
from wmjax.train import learner as learning
from wmjax.train.collect import Play, Task, begin_play, play
from wmjax.train.learner import Learner, Metrics
from wmjax.train.recipe import Recipe
from wmjax.train.replay import Replay, empty, refresh, sample, write


@dataclass(frozen=True)
class Plan:
    """The static choices of a run: one program for each."""

    victim: Dreamer
    recipe: Recipe
    world: dmc.DmcEnv
    capacity: int  #: L, moments that the replay has room for

    @property
    def round(self) -> tuple[int, int]:
        """Moments played in a round, and updates after them: as few as the train ratio allows."""
        recipe = self.recipe
        share = Fraction(recipe.env_num * recipe.train_ratio, recipe.batch_size * recipe.batch_length)
        return share.denominator, share.numerator


@struct.dataclass
class Training:
    """All that a run is at one time: what goes on from here is decided."""

    learner: Learner
    play: Play
    replay: Replay
    key: jax.Array  #: of what is drawn from now on


def untrained(plan: Plan, key: jax.Array) -> Learner:
    """Return the agent that a run with this key begins with."""
    return learning.init(plan.victim, plan.recipe, jax.random.fold_in(key, 0))


def start(plan: Plan, task: Task, key: jax.Array) -> Training:
    """Return the untrained agent after its first moments, enough for a batch; the key is consumed."""
    of_worlds, of_play, later = jax.random.split(jax.random.fold_in(key, 1), 3)
    recipe, learner = plan.recipe, untrained(plan, key)
    now = begin_play(plan.victim, plan.world, task, recipe.env_num, of_worlds)
    turn = partial(play, plan.victim, plan.world, learner.params, task)
    _, like = jax.eval_shape(turn, now, of_play)
    replay = empty(like, plan.capacity)

    def one(carry: tuple[Play, Replay], key: jax.Array) -> tuple[tuple[Play, Replay], None]:
        now, moment = turn(carry[0], key)
        return (now, write(carry[1], moment)), None

    (now, replay), _ = jax.lax.scan(one, (now, replay), jax.random.split(of_play, recipe.batch_length + 2))
    return Training(learner, now, replay, later)


def rounds(plan: Plan, task: Task, training: Training, number: int) -> tuple[Training, Metrics]:
    """Return the state after so many rounds, and the means of what the updates logged."""
    moments, updates = plan.round

    def one_moment(training: Training, key: jax.Array) -> tuple[Training, None]:
        now, moment = play(plan.victim, plan.world, training.learner.params, task, training.play, key)
        return replace(training, play=now, replay=write(training.replay, moment)), None

    def one_update(training: Training, key: jax.Array) -> tuple[Training, Metrics]:
        of_batch, of_update = jax.random.split(key)
        recipe = plan.recipe
        batch, where = sample(plan.victim, training.replay, recipe.batch_size, recipe.batch_length, of_batch)
        learner, belief, metrics = learning.update(plan.victim, recipe, training.learner, batch, of_update)
        return replace(training, learner=learner, replay=refresh(training.replay, where, belief)), metrics

    def one_round(training: Training, _: None) -> tuple[Training, Metrics]:
        of_moments, of_updates, later = jax.random.split(training.key, 3)
        training, _ = jax.lax.scan(one_moment, training, jax.random.split(of_moments, moments))
        training, metrics = jax.lax.scan(one_update, training, jax.random.split(of_updates, updates))
        return replace(training, key=later), jax.tree.map(jnp.mean, metrics)

    training, metrics = jax.lax.scan(one_round, training, length=number)
    return training, jax.tree.map(jnp.mean, metrics)
