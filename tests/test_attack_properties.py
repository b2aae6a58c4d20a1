"""What every optimizer promises for any image, budget, region and loss: on small analytic losses, without an agent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import QUICK, quick

from wmjax import attacks
from wmjax.attacks import OPTIMIZERS, Attack, Frame, Optimizer, Problem, ball, maximise, optimizer, region, threat
from wmjax.attacks.linf_ball import quantize
from wmjax.core.errors import InputError
from wmjax.core.image import LEVELS

BATCH = 3
SHAPES = ((4, 4, 1), (5, 9, 3), (12, 12, 3))
"""H, W, C: square and not, grey and coloured. Few of them: each is a program for each optimizer."""

RANDOM = ("pgd_random_start", "pgd_restarts", "di_fgsm", "apgd", "square", "random_uniform", "random_sign",
          "random_gaussian")  # fmt: skip
"""Optimizers that draw; no other reads its keys."""

GRADIENT = [name for name in OPTIMIZERS if name != "square" and not name.startswith("random_")]

KEEPS_BEST = ("apgd", "square", "random_uniform", "random_sign", "random_gaussian")
"""Optimizers that return the best point that they saw."""

CASES = [(name, shape) for name in OPTIMIZERS for shape in SHAPES if name != "di_fgsm" or shape[0] == shape[1]]
"""Every optimizer with every shape; but DI shrinks square images only."""

BUDGETS = st.sampled_from([0.0, 1e-6, 8 / 255, 1.0]) | st.floats(2.0**-20, 1, width=32)

ROUNDING = 1e-6
"""By how much the loss of one image, of order 1, may differ between two programs."""


def few(name, steps=3):
    return optimizer(name, None if name == "fgsm" else steps)


# What is maximised: losses with a boundary, for FAB looks for their zero.


def rugged(image):
    """Many peaks, so that steps and draws count."""
    index = jnp.arange(image[0].size, dtype=image.dtype).reshape(1, *image.shape[1:])
    return jnp.mean(jnp.sin(9 * image + index) + image**2, axis=(1, 2, 3)) - 0.2


def valley(image):
    """Lowest, and flat, at grey."""
    return jnp.mean((image - 0.5) ** 2, axis=(1, 2, 3))


def level(image):
    """Nothing to climb."""
    return 3.0 + 0 * image[:, 0, 0, 0]


def nowhere(image):
    """Never a number."""
    return jnp.nan * jnp.mean(image, axis=(1, 2, 3))


def cliff(image):
    """Not a number beyond an edge, and steep towards it."""
    height = jnp.mean(image, axis=(1, 2, 3))
    return jnp.where(height > 0.5, jnp.nan, height - 0.4)


def poles(image):
    """Infinite, with infinite slopes of either sign, at pixels that images do have: black ones."""
    return jnp.mean(1 / image, axis=(1, 2, 3)) - jnp.mean((1 / image)[:, ::2, 1::2], axis=(1, 2, 3))


def bottomless(image):
    """Minus infinity, with slopes that are not numbers, where any pixel is dark."""
    return jnp.mean(jnp.log(jnp.maximum(image - 0.5, 0.0)), axis=(1, 2, 3))


def huge(image):
    """Overflows wherever it is summed up or squared."""
    return 3e38 * jnp.sum(image - 0.5, axis=(1, 2, 3))


LOSSES = (rugged, level, nowhere, cliff, poles, bottomless, huge)


def each_its_own(images):
    """The losses of a batch of len(LOSSES) images, one each."""
    return jnp.stack([loss(images[i : i + 1])[0] for i, loss in enumerate(LOSSES)])


@quick
def _solve(loss, optimizer, image, eps, share, seeds):
    problem = Problem(image, ball(image, eps, share), eps, image, jax.vmap(jax.random.key)(seeds))
    found = maximise(loss, optimizer, problem)
    return found, loss(found.image)


def solve(loss, optimizer, case):
    """What is found, in NumPy, and its loss [B]; a case is (images, budgets, shares of them, seeds)."""
    return jax.tree.map(np.asarray, _solve(loss, optimizer, *case))


@quick
def trace(loss, optimizer, image, eps, share, seeds):
    """The states [K, ...] after each step."""
    problem = Problem(image, ball(image, eps, share), eps, image, jax.vmap(jax.random.key)(seeds))
    state = optimizer.method.init(problem, optimizer.start(problem, jnp.int32(0)))

    def step(state, t):
        state, _ = optimizer.method.step(loss, problem, state, t, optimizer.steps)
        return state, state

    return jax.lax.scan(step, state, jnp.arange(optimizer.steps))[1]


@st.composite
def cases(draw, shape, batch=BATCH):
    """(images [B, H, W, C], budgets [B], shares of them by pixel [B, H, W, C], seeds [B]).

    Images of grey levels, as cameras give them, or of any floats, or of black and white only. The budget is that of
    everywhere, of nowhere, of a named region, or of any shares.
    """
    seed = draw(st.integers(0, 2**31 - 1))
    rng = np.random.default_rng(seed)
    image = LEVELS[rng.integers(0, 256, (batch, *shape))]
    match draw(st.sampled_from(["grey", "any", "black and white"])):
        case "any":
            image = rng.uniform(size=image.shape).astype(np.float32)
        case "black and white":
            image = np.round(image)
    share = np.ones_like(image)
    match draw(st.sampled_from(["all", "nowhere", "patch(2)", "border(1)", "green", "any"])):
        case "all":
            pass
        case "nowhere":
            share *= 0
        case "any":
            share = np.float32(rng.uniform(size=image.shape) * (rng.uniform(size=image.shape) < 0.7))
        case name:
            share *= region(name, max(shape[:2]))[: shape[0], : shape[1], : shape[2]]
    eps = np.float32(draw(st.lists(BUDGETS, min_size=batch, max_size=batch)))
    return image, eps, share, np.arange(batch, dtype=np.uint32) + np.uint32(seed)


def assert_inside(image, case):
    """Exactly in the ball and in [0, 1], the same bits without budget. Differences of float32 fit into float64."""
    clean, eps, share, _ = case
    assert (image.dtype, image.shape) == (np.float32, clean.shape)
    radius = np.float64(eps[:, None, None, None] * share)
    assert (np.abs(np.float64(image) - np.float64(clean)) <= radius).all()
    assert ((image >= 0) & (image <= 1)).all()
    assert image[radius == 0].tobytes() == clean[radius == 0].tobytes()


def assert_equal(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("name", "shape"), CASES)
@settings(max_examples=15)
@given(data=st.data())
def test_ball_range_identity_and_determinism(name, shape, data):
    case = data.draw(cases(shape))
    found, value = solve(rugged, few(name), case)
    assert_inside(found.image, case)
    assert np.isfinite(value).all()
    assert ((found.zero_grad >= 0) & (found.zero_grad <= 1)).all()
    assert (found.restart_gap >= 0).all()
    assert_equal(solve(rugged, few(name), case), (found, value))


@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(max_examples=8)
@given(data=st.data())
def test_an_example_does_not_depend_on_its_batch(name, data):
    """In another place, or beside copies of itself, it comes out in the same bits: the program is the same.

    Alone it is another program, which may order its sums otherwise. Then a sign may hang on rounding and runs may part,
    so only the loss of the first point is compared: every method begins at the same one, whatever the batch.
    """
    case = data.draw(cases(SHAPES[2]))
    found = solve(rugged, few(name), case)
    for order in (np.array(data.draw(st.permutations(range(BATCH)))), np.full(BATCH, 1)):
        moved = solve(rugged, few(name), tuple(part[order] for part in case))
        assert_equal(moved, jax.tree.map(lambda leaf: leaf[order], found))  # noqa: B023
    single = tuple(part[1:2] for part in case)
    alone, _ = solve(rugged, few(name), single)
    assert_inside(alone.image, single)
    np.testing.assert_allclose(alone.loss_first, found[0].loss_first[1:2], atol=ROUNDING)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name not in RANDOM])
@settings(max_examples=8)
@given(data=st.data(), other=st.integers(0, 2**31 - 1))
def test_keys_change_nothing_that_is_not_random(name, data, other):
    image, eps, share, seeds = data.draw(cases(SHAPES[2]))
    found = solve(rugged, few(name), (image, eps, share, seeds))
    assert_equal(solve(rugged, few(name), (image, eps, share, seeds + np.uint32(other))), found)


@pytest.mark.parametrize("name", RANDOM)
def test_another_key_is_another_draw(name):
    """On a loss that is lowest at the clean image, where all depends on the draw; but DI's draw needs a slope."""
    image, eps = np.full((8, *SHAPES[2]), 0.5, np.float32), np.full(8, 0.1, np.float32)
    loss = rugged if name == "di_fgsm" else valley
    one, other = (
        solve(loss, few(name), (image, eps, np.ones_like(image), np.arange(at, at + 8, dtype=np.uint32)))[0]
        for at in (0, 8)
    )
    assert (one.image != other.image).any(axis=(1, 2, 3)).all()


@pytest.mark.parametrize("name", [*KEEPS_BEST, "fab"])
@settings(max_examples=8)
@given(data=st.data())
def test_the_best_only_gets_better(name, data):
    """Step by step; of FAB it is the nearest image beyond the boundary that only gets nearer.

    And what is returned is as good as the best of all steps.
    """
    case = data.draw(cases(SHAPES[2]))
    states = trace(rugged, few(name, 6), *case)
    best = {"apgd": lambda: states.best, "fab": lambda: states.nearest}.get(name, lambda: states)().value
    best = np.asarray(best)
    assert (best[1:] >= best[:-1]).all()
    found, value = solve(rugged, few(name, 6), case)
    if name != "fab":
        assert (value >= best[-1] - ROUNDING).all()
        assert (value >= found.loss_first - ROUNDING).all()


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name.startswith("random_")])
@settings(max_examples=8)
@given(data=st.data())
def test_more_draws_are_never_worse(name, data):
    """The first draws of a long run are those of a short one."""
    case = data.draw(cases(SHAPES[2]))
    (_, fewer), (_, more) = (solve(rugged, few(name, steps), case) for steps in (3, 6))
    assert (more >= fewer - ROUNDING).all()


@settings(max_examples=8)
@given(data=st.data())
def test_restarts_are_never_worse_than_one_start(data):
    """The first of the starts is that of `pgd`; how much the others add is reported."""
    case = data.draw(cases(SHAPES[2]))
    _, one = solve(rugged, few("pgd"), case)
    found, best = solve(rugged, few("pgd_restarts"), case)
    np.testing.assert_allclose(best - one, found.restart_gap, atol=ROUNDING)
    assert (best >= one - ROUNDING).all()


@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(max_examples=15)
@given(data=st.data())
def test_losses_that_are_constant_infinite_or_not_numbers(name, data):
    """The image is still one of the ball; nothing to climb is told; what keeps the best keeps what is a number."""
    case = data.draw(cases(SHAPES[0], batch=len(LOSSES)))
    found, value = solve(each_its_own, few(name), case)
    assert_inside(found.image, case)
    flat = [LOSSES.index(level), LOSSES.index(nowhere)]
    np.testing.assert_array_equal(found.zero_grad[flat], 1 if name in GRADIENT else 0)
    np.testing.assert_array_equal(found.loss_first[flat], [3, np.nan])
    if name in (*KEEPS_BEST, "pgd_restarts"):
        assert not np.isnan(value[~np.isnan(found.loss_first)]).any()
    if name in GRADIENT and name not in ("pgd_restarts", *RANDOM):
        np.testing.assert_array_equal(found.image[flat], case[0][flat])


@settings(max_examples=100)
@given(data=st.data())
def test_rounded_images_are_grey_levels_in_the_ball(data):
    """As many whole levels as the budget holds: 8 / 255 are 8, although neither it nor the levels are exact."""
    clean, eps, share, seeds = data.draw(cases(SHAPES[1]))
    clean = np.round(clean * 255).astype(int)
    x = np.random.default_rng(seeds).uniform(-0.2, 1.2, clean.shape).astype(np.float32)
    got = np.asarray(jitted_quantize(x, LEVELS[clean], eps, share))
    level = np.round(got * 255).astype(int)
    np.testing.assert_array_equal(got, LEVELS[level])
    most = np.floor(255 * np.float64(eps)[:, None, None, None] * share + 1e-3)
    assert (np.abs(level - clean) <= most).all()
    np.testing.assert_array_equal(jitted_quantize(got, LEVELS[clean], eps, share), got)
    nearest = np.clip(x * 255, clean - most, clean + most).clip(0, 255)
    assert (np.abs(level - nearest) <= 1.001).all()


jitted_quantize = jax.jit(quantize, compiler_options=QUICK)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, bool])
def test_images_that_are_not_floats_are_refused(dtype):
    """Before anything else is looked at: here there is no agent at all."""
    frame = Frame(np.ones((1, 4, 4, 3), dtype), None, None, None)
    with pytest.raises(InputError, match=rf"image has dtype {np.dtype(dtype)}; expected floats in \[0, 1\]: grey"):
        attacks.perturb(Attack(), None, None, frame, None, threat(["vsa"], [0.1]))


def test_a_program_of_no_steps_returns_the_start():
    image = np.random.default_rng(0).uniform(size=(BATCH, *SHAPES[2])).astype(np.float32)
    found, _ = solve(
        rugged, Optimizer(0), (image, np.full(BATCH, 0.1, np.float32), np.ones_like(image), np.uint32([1] * 3))
    )
    np.testing.assert_array_equal(found.image, image)
    assert not np.any([found.loss_first, found.zero_grad, found.restart_gap])
