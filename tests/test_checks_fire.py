"""Self-checks on real episodes: silent where attacks are sound, and each fired by the fault that it is there for."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

import wmjax
from wmjax.agents.dreamer import Dreamer
from wmjax.agents.weights import Card, template, write
from wmjax.attacks.optimizers import OPTIMIZERS, Optimizer
from wmjax.attacks.pgd import SIGN, Direction, IteratedGradient
from wmjax.core.image import LEVELS
from wmjax.envs.base import TASKS, EnvSpec
from wmjax.report import report
from wmjax.report.check_cells import cells
from wmjax.report.checks import CHECKS, check
from wmjax.report.load_results import read_rows
from wmjax.rollout import drivers, step
from wmjax.study import device_worker
from wmjax.study.spec import Study

GROUPS = 16
VICTIM = Dreamer(
    agent="r2dreamer", action_size=1, stoch=GROUPS, discrete=2, deter=4, hidden=2 * GROUPS, units=1, blocks=1,
    depths=(6,), kernel_size=3, minres=8, dyn_layers=0, img_layers=0, obs_layers=1, actor_layers=0, critic_layers=0,
    reward_layers=0, cont_layers=0, bins=41,
)  # fmt: skip
TASK = "toy_waves"
SPEC = EnvSpec(TASK, "toy", "waves", action_size=1, image_size=VICTIM.image_size, max_return=500.0)
T = 6
BUDGETS = SMALL, MIDDLE, LARGE = 0.004, 0.016, 0.2
"""With the first PGD is half successful, with the second wholly; with the third noise alone hurts."""

TINY = 1e-4
"""Flips no latent, or next to none."""

LAST = "rssm/obs_tail/out"
"""The posterior's last layer."""

DOWN = Direction(init=lambda image: (), update=lambda gradient, state: (-gradient, state))
"""After SIGN: the wrong way."""


@dataclass(frozen=True)
class State:
    phase: np.ndarray  #: [B]
    reward: np.ndarray  #: [B]
    nan: np.ndarray  #: [B]


def bold(action):
    """Pay for actions near 1: what the agent does, and what it values."""
    return (1 + action) / 2


class Waves:
    """A world of smooth moving stripes. With `luck`, episodes start where its own hidden generator says."""

    spec = SPEC

    def __init__(self, batch: int, pays: Callable[[np.ndarray], np.ndarray] = bold, luck: float = 0.0) -> None:
        self.batch, self.pays, self.luck = batch, pays, luck
        self.rng = np.random.default_rng(0)
        size = SPEC.image_size
        self.stripes = np.multiply.outer(np.indices((size, size)).sum(axis=0), [0.3, 0.5, 0.7])

    def reset(self, seeds):
        phase = np.asarray(seeds) + self.luck * self.rng.normal(size=self.batch)
        return State(phase, np.zeros(self.batch), np.zeros(self.batch, bool))

    def step(self, state, action):
        action = action[:, 0].astype(np.float64)
        return State(state.phase + 0.3 + 0.1 * action, self.pays(action), state.nan)

    def image(self, state):
        return (128 + 60 * np.sin(state.phase[:, None, None, None] + self.stripes)).astype(np.uint8)

    def close(self):
        pass


@pytest.fixture(scope="module")
def agent(tmp_path_factory) -> Path:
    """The weight file of an agent that is good in a world of waves, and can be talked out of it.

    Its action is tanh(2 m) and its value in proportion to what `bold` pays for that, where m in [-1, 1] grows with the
    share of its latents that say "waves". They are fitted to say so of the world's frames, and not of the same frames
    under strong noise.
    """
    rng = np.random.default_rng(0)
    flat = {
        name: np.ones(shape, np.float32) if name.endswith("scale") else rng.normal(0, 0.5, shape).astype(np.float32)
        for name, shape in template(VICTIM).items()
    }
    flat["rssm/obs_deter/kernel"] *= 0  # it looks at the image alone
    share = np.zeros((2 * GROUPS + VICTIM.deter, 1))
    share[: 2 * GROUPS : 2] = 4 / GROUPS
    flat["actor/out/kernel"] = np.float32(share * [1, 0])
    flat["actor/out/bias"] = np.float32([-2, -10])  # its standard deviation is always the least
    # The value is 1.7 times a sigmoid: between the bins of 0 and of symexp(1) = 1.7, and all others next to impossible.
    flat["value/out/kernel"] = np.float32(2 * share * (np.arange(VICTIM.bins) == 21))
    flat["value/out/bias"] = np.float32([-50] * 20 + [0, -4] + [-50] * 19)

    world = Waves(64)
    waves = world.image(world.reset(np.arange(64))) / 255
    noisy = waves + rng.uniform(-0.3, 0.3, waves.shape)
    known = np.concatenate([_last_hidden(flat, images) for images in (waves, noisy)])
    known = np.concatenate([known, np.ones((128, 1))], axis=1)
    fit = np.linalg.solve(known.T @ known + np.eye(known.shape[1]), known.T @ np.repeat([1.0, -1.0], 64))
    odds = np.zeros((len(fit), 2 * GROUPS))
    odds[:, ::2] = 6 * fit[:, None]
    odds[-1, ::2] += np.linspace(-3, 3, GROUPS)  # some latents change their mind before others
    flat |= {f"{LAST}/kernel": np.float32(odds[:-1]), f"{LAST}/bias": np.float32(odds[-1])}
    path = tmp_path_factory.mktemp("agent") / "waver.safetensors"
    write(path, Card(VICTIM, TASK, SPEC.action_repeat, "none", "0" * 64), flat)
    return path


def _last_hidden(flat, images):
    """What the posterior's last layer reads [N, 2 G]: its logits, were that layer the identity."""
    last = {f"{LAST}/kernel": np.eye(2 * GROUPS, dtype=np.float32), f"{LAST}/bias": np.zeros(2 * GROUPS, np.float32)}
    params = unflatten_dict({name: jnp.asarray(leaf) for name, leaf in (flat | last).items()}, sep="/")
    before = VICTIM.predict(params, VICTIM.initial(len(images)), jnp.zeros((len(images), 1)))
    _, internals = VICTIM.update(params, before, VICTIM.embed(params, jnp.asarray(images, jnp.float32)), None)
    return np.asarray(internals.post_logits, np.float64).reshape(len(images), -1)


class Told(NamedTuple):
    """What the checks say of a study."""

    asked: set[str]  #: checks that were applicable
    fired: dict[str, set[tuple]]  #: (objective, optimizer, steps, eps) of the cells, by check
    returns: dict[tuple, float]  #: mean return by the same, over seeds


@pytest.fixture
def play(agent, tmp_path, monkeypatch):
    """Return a function that runs a study of ten seeds in a world, writes its report, and tells what the checks say."""
    monkeypatch.setitem(TASKS, TASK, SPEC)

    def told(objectives=("vsa",), optimizers=("pgd(3)",), budgets=BUDGETS, world=Waves, **more):
        monkeypatch.setattr(device_worker, "make", lambda task, backend, batch, workers: world(batch))
        study = Study((str(agent),), objectives, budgets, tuple(range(10)), optimizers, episode_steps=T, **more)
        outcome = wmjax.run(study, tmp_path / "out", batch=31)
        assert outcome.failed == {}
        found = cells(read_rows(outcome.folder))
        findings = check(found)
        _assert_written(report(outcome.folder).with_name("report.md").read_text(encoding="utf-8"), findings)
        name = lambda cell: (*cell.attack[:3], cell.eps)  # noqa: E731
        return Told(
            {one.name for one in findings if not one.not_applicable},
            {one.name: {name(cell) for cell, _ in one.fired} for one in findings if one.fired},
            {name(cell): found.mean("return", cell) for cell in found.episodes},
        )

    return told


def _assert_written(page, findings):
    """The report lists every check with what it found; one that fired it names at its head too, with its sentence."""
    for one in findings:
        times = f"fired in {len(one.fired)} cell{'s' if len(one.fired) > 1 else ''}"
        line = f"- **Self-check** `{one.name}` {times}, listed below. {one.meaning}\n"
        result = f"**fired** in{times[8:]}" if one.fired else "silent"
        result = f"not applicable: {one.not_applicable}" if one.not_applicable else result
        assert f"| `{one.name}` | {result} | {one.meaning} | {one.advice} |\n" in page
        assert (line in page) == bool(one.fired)
        assert (f"\n`{one.name}` fired in:\n\n- `waver` on `{TASK}`" in page) == bool(one.fired)


def attacks(objective, optimizer, steps, budgets=BUDGETS):
    return {(objective, optimizer, steps, eps) for eps in budgets}


def test_sound_attacks_fire_nothing(play):
    told = play(("random", "vsa", "target(-1)"), ("pgd(3)", "pgd(10)", "pgd_restarts(3)"))
    assert told.asked == {one.name for one in CHECKS}
    assert told.fired == {}
    # There is an agent to be hurt: noise hurts it, and attacks end it.
    assert told.returns["clean", "none", 0, 0.0] > 0.9 * T
    assert 0.2 * T < told.returns["random", "none", 0, LARGE] < 0.7 * T
    for way in (("vsa", "pgd", 3), ("target(-1)", "pgd", 10), ("vsa", "pgd_restarts", 3)):
        assert told.returns[*way, SMALL] < 0.7 * T
        assert told.returns[*way, LARGE] < 0.1 * T


def test_zero_gradients(play):
    """The attacker shares the agent's latent noise: the policy is flat as long as no sample flips."""
    told = play(("pda", "vsa"), budgets=(TINY, MIDDLE), noise="shared")
    # A loss whose gradient is zero does not rise; with the larger budget some samples flip at the start, and it does.
    assert told.fired == {
        "zero-gradient": attacks("pda", "pgd", 3, (TINY, MIDDLE)),
        "loss-did-not-rise": attacks("pda", "pgd", 3, (TINY,)),
    }


def test_noise_beats_an_objective_that_does_not_hurt(play):
    """The agent's dynamics are surprised most by frames that say "waves" as no frame of the world does."""
    told = play(("random", "vsa", "dca"), ("pgd(10)",))
    assert told.fired == {"random-beats-gradient": attacks("dca", "pgd", 10, (LARGE,))}


def test_more_steps_fit_what_does_not_hurt(play):
    """Few steps of a large budget leave noise behind, which hurts; more steps get on with the same objective."""
    told = play(("vsa", "dca"), ("pgd(3)", "pgd(10)"))
    assert told.fired == {"not-monotone-in-steps": attacks("dca", "pgd", 10, (LARGE,))}


def test_a_world_that_pays_for_what_strong_attacks_bring_about(play):
    told = play(world=partial(Waves, pays=np.abs))
    ((name, found),) = told.fired.items()
    assert name == "not-monotone-in-budget"
    assert len(found) == 1
    assert found < attacks("vsa", "pgd", 3, (MIDDLE, LARGE))


def test_an_optimizer_that_walks_down(play, monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "pgd", lambda steps: Optimizer(steps, IteratedGradient((SIGN, DOWN))))
    told = play(("random", "vsa", "target(1)"), ("pgd(3)", "pgd_restarts(3)"), budgets=(MIDDLE, LARGE))
    down = attacks("vsa", "pgd", 3, (MIDDLE, LARGE)) | attacks("target(1)", "pgd", 3, (MIDDLE, LARGE))
    assert told.fired["loss-did-not-rise"] == down
    # Less of VSA is good for the agent, and so is more of an action of 1: there noise does more harm, and only there.
    beaten = attacks("vsa", "pgd", 3, (LARGE,)) | attacks("target(1)", "pgd_restarts", 3, (LARGE,))
    assert told.fired == {"loss-did-not-rise": down, "random-beats-gradient": beaten}


def test_a_clean_start_that_leads_nowhere(play):
    """PDA is flat at the clean image, or led away by another objective; random starts are where samples flip."""
    led, flat = "pda+0.01*target(1)", "pda"
    told = play((led, flat, "vsa"), ("pgd_restarts(3)",), budgets=(LARGE,))
    assert told.fired == {
        "restart-gap": attacks(led, "pgd_restarts", 3, (LARGE,)) | attacks(flat, "pgd_restarts", 3, (LARGE,)),
        "zero-gradient": attacks(flat, "pgd_restarts", 3, (LARGE,)),
    }


def test_a_world_with_random_numbers_of_its_own(play):
    told = play(world=partial(Waves, luck=1.0))
    assert told.fired == {"zero-budget-differs": attacks("vsa", "pgd", 3, (0.0,))}
    assert told.returns["vsa", "pgd", 3, 0.0] != told.returns["clean", "none", 0, 0.0]


def test_a_broken_projection(play, monkeypatch):
    def beyond(*args):
        found = perturb(*args)
        return replace(found, image=found.image + 0.02)

    perturb = step._perturb
    monkeypatch.setattr(step, "_perturb", beyond)
    assert play().fired == {"zero-budget-differs": attacks("vsa", "pgd", 3, (0.0,))}


def clean(witness):
    return jnp.take(LEVELS, witness.image)


def cast(witness):
    return jnp.round(255 * witness.attacked) / 255


@pytest.mark.parametrize(("stored", "objective", "eps"), [(clean, "vsa", LARGE), (cast, "dca", SMALL)])
def test_another_frame_than_the_one_that_was_optimised(play, monkeypatch, stored, objective, eps):
    def forged(victim, attack, params, witness, *rest):
        return loss_again(victim, attack, params, replace(witness, attacked=stored(witness)), *rest)

    loss_again = drivers.loss_again
    monkeypatch.setattr(drivers, "loss_again", forged)
    assert play((objective,), budgets=(eps,)).fired == {"stored-frame": attacks(objective, "pgd", 3, (eps,))}


def test_a_budget_of_the_whole_range(play):
    told = play(budgets=(*BUDGETS, 1.0))
    assert told.fired == {"saturated-pixels": attacks("vsa", "pgd", 3, (1.0,))}
