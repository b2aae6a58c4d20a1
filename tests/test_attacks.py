"""What every attack promises: the ball and the range, exactly; closed forms; no hidden randomness; no cross-talk."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from programs import QUICK, quick

from wmjax import attacks
from wmjax.attacks import Attack, Frame, attacker_noise, draw, maximise, threat
from wmjax.attacks.attack import start_radius
from wmjax.attacks.linf_ball import Ball, Problem, ball, project
from wmjax.attacks.objectives import critic, towards
from wmjax.attacks.optimizers import NO_STEPS, OPTIMIZERS, Optimizer, fgsm, optimizer, pgd
from wmjax.core.errors import InputError

# Numbers far below what any image holds are left out: compiled code rounds sums below 1e-38 to zero.
UNIT = st.just(0.0) | st.floats(2.0**-60, 1.0, width=32)
SHAPE = (2, 3, 3, 1)
images = hnp.arrays(np.float32, SHAPE, elements=UNIT)
budgets = hnp.arrays(np.float32, 2, elements=UNIT | st.floats(2.0**-10, 0.25, width=32))
wild = hnp.arrays(np.float32, SHAPE, elements=st.floats(-3, 3, width=32))

jitted_ball = jax.jit(ball, compiler_options=QUICK)
jitted_project = jax.jit(project, compiler_options=QUICK)


def perturb(attack, victim, params, prediction, embedding, image, noise, drawn, threat):
    return attacks.perturb(attack, victim, params, Frame(image, embedding, prediction, noise), drawn, threat)


jitted_perturb = quick(perturb)


def distance(x, image):
    """Largest |x - image| of each example, exact: differences of float32 fit into float64."""
    return np.abs(np.float64(x) - np.float64(image)).max(axis=(1, 2, 3))


# The ball.


@given(images, budgets, wild)
def test_projection_stays_in_the_ball_and_in_range(image, eps, x):
    bounds = jitted_ball(image, eps)
    for inside in (bounds.lower, bounds.upper, jitted_project(bounds, x)):
        assert (distance(inside, image) <= eps).all()
        assert np.min(inside) >= 0
        assert np.max(inside) <= 1


@given(images, budgets, wild)
def test_projection_is_the_nearest_point(image, eps, x):
    bounds = jitted_ball(image, eps)
    wide = np.float64(eps)[:, None, None, None]
    want = np.clip(np.clip(np.float64(x), image - wide, image + wide), 0, 1)
    got = jitted_project(bounds, x)
    np.testing.assert_allclose(got, want, rtol=0, atol=6e-8)
    np.testing.assert_array_equal(jitted_project(bounds, got), got)


@given(images, wild)
def test_no_budget_is_the_identity(image, x):
    bounds = jitted_ball(image, np.zeros(2, np.float32))
    assert np.asarray(jitted_project(bounds, x)).tobytes() == image.tobytes()


@given(st.integers(0, 255), st.integers(0, 64))
def test_whole_budget_is_used_on_bytes(value, budget):
    """Images are bytes over 255, and so are most budgets: the bounds may lose no more than a rounding."""
    image = np.full((1, 1, 1, 1), value / 255, np.float32)
    eps = np.full(1, budget / 255, np.float32)
    bounds = jitted_ball(image, eps)
    np.testing.assert_allclose(bounds.lower, max(value - budget, 0) / 255, atol=1.2e-7)
    np.testing.assert_allclose(bounds.upper, min(value + budget, 255) / 255, atol=1.2e-7)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_budgets_are_never_rounded_up(eps):
    got = np.float64(threat(["vsa"] * len(eps), eps).eps)
    assert (got <= eps).all()
    np.testing.assert_allclose(got, eps, rtol=2e-7, atol=1e-44)


# The climb, on losses whose maximum is known.

WIDE = Ball(np.full(SHAPE, -np.inf, np.float32), np.full(SHAPE, np.inf, np.float32))


def climb(loss, steps, image, eps, bounds=None):
    eps = np.full(2, eps, np.float32)
    bounds = ball(image, eps) if bounds is None else bounds
    run = jax.jit(lambda image, eps: maximise(loss, steps, Problem(image, bounds, eps, image)), compiler_options=QUICK)
    return run(image, eps)


@pytest.mark.parametrize("steps", [fgsm(), pgd(), pgd(3)], ids=["fgsm", "pgd", "pgd3"])
def test_linear_loss_ends_in_the_corner(steps):
    slope = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    slope[:, 0, 0] = 0
    image = np.full(SHAPE, 0.5, np.float32)
    result = climb(lambda x: jnp.sum(slope * x, axis=(1, 2, 3)), steps, image, 0.25)
    np.testing.assert_allclose(result.image, 0.5 + 0.25 * np.sign(slope), atol=1e-6)
    np.testing.assert_allclose(result.loss_first, (slope * image).sum((1, 2, 3)), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(result.zero_grad, 0)


def test_quadratic_loss_ends_at_its_maximum():
    """A peak 0.1 away, in steps of 0.025: four up, then back and forth within a step of it."""
    image = np.full(SHAPE, 0.5, np.float32)
    result = climb(lambda x: -jnp.sum((x - 0.61) ** 2, axis=(1, 2, 3)), pgd(), image, 0.25)
    assert (np.abs(np.asarray(result.image) - 0.61) <= 0.025).all()
    beyond = climb(lambda x: -jnp.sum((x - 0.9) ** 2, axis=(1, 2, 3)), pgd(), image, 0.25)
    np.testing.assert_allclose(beyond.image, 0.75, rtol=1e-6)


def test_steps_share_the_budget():
    """Without a ball, K steps of eps / K go exactly as far as one of eps: no step is projected on the one before."""
    image = np.zeros(SHAPE, np.float32)
    for steps in (1, 4, 10):
        result = climb(lambda x: jnp.sum(x, axis=(1, 2, 3)), Optimizer(steps), image, 0.5, WIDE)
        np.testing.assert_allclose(result.image, 0.5, rtol=1e-6)


def test_iterates_are_projected_around_the_clean_image():
    """A loss that turns around sends the iterate back through the clean image, not out of its ball."""
    image = np.full(SHAPE, 0.5, np.float32)
    start = np.full(SHAPE, 0.7, np.float32)
    eps = np.full(2, 0.25, np.float32)
    problem = Problem(image, ball(image, 2 * eps), 4 * eps, start)
    result = maximise(lambda x: -jnp.sum(x, axis=(1, 2, 3)), Optimizer(10), problem)
    np.testing.assert_allclose(result.image, 0.0, atol=1e-7)


def test_constant_loss_reports_a_zero_gradient():
    image = np.random.default_rng(0).uniform(size=SHAPE).astype(np.float32)
    flat_then_steep = lambda x: jnp.stack([jnp.float32(3), jnp.sum(x[1])])  # noqa: E731
    result = climb(flat_then_steep, pgd(), image, 0.1)
    np.testing.assert_array_equal(result.zero_grad, [1, 0])
    np.testing.assert_array_equal(result.image[0], image[0])
    np.testing.assert_array_equal(result.loss_first[0], 3)
    # A plateau reached on the way counts for the rest of it: here after 4 of 10 steps.
    ramp = climb(lambda x: jnp.sum(jnp.minimum(x, 0.535), axis=(1, 2, 3)), pgd(), np.full(SHAPE, 0.5, np.float32), 0.1)
    np.testing.assert_allclose(ramp.zero_grad, 0.6, rtol=1e-6)


def test_no_steps_return_the_start():
    image = np.random.default_rng(0).uniform(size=SHAPE).astype(np.float32)
    result = climb(lambda x: jnp.sum(x, axis=(1, 2, 3)), NO_STEPS, image, 0.1)
    np.testing.assert_array_equal(result.image, image)
    np.testing.assert_array_equal(result.loss_first, 0)
    np.testing.assert_array_equal(result.zero_grad, 0)


# A whole attacked frame.

OBJECTIVES = ["pda", "pea", "vsa", "lda", "dca", "random"]


@pytest.fixture(scope="module")
def frame(tiny):
    """(victim, params, and per example: prediction, embedding, image, noise, attacker's draw) of six frames."""
    victim, params = tiny
    size, batch = victim.image_size, len(OBJECTIVES)
    keys = jax.random.split(jax.random.key(1), 4)
    image = jax.random.randint(keys[0], (batch, size, size, 3), 0, 256).astype(jnp.float32) / 255
    noise = jax.random.gumbel(keys[1], (batch, *victim.latent_shape))
    action = jax.random.normal(keys[2], (batch, victim.action_size))
    prediction = jax.jit(victim.predict)(params, victim.initial(batch), action)
    embedding = jax.jit(victim.embed)(params, image)
    drawn = draw(victim, jax.random.split(keys[3], batch))
    return victim, params, prediction, embedding, image, noise, drawn


def attacked(frame, attack, threat):
    victim, params, *rest = frame
    return jitted_perturb(attack, victim, params, *rest, threat)


@pytest.mark.parametrize("noise", ["fresh", "shared", "mode"])
def test_starts_are_in_the_ball(frame, noise):
    image = frame[4]
    eps = np.array([0.04, 8 / 255, 0.3, 0, 1, 1e-3])  # in float32 the first rounds down, the second and third up
    result = attacked(frame, Attack(NO_STEPS, noise), threat(OBJECTIVES, eps))
    assert (distance(result.image, image) <= eps).all()
    assert np.min(result.image) >= 0
    assert np.max(result.image) <= 1
    np.testing.assert_array_equal(result.image[3], image[3])
    assert np.asarray(result.image).dtype == np.float32
    assert distance(result.image, image)[5] > 0
    result = attacked(frame, Attack(NO_STEPS, noise), threat(OBJECTIVES, np.zeros(6)))
    assert np.asarray(result.image).tobytes() == np.asarray(image).tobytes()


def test_same_key_same_result_and_other_key_another(frame):
    victim = frame[0]
    hunt = threat(["random"] * 6, [0.1] * 6)
    keys = jax.random.split(jax.random.key(5), 6)
    runs = [attacked((*frame[:6], draw(victim, k)), Attack(), hunt).image for k in (keys, keys, keys[::-1])]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert (runs[0] != runs[2]).mean() > 0.9


def test_draw_depends_on_each_examples_own_key(tiny):
    victim, _ = tiny
    keys = jax.random.split(jax.random.key(5), 6)
    whole, part = draw(victim, keys), draw(victim, keys[2:4])
    for a, b in zip((whole.start, whole.gumbel), (part.start, part.gumbel), strict=True):
        np.testing.assert_array_equal(a[2:4], b)
    assert (whole.keys[2:4] == part.keys).all()
    every = jnp.concatenate([keys, whole.keys, *[jax.random.split(key) for key in keys]])
    assert len(np.unique(jax.random.key_data(every), axis=0)) == 4 * 6
    assert whole.start.shape == (6, victim.image_size, victim.image_size, 3)
    assert -1 <= whole.start.min() < -0.9 < 0.9 < whole.start.max() < 1


def test_an_example_alone_comes_out_the_same(frame):
    """Another batch shape is another program: up to rounding."""
    victim, params, *rest = frame
    attack, hunt = Attack(pgd(4), "fresh"), threat(OBJECTIVES, [0.05] * 6)
    whole = jitted_perturb(attack, victim, params, *rest, hunt).image
    alone = jax.tree.map(lambda x: x[1:2], (*rest, hunt))
    np.testing.assert_allclose(jitted_perturb(attack, victim, params, *alone).image, whole[1:2], atol=1e-3)


def test_each_row_follows_its_own_objective(frame):
    """Stepping on one objective raises it, compared with where the step began."""
    victim, params, prediction, embedding, image, noise, drawn = frame
    hunt = threat(OBJECTIVES, [0.05] * 6)
    moved = attacked(frame, Attack(pgd(4), "fresh"), hunt).image

    @partial(jax.jit, compiler_options=QUICK)
    def values(x):
        _, clean = victim.update(params, prediction, embedding, noise)
        _, adv = victim.update(params, prediction, victim.embed(params, x), drawn.gumbel)
        further = {"target": towards(jnp.zeros((6, 1))), "critic": critic(lambda action: jnp.sum(action, axis=-1))}
        return attacks.losses(clean, adv, further)

    before, after = values(image), values(moved)
    for row, name in enumerate(OBJECTIVES[:5]):
        assert after[row, row] > before[row, row] or name == "lda"
        assert after[row, row] >= before[row, row]


def test_shared_noise_starts_away_from_the_clean_image(frame):
    image = frame[4]
    hunt = threat(OBJECTIVES, [0.1] * 6)
    radius = start_radius(Attack(NO_STEPS, "shared"), hunt)
    np.testing.assert_array_equal(radius, hunt.eps * np.float32([1, 0, 0, 1, 0, 1]))
    start = attacked(frame, Attack(NO_STEPS, "shared"), hunt).image
    drawn = frame[6]
    want = project(ball(image, hunt.eps), image + radius[:, None, None, None] * drawn.start)
    np.testing.assert_allclose(start, want, atol=1e-7)
    assert (np.abs(start - image).mean(axis=(1, 2, 3)) > 0.01).tolist() == [True, False, False, True, False, True]


def test_random_fills_the_ball(frame):
    image = frame[4]
    result = attacked(frame, Attack(), threat(["random"] * 6, [0.05] * 6)).image
    shift = np.asarray(result - image)
    inner = (np.asarray(image) > 0.06) & (np.asarray(image) < 0.94)
    assert abs(shift[inner].mean()) < 0.002
    np.testing.assert_allclose(shift[inner].std(), 0.05 / np.sqrt(3), rtol=0.05)
    assert np.abs(shift).max() > 0.049


def test_attacker_noise(frame):
    noise, drawn = frame[5], frame[6]
    clean, adv = attacker_noise(Attack(noise="shared"), noise, drawn)
    assert clean is noise
    assert adv is noise
    clean, adv = attacker_noise(Attack(noise="fresh"), noise, drawn)
    assert clean is noise
    assert adv is drawn.gumbel
    assert attacker_noise(Attack(noise="mode"), noise, drawn) == (None, None)


def test_budgets_and_objectives_share_a_program(frame):
    programs = set()
    for names, eps in ((OBJECTIVES, 0.1), (["vsa"] * 6, 0.2), (["random"] * 6, 0.0)):
        attacked(frame, Attack(pgd(4)), threat(names, [eps] * 6))
        programs.add(jitted_perturb._cache_size())
    assert len(programs) == 1


# Names and numbers.


@pytest.mark.parametrize(
    ("call", "known"),
    [
        (lambda: optimizer("sgd"), list(OPTIMIZERS)),
        (lambda: Attack(noise="loud"), ["fresh", "shared", "mode"]),
    ],
)
def test_unknown_names_list_the_known_ones(call, known):
    with pytest.raises(InputError) as error:
        call()
    message = str(error.value)
    assert "\n" not in message
    assert all(name in message for name in ("unknown", *known))


def test_optimizers():
    assert optimizer("fgsm").steps == 1
    assert optimizer("pgd").steps == 10
    assert optimizer("pgd", 25).steps == 25
    assert optimizer("pgd") == pgd()
    for name, steps, words in (("fgsm", 2, "exactly 1"), ("pgd", 0, "at least 1"), ("pgd", -3, "at least 1")):
        with pytest.raises(InputError, match=f"steps is {steps}.*{words}"):
            optimizer(name, steps)


@pytest.mark.parametrize("eps", [[8.0], [-0.1], [np.nan], [0.1, 0.1], 0.1], ids=str)
def test_a_budget_is_one_number_an_objective_in_image_units(eps):
    with pytest.raises(InputError, match=r"expected 1 budgets in \[0, 1\]"):
        threat(["pda"], eps)


def test_an_attack_takes_an_optimizer_not_its_name():
    with pytest.raises(InputError, match="pgd"):
        Attack("pgd")
