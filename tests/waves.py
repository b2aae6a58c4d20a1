"""A small agent in a cheap closed loop, for tests of attacks on whole episodes."""

from dataclasses import dataclass

import jax
import numpy as np

import wmjax
from wmjax import rollout
from wmjax.agents.base import Params
from wmjax.agents.dreamer import Dreamer
from wmjax.attacks import Attack, optimizer, threat
from wmjax.attacks.defenses import defense_strength

VICTIM = Dreamer(
    agent="r2dreamer", action_size=2, stoch=4, discrete=4, deter=16, hidden=8, units=8, blocks=2, depths=(4, 6),
    kernel_size=3, minres=4, dyn_layers=1, img_layers=1, obs_layers=1, actor_layers=1, critic_layers=1, reward_layers=1,
    cont_layers=1, bins=15,
)  # fmt: skip
NAMES = ("random", "pda", "pea", "vsa", "lda", "dca")
BATCH = len(NAMES)
T = 6
FULL = np.ones(T, bool)
PGD = Attack(optimizer("pgd", 3))
SEEDS = [20, 21, 22, 23, 24, 25]


@dataclass(frozen=True)
class State:
    phase: np.ndarray  #: [B]
    reward: np.ndarray  #: [B]
    nan: np.ndarray  #: [B]


class Waves:
    """An environment of moving stripes: what the agent does moves them further, and some of them are 0 or 255."""

    spec = wmjax.envs.spec("dmc_reacher_easy")

    def __init__(self, size: int = VICTIM.image_size, diverging: tuple[int, ...] = ()) -> None:
        self.stripes = np.multiply.outer(np.indices((size, size)).sum(axis=0), [0.3, 0.5, 0.7])
        self.diverging = diverging
        self.actions: list[np.ndarray] = []

    def reset(self, seeds):
        phase = np.asarray(seeds, np.float64)
        return State(phase, np.zeros(len(phase)), np.zeros(len(phase), bool))

    def step(self, state, action):
        assert action.shape == (len(state.phase), VICTIM.action_size)
        assert np.isfinite(action).all()
        self.actions.append(action)
        phase = state.phase + 0.3 + action @ [0.5, 0.25]
        return State(phase, np.cos(phase), state.nan | np.isin(np.arange(len(phase)), self.diverging))

    def image(self, state):
        waves = 128 + 140 * np.sin(state.phase[:, None, None, None] + self.stripes)
        return np.clip(waves, 0, 255).astype(np.uint8)


def weights(victim: Dreamer = VICTIM, seed: int = 0) -> Params:
    """Return random weights of an agent."""
    rng = np.random.default_rng(seed)  # compiling `init` would cost more than all else here
    shapes = jax.eval_shape(victim.init, jax.random.key(0))
    weights = jax.tree.map(lambda leaf: rng.normal(0, 0.5, leaf.shape).astype(np.float32), shapes)
    return jax.device_put(weights, jax.devices()[0])


def keys(seeds, stream):
    return jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32) * 2 + stream)


def arrays(trace) -> dict:
    """Return all that a trace holds, by name."""
    return {name: value for name, value in vars(trace).items() if name != "diagnostics"} | trace.diagnostics


def play(params, attack=PGD, names=NAMES, eps=0.25, mask=FULL, seeds=SEEDS, env=None, record=range(BATCH), **kwargs):
    aim = threat(names, np.broadcast_to(np.asarray(eps), len(names)), defense_strength(attack.defense))
    return rollout.host(
        VICTIM, params, env or Waves(), attack, aim, mask, seeds=seeds,
        keys=keys(seeds, 0), attack_keys=keys(seeds, 1), record=list(record), **kwargs,
    )  # fmt: skip
