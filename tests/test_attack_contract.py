"""One contract for everything that is registered: each part with an agent, through the product's own functions."""

from functools import partial

import agents
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import QUICK, quick

from wmjax import attacks
from wmjax.attacks import (
    DEFENSES,
    MODES,
    NAMES,
    NOISES,
    OPTIMIZERS,
    REGIONS,
    Attack,
    attacker_loss,
    defense,
    defense_strength,
    draw,
    named,
    optimizer,
    region,
    threat,
    through,
    timing,
)
from wmjax.core.errors import InputError

BATCH = 8
EPS = (0.1, 0.0, 8 / 255, 1.0, 1e-6, 0.04, 0.3, 2 / 255)
OBJECTIVE = {name: "target(0.5)" if name == "target" else name for name in NAMES}
"""What one writes for each objective."""

SAMPLES = {
    "full": 12,
    "first_half": 6,
    "second_half": 6,
    "sparse(n)": ("sparse(5)", 3),
    "sparse(n,offset)": ("sparse(5,3)", 2),
    "frames(first,last)": ("frames(2,9)", 8),
    "policy_gap(x)": ("policy_gap(0.5)", 12),
    "value_gap(x)": ("value_gap(0.5)", 12),
    "policy_top(k)": ("policy_top(3)", 12),
    "value_top(k)": ("value_top(3)", 12),
}
"""Of each mode an instance, and how many of 12 steps it may attack."""

PLACES = {
    "all": 768,
    "patch(n)": ("patch(4)", 48),
    "border(n)": ("border(2)", 336),
    "red": 256,
    "green": 256,
    "blue": 256,
}
"""Of each region an instance, and how many values it has in an image of 16 x 16 pixels."""


def few(name):
    """The named optimizer, of a handful of steps; more of those that return the best point that they saw."""
    best = name in ("apgd", "square") or name.startswith("random")
    return optimizer(name, None if name == "fgsm" else 6 if best else 3)


@pytest.fixture(scope="module")
def agent(tiny):
    """(victim, params, frame, drawn) of frames of a small random agent."""
    victim, params = tiny
    return victim, params, *agents.frames(victim, params, BATCH)


perturb = quick(attacks.perturb)


@quick
def values(attack, victim, params, frame, drawn, hunt, image):
    """The attacker's loss [B] and its gradient."""
    value, pullback = jax.vjp(attacker_loss(attack, victim, params, frame, drawn, hunt), image)
    return value, *pullback(jnp.ones_like(value))


@quick
def height(attack, victim, params, frame, drawn, hunt, image):
    """The attacker's loss [B]."""
    return attacker_loss(attack, victim, params, frame, drawn, hunt)(image)


def objective_for(name):
    """FAB needs a boundary."""
    return "boundary" if name == "fab" else "vsa+0.5*pea"


def distance(x, image):
    """Largest |x - image| of each example, exact: differences of float32 fit into float64."""
    return np.abs(np.float64(x) - np.float64(image)).max(axis=(1, 2, 3))


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(agent, name, noise):
    """Shape, dtype, ball, range, identity, the same result from the same keys, and no example sees another."""
    victim, params, frame, drawn = agent
    attack, hunt = Attack(few(name), noise), threat([objective_for(name)] * BATCH, EPS)
    found = perturb(attack, victim, params, frame, drawn, hunt)
    clean, image = np.asarray(frame.image), np.asarray(found.image)
    assert (image.dtype, image.shape) == (np.float32, clean.shape)
    assert (distance(image, clean) <= EPS).all()
    assert image.min() >= 0
    assert image.max() <= 1
    assert image[1].tobytes() == clean[1].tobytes()
    assert (image != clean).any(axis=(1, 2, 3)).tolist() == [eps > 0 for eps in EPS]
    for told in (found.loss_first, found.zero_grad, found.restart_gap):
        assert (told.dtype, told.shape) == (np.float32, (BATCH,))
        assert np.isfinite(told).all()
    assert ((found.zero_grad >= 0) & (found.zero_grad <= 1)).all()
    assert np.isfinite(height(Attack(noise=noise), victim, params, frame, drawn, hunt, image)).all()
    order = np.array([3, 0, 0, 5, 1, 2, 7, 4])
    moved = perturb(attack, victim, params, *jax.tree.map(lambda leaf: leaf[order], (frame, drawn, hunt)))
    for one, other in zip(jax.tree.leaves(moved), jax.tree.leaves(found), strict=True):
        np.testing.assert_array_equal(one, np.asarray(other)[order])


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("name", ["fgsm", "pgd", "pgd_random_start", "pgd_restarts", "mi_fgsm", "ni_fgsm", "apgd"])
def test_gradients_beat_chance(agent, name, noise):
    """Not asked of three: two look at other images than the agent does, one for the boundary of a loss without one."""
    victim, params, frame, drawn = agent
    hunt = threat(["vsa"] * 4 + ["pda", "dca", "random", "vsa"], [0.1] * 7 + [0])

    def loss(image):
        return height(Attack(noise=noise), victim, params, frame, drawn, hunt, image)

    found, chance = (
        perturb(Attack(few(chosen), noise), victim, params, frame, drawn, hunt).image
        for chosen in (name, "random_uniform")
    )
    before, after, other = loss(frame.image), loss(found), loss(chance)
    assert np.isfinite(after).all()
    assert np.mean(after[:4] - before[:4]) >= np.mean(other[:4] - before[:4])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_leave_a_zero_budget_alone(agent, name):
    """Whatever is maximised, not one bit changes."""
    victim, params, frame, drawn = agent
    every = [*OBJECTIVE.values(), "random"]
    for objectives in (every[:BATCH], every[-BATCH:]):
        found = perturb(Attack(few(name)), victim, params, frame, drawn, threat(objectives, [0.0] * BATCH))
        assert np.asarray(found.image).tobytes() == np.asarray(frame.image).tobytes()


def test_budgets_objectives_and_keys_share_a_program(agent):
    victim, params, frame, _ = agent
    programs = set()
    for seed, text in enumerate(("vsa", "pea", "random")):
        drawn = draw(victim, jax.random.split(jax.random.key(seed), BATCH))
        perturb(Attack(few("apgd")), victim, params, frame, drawn, threat([text] * BATCH, [0.1 * seed] * BATCH))
        programs.add(perturb._cache_size())
    assert len(programs) == 1


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("name", NAMES)
def test_objectives(agent, name, noise):
    """Finite values and gradients at the clean image and at another one; the second has a slope to climb somewhere.

    Each example's weights are its own: the others' objectives, here of every kind, change no bit of it.
    """
    victim, params, frame, drawn = agent
    attack = Attack(noise=noise)
    hunt = threat([OBJECTIVE[name]] * BATCH, EPS)
    far = jnp.clip(frame.image + 0.5 * drawn.start, 0, 1)
    for image in (frame.image, far):
        value, gradient = values(attack, victim, params, frame, drawn, hunt, image)
        assert (value.dtype, value.shape) == (np.float32, (BATCH,))
        assert (gradient.dtype, gradient.shape) == (np.float32, image.shape)
        assert np.isfinite(value).all()
        assert np.isfinite(gradient).all()
    assert np.abs(gradient).max() > 0
    others = [OBJECTIVE[NAMES[(NAMES.index(name) + i) % len(NAMES)]] for i in range(BATCH - 1)]
    mixed = threat([*others[::-1], "random"], EPS)
    own = values(attack, victim, params, frame, drawn, mixed, far)
    np.testing.assert_array_equal(own[0][BATCH - 2], value[BATCH - 2])
    np.testing.assert_array_equal(own[1][BATCH - 2], gradient[BATCH - 2])
    assert own[0][BATCH - 1] == 0
    assert not own[1][BATCH - 1].any()


@pytest.mark.parametrize("name", NAMES)
def test_a_mixture_is_the_sum_of_its_parts(agent, name):
    """Half of it and a quarter of its neighbour, up to rounding; all objectives that it does not name add nothing."""
    victim, params, frame, drawn = agent
    attack, other = Attack(), NAMES[NAMES.index(name) - 1]
    far = jnp.clip(frame.image + 0.5 * drawn.start, 0, 1)

    def at(text):
        return [np.asarray(x) for x in values(attack, victim, params, frame, drawn, threat([text] * BATCH, EPS), far)]

    both = at(f"0.5*{OBJECTIVE[name]}+0.25*{OBJECTIVE[other]}")
    for got, one, two in zip(both, at(OBJECTIVE[name]), at(OBJECTIVE[other]), strict=True):
        scale = np.abs(one).max() + np.abs(two).max()
        np.testing.assert_allclose(got, 0.5 * one + 0.25 * two, atol=1e-5 * scale)


@partial(jax.jit, static_argnums=0)
def defended(chosen, image, strength, keys):
    return chosen.apply(image, strength, keys)


@partial(jax.jit, static_argnums=0)
def pulled(chosen, image, strength, keys):
    """What an adaptive attacker sees, and its gradient of the sum."""
    value, pullback = jax.vjp(lambda x: through(chosen, x, strength, keys), image)
    return value, *pullback(jnp.ones_like(value))


def strengths(chosen):
    """The least, the usual and the most that the defense takes."""
    allowed = chosen.strength
    return [0.0] if allowed is None else [allowed.lowest, allowed.default, allowed.highest]


@pytest.mark.parametrize("name", DEFENSES)
def test_defenses(agent, name):
    """At every strength: shape, dtype, range, the same from the same keys, an example alone or in a batch.

    Alone it is another program: blur's matrix products may be summed in another order, a rounding error of 5e-7.
    """
    chosen = defense(name)
    _, _, frame, drawn = agent
    image = np.asarray(frame.image)
    for level in strengths(chosen):
        assert defense_strength(chosen, None if chosen.strength is None else level) == level
        strength = np.full(BATCH, level, np.float32)
        seen = np.asarray(defended(chosen, image, strength, drawn.keys))
        assert (seen.dtype, seen.shape) == (np.float32, image.shape)
        assert seen.min() >= 0
        assert seen.max() <= 1
        np.testing.assert_array_equal(defended(chosen, image, strength, drawn.keys), seen)
        value, gradient = pulled(chosen, image, strength, drawn.keys)
        np.testing.assert_array_equal(value, seen)
        assert np.isfinite(gradient).all()
        assert np.abs(gradient).max() > 0
        for i in (0, BATCH - 1):
            alone = defended(chosen, image[i : i + 1], strength[i : i + 1], drawn.keys[i : i + 1])
            np.testing.assert_allclose(alone[0], seen[i], rtol=0, atol=5e-7 if name == "blur" else 0)


@pytest.mark.parametrize("name", DEFENSES)
def test_strengths_are_bounded(name):
    """The bounds themselves are taken, beyond them nothing is; and a text names it, with its strength or without."""
    allowed = defense(name).strength
    assert named(name)[0] is defense(name)
    assert named(named(name)[2]) == named(name)
    if allowed is None:
        with pytest.raises(InputError, match="takes no strength"):
            defense_strength(defense(name), 1)
        return
    for bound, beyond in ((allowed.lowest, allowed.lowest - 1), (allowed.highest, allowed.highest + 1)):
        assert named(f"{name}({bound})")[1] == bound
        with pytest.raises(InputError, match=r"expected a (whole )?number in"):
            defense_strength(defense(name), beyond)


@pytest.mark.parametrize(
    ("name", "adaptive"), [("jpeg", False), *((name, True) for name in DEFENSES if name != "none")]
)
def test_attacks_on_defended_agents(agent, name, adaptive):
    """With two draws: still in the ball, and the loss that the attacker aims at, through the defense or not, rises."""
    victim, params, frame, drawn = agent
    chosen, strength, _ = named(name)
    attack = Attack(few("pgd"), "fresh", chosen, adaptive, draws=2)
    hunt = threat(["vsa"] * BATCH, EPS, strength)
    seen = defended(chosen, frame.image, hunt.strength, drawn.keys)
    frame = frame.replace(embedding=jax.jit(victim.embed, compiler_options=QUICK)(params, seen))
    found = perturb(attack, victim, params, frame, drawn, hunt)
    assert (distance(found.image, frame.image) <= EPS).all()
    assert ((found.image >= 0) & (found.image <= 1)).all()
    before, after = (height(attack, victim, params, frame, drawn, hunt, x) for x in (frame.image, found.image))
    np.testing.assert_allclose(found.loss_first, before, rtol=1e-4, atol=1e-4)
    assert np.mean(after - before) > 0


@pytest.mark.parametrize("mode", MODES)
def test_modes(mode):
    sample = SAMPLES[mode]
    text, attacked = sample if isinstance(sample, tuple) else (mode, sample)
    when = timing(text, 12)
    assert (when.mask.dtype, when.mask.shape) == (bool, (12,))
    assert when.mask.sum() == attacked
    assert when.gap == (mode.split("_")[0] if mode.startswith(("policy", "value")) else "none")
    assert Attack(gap=when.gap).gap == when.gap
    aim = threat(["vsa"], [0.1], threshold=when.threshold, most=when.most)
    assert aim.threshold[0] == (0.5 if "gap(" in mode else -np.inf)
    assert aim.most[0] == (3 if "top(" in mode else np.iinfo(np.int32).max)


@pytest.mark.parametrize("name", REGIONS)
def test_regions(agent, name):
    """Nothing outside of it changes, and inside everything may: with a sign step, most does."""
    victim, params, frame, drawn = agent
    sample = PLACES[name]
    text, count = sample if isinstance(sample, tuple) else (name, sample)
    inside = region(text, victim.image_size)
    assert (inside.dtype, inside.shape) == (np.float32, frame.image.shape[1:])
    assert inside.sum() == count
    assert set(np.unique(inside)) <= {0, 1}
    hunt = threat(["vsa"] * BATCH, EPS, region=inside)
    image = np.asarray(perturb(Attack(few("fgsm")), victim, params, frame, drawn, hunt).image)
    changed = image != np.asarray(frame.image)
    assert not changed[:, inside == 0].any()
    assert changed[0, inside == 1].mean() > 0.9
