"""Every registered optimizer: the same iterates as an independent implementation, where it ends, and what it costs."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import QUICK, quick

from wmjax.attacks import apgd, black_box, initial_points, maximise, pgd
from wmjax.attacks.fab import FAB, to_plane
from wmjax.attacks.linf_ball import Ball, Problem, ball
from wmjax.attacks.optimizers import OPTIMIZERS, Optimizer, optimizer
from wmjax.attacks.pgd import MOMENTUM, SIGN, IteratedGradient
from wmjax.core.errors import InputError

SIDE, CLASSES, EXAMPLES = 12, 5, 8
NAMES = list(OPTIMIZERS)
GRADIENT = [name for name in NAMES if name != "square" and not name.startswith("random")]
BEST = ["apgd", "square", "random_uniform", "random_sign", "random_gaussian"]
"""These return the best point that they saw."""


def few(name):
    """The named optimizer, of a handful of steps."""
    return optimizer(name, None if name == "fgsm" else 6 if name in BEST else 3)


@jax.jit
def keys_of(seed):
    return jax.random.split(jax.random.key(seed), EXAMPLES)


jitted_to_plane = jax.jit(to_plane, compiler_options=QUICK)


def problem_at(image, eps, keys=None, start=None):
    eps = jnp.broadcast_to(jnp.asarray(eps, jnp.float32), len(image))
    return Problem(image, ball(image, eps), eps, image if start is None else start, keys)


@quick
def solve(loss, optimizer, problem):
    found = maximise(loss, optimizer, problem)
    return found, loss(found.image)


@quick
def trace(loss, optimizer, problem):
    """The states after each step."""
    method, steps = optimizer.method, optimizer.steps
    state = method.init(problem, optimizer.start(problem, jnp.int32(0)))

    def step(state, t):
        state, _ = method.step(loss, problem, state, t, steps)
        return state, state

    return jax.lax.scan(step, state, jnp.arange(steps))[1]


# The same classifier in JAX and in PyTorch: two smooth layers, so that gradients have no ties.


@pytest.fixture(scope="module")
def weights():
    rng = np.random.default_rng(0)
    size = (SIDE // 2) ** 2 * 6
    return (
        rng.normal(0, 0.5, (4, 4, 3, 6)).astype(np.float32),
        rng.normal(0, 2 / math.sqrt(size), (size, CLASSES)).astype(np.float32),
    )


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(1).uniform(size=(EXAMPLES, SIDE, SIDE, 3)).astype(np.float32)


def logits(weights, image):
    kernel, matrix = weights
    hidden = jax.lax.conv_general_dilated(
        image, kernel, (2, 2), ((1, 1), (1, 1)), dimension_numbers=("NHWC", "HWIO", "NHWC"), precision="highest"
    )
    return jnp.dot(jnp.tanh(hidden).reshape(len(image), -1), matrix, precision="highest")


def cross_entropy(weights, label):
    return lambda image: -jnp.take_along_axis(jax.nn.log_softmax(logits(weights, image)), label[:, None], 1)[:, 0]


@pytest.fixture(scope="module")
def loss(weights, images):
    """Cross entropy of the class of the clean image."""
    return cross_entropy(weights, np.argmax(logits(weights, images), -1))


@pytest.fixture(scope="module")
def published(weights, images):
    """(torchattacks, model, images, labels), images channels first; the model remembers what it was shown."""
    torch = pytest.importorskip("torch")
    torchattacks = pytest.importorskip("torchattacks", reason="the independent implementation of these attacks")

    class Model(torch.nn.Module):
        shown = ()

        def __init__(self):
            super().__init__()
            self.kernel, self.matrix = (torch.nn.Parameter(torch.from_numpy(w), False) for w in weights)

        def forward(self, x):
            self.shown = [*self.shown, x.detach().numpy().transpose(0, 2, 3, 1).copy()]  # some write into it
            hidden = torch.nn.functional.conv2d(x, self.kernel.permute(3, 2, 0, 1), stride=2, padding=1)
            return torch.tanh(hidden).permute(0, 2, 3, 1).flatten(1) @ self.matrix

    model = Model()
    x = channels_first(images)
    return torchattacks, model, x, model(x).argmax(-1)


def channels_first(x):
    return pytest.importorskip("torch").from_numpy(np.ascontiguousarray(np.transpose(x, (0, 3, 1, 2))))


def channels_last(x):
    return x.detach().numpy().transpose(0, 2, 3, 1)


def apart(a, b):
    """The share of pixels that differ by more than rounding."""
    return (np.abs(np.asarray(a) - np.asarray(b)) > 1e-6).mean()


def test_the_two_classifiers_are_one(published, weights, images):
    _, model, x, _ = published
    np.testing.assert_allclose(logits(weights, images), model(x), atol=2e-6)


EPS = 0.06
SAME = {
    "pgd": lambda ta, model, **kw: ta.PGD(model, random_start=False, **kw),
    "mi_fgsm": lambda ta, model, **kw: ta.MIFGSM(model, decay=1.0, **kw),
    "ni_fgsm": lambda ta, model, **kw: ta.NIFGSM(model, decay=1.0, **kw),
    "ti_fgsm": lambda ta, model, **kw: ta.TIFGSM(model, diversity_prob=0.0, **kw),
}


@pytest.mark.parametrize("name", SAME)
def test_iterates_are_the_published_ones(published, loss, images, record_property, name):
    torchattacks, model, x, label = published
    states, _ = trace(loss, optimizer(name), problem_at(images, EPS))
    worst = 0
    for step, ours in enumerate(states):
        theirs = SAME[name](torchattacks, model, eps=EPS, alpha=EPS / 10, steps=step + 1)(x, label)
        worst = max(worst, apart(ours, channels_last(theirs)))
    record_property("pixels that differ", worst)
    assert worst <= 1e-3
    found, _ = solve(loss, optimizer(name), problem_at(images, EPS))
    np.testing.assert_array_equal(found.image, states[-1])


def test_fgsm_is_the_published_one(published, loss, images):
    torchattacks, model, x, label = published
    found, _ = solve(loss, optimizer("fgsm"), problem_at(images, EPS))
    assert apart(found.image, channels_last(torchattacks.FGSM(model, eps=EPS)(x, label))) <= 1e-3


def test_pgd_from_the_published_random_start(published, loss, images):
    import torch

    torchattacks, model, x, label = published
    torch.manual_seed(3)
    start = torch.clamp(x + torch.empty_like(x).uniform_(-EPS, EPS), 0, 1)
    torch.manual_seed(3)
    theirs = torchattacks.PGD(model, eps=EPS, alpha=EPS / 10, steps=10, random_start=True)(x, label)
    found, _ = solve(loss, optimizer("pgd"), problem_at(images, EPS, start=jnp.asarray(channels_last(start))))
    assert apart(found.image, channels_last(theirs)) <= 1e-3


@pytest.mark.parametrize("steps", [10, 50, 100])
def test_apgd_is_the_published_one(published, weights, images, record_property, steps):
    """In float64, where no sign hangs on rounding: every iterate; and in float32 the loss."""
    import torch

    torchattacks, model, x, label = published
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(4)
        model.shown = ()
        attack = torchattacks.APGD(model.double(), eps=EPS, steps=steps)
        theirs, _, value, _ = attack.attack_single_run(x.double(), label)
    finally:
        torch.set_default_dtype(torch.float32)
        model.float()
    start, *rest = model.shown
    assert len(rest) == steps

    def ours(dtype):
        loss = cross_entropy([w.astype(dtype) for w in weights], label.numpy())
        eps = jnp.full(EXAMPLES, EPS, dtype)
        image = jnp.asarray(images, dtype)
        problem = Problem(image, ball(image, eps), eps, jnp.asarray(start, dtype))
        same_start = Optimizer(steps, apgd.APGD())
        return trace(loss, same_start, problem).image, *solve(loss, same_start, problem)

    with jax.enable_x64(True):
        iterates, found, best = ours(np.float64)
        np.testing.assert_allclose(iterates, rest, rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.image, channels_last(theirs), rtol=0, atol=1e-12)
        np.testing.assert_allclose(best, value, rtol=1e-12)
    _, _, single = ours(np.float32)
    record_property("loss in float32", np.abs(single / value.numpy() - 1).max())
    np.testing.assert_allclose(single, value, rtol=1e-3)


def test_apgd_checks_when_published():
    assert np.flatnonzero(apgd.windows(100)).tolist() == [22, 41, 57, 70, 80, 87, 93, 99]
    assert apgd.windows(100)[[22, 41, 99]].tolist() == [22, 19, 6]
    assert np.flatnonzero(apgd.windows(10)).tolist() == [2, 3, 4, 5, 6, 7, 8, 9]
    assert not apgd.windows(1).any()


def test_apgd_halves_its_step_where_the_loss_does_not_rise(images):
    """On a plateau every check halves; on a slope that never ends, none does."""
    halvings = np.count_nonzero(apgd.windows(20))
    states = trace(lambda x: 0 * jnp.sum(x, axis=(1, 2, 3)), optimizer("apgd", 20), problem_at(images, EPS, keys_of(0)))
    np.testing.assert_allclose(states.size[-1], 2 * EPS / 2**halvings, rtol=1e-6)
    endless = problem_at(images, 1e-4)
    endless = endless.replace(bounds=Ball(jnp.full_like(images, -1e9), jnp.full_like(images, 1e9)))
    states = trace(lambda x: jnp.sum(x, axis=(1, 2, 3)), Optimizer(20, apgd.APGD()), endless)
    np.testing.assert_allclose(states.size[-1], 2e-4, rtol=1e-6)


@pytest.mark.parametrize("queries", [100, 1000, 5000])
def test_squares_shrink_as_published(published, queries):
    torchattacks, model, _, _ = published
    theirs = torchattacks.Square(model, n_queries=queries)
    want = [max(round(math.sqrt(theirs.p_selection(i) * SIDE * SIDE)), 1) for i in range(queries)]
    got = black_box.sides(queries + 1, SIDE, SIDE)
    assert got[0] == 0
    assert np.count_nonzero(got[1:] != want) <= 2  # they divide in floats


def test_square_ends_as_high_as_published(published, weights, images, record_property):
    """Over seeds. Theirs stops where it changes the class, so the images are those that are far from that."""
    import torch

    torchattacks, model, x, label = published
    top = model(x).sort(-1).values
    sure = (top[:, -1] - top[:, -2]).argsort()[-4:]
    x, label, images = x[sure], label[sure], images[sure.numpy()]
    loss = cross_entropy(weights, label.numpy())
    eps, queries, seeds = 0.005, 100, 40
    theirs = torchattacks.Square(model, eps=eps, n_queries=queries, loss="ce")
    theirs.init_hyperparam(x)
    last, ours = [], []
    for seed in range(seeds):
        torch.manual_seed(seed)
        model.shown = ()
        _, best = theirs.attack_single_run(x, label)
        assert len(model.shown) == queries + 1  # it did not stop
        last.append(torch.nn.functional.cross_entropy(model(best), label).item())
        ours.append(solve(loss, optimizer("square", queries + 1), problem_at(images, eps, keys_of(seed)[:4]))[1])
    start = np.mean(loss(images))
    rise = (np.mean(ours) - start) / (np.mean(last) - start)
    record_property("loss, ours over theirs", np.mean(ours) / np.mean(last))
    record_property("rise of the loss, ours over theirs", rise)
    np.testing.assert_allclose(np.mean(ours), np.mean(last), rtol=0.01)
    np.testing.assert_allclose(rise, 1, atol=0.1)  # of 40 seeds; of 300 the ratio is 1.001


def test_di_ends_as_high_as_published(published, loss, images, record_property):
    import torch

    torchattacks, model, x, label = published
    attack = torchattacks.DIFGSM(model, eps=EPS, alpha=EPS / 10, steps=10)
    last = []
    for seed in range(20):
        torch.manual_seed(seed)
        last.append(torch.nn.functional.cross_entropy(model(attack(x, label)), label).item())
    ours = [np.mean(solve(loss, optimizer("di_fgsm"), problem_at(images, EPS, keys_of(s)))[1]) for s in range(20)]
    record_property("loss, ours over theirs", np.mean(ours) / np.mean(last))
    np.testing.assert_allclose(np.mean(ours), np.mean(last), rtol=0.01)


def test_fab_is_the_published_one(published, weights, images, record_property):
    """Between two classes, whose boundary is where the difference of their logits is zero."""
    torchattacks, model, x, _ = published
    two = weights[0], weights[1][:, :2]
    top = np.argmax(logits(two, images), -1)

    def beyond(image):
        score = logits(two, image)
        return jnp.where(top == 0, score[:, 1] - score[:, 0], score[:, 0] - score[:, 1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "matrix", pytest.importorskip("torch").nn.Parameter(model.matrix[:, :2], False))
        theirs = channels_last(torchattacks.FAB(model, eps=1.0, steps=10).attack_single_run(x))
    found, value = solve(beyond, Optimizer(10, FAB()), problem_at(images, 1.0))
    record_property("pixels", np.abs(found.image - theirs).max())
    np.testing.assert_allclose(found.image, theirs, rtol=0, atol=2e-5)
    assert (value > 0).all()
    # No ball much smaller than that has anything beyond the boundary, as a long climb says too.
    radius = np.abs(theirs - images).max(axis=(1, 2, 3))
    _, inside = solve(beyond, optimizer("apgd", 50), problem_at(images, 0.9 * radius, keys_of(0)))
    assert (inside < 0).all()


# The parts.


@given(st.integers(0, 2**31 - 1), st.floats(-3, 3, width=32))
def test_the_nearest_point_of_a_plane(seed, rise):
    """Against a linear program: the smallest `s` with |shift| <= s, inside [0, 1], that raises enough."""
    from scipy.optimize import linprog

    rng = np.random.default_rng(seed)
    image, normal = rng.uniform(size=(2, 1, 2, 2, 1)).astype(np.float32)
    normal = (normal - 0.5) * (rng.uniform(size=normal.shape) > 0.2)
    shift = np.asarray(jitted_to_plane(image, np.float32(normal), np.full(1, rise, np.float32)))
    assert ((image + shift >= -1e-6) & (image + shift <= 1 + 1e-6)).all()
    n = image.size
    bound = np.block([[np.eye(n), -np.ones((n, 1))], [-np.eye(n), -np.ones((n, 1))]])
    bounds = [*zip(-image.ravel(), 1 - image.ravel(), strict=True), (0, None)]
    best = linprog([0] * n + [1], bound, [0] * 2 * n, [[*normal.ravel(), 0]], [rise], bounds)
    raised = (normal * shift).sum()
    if best.success:
        np.testing.assert_allclose(raised, rise, atol=1e-5)
        np.testing.assert_allclose(np.abs(shift).max(), best.fun, atol=1e-5)
    else:
        reach = (np.abs(normal) * np.where(normal * rise > 0, 1 - image, image)).sum()
        np.testing.assert_allclose(raised, np.sign(rise) * reach, atol=1e-5)


def test_diverse_copies_are_bilinear_and_on_black(images):
    """Each is the image itself, or one of the copies that PyTorch makes."""
    torch = pytest.importorskip("torch")
    one = jnp.asarray(images[:1])
    copies = np.asarray(jax.jit(pgd.diverse)(jax.random.split(jax.random.key(0), 200), jnp.repeat(one, 200, 0)))
    known = {(SIDE, 0, 0): images[0]}
    for side in range(int(0.9 * SIDE), SIDE):
        small = torch.nn.functional.interpolate(channels_first(images[:1]), size=[side, side], mode="bilinear")
        for top in range(SIDE - side):
            for left in range(SIDE - side):
                pad = (left, SIDE - side - left, top, SIDE - side - top)
                known[side, top, left] = channels_last(torch.nn.functional.pad(small, pad))[0]
    found = [next(k for k, v in known.items() if np.abs(v - copy).max() < 1e-5) for copy in copies]
    assert set(found) == set(known)
    assert 0.35 < np.mean([side == SIDE for side, _, _ in found]) < 0.65


def test_smoothing_is_a_gaussian_blur():
    from scipy import ndimage

    gradient = np.random.default_rng(0).standard_normal((2, 20, 24, 3)).astype(np.float32)
    got, _ = pgd.SMOOTH.update(gradient, ())
    bell = np.exp(-0.5 * np.linspace(-3, 3, 15) ** 2)
    want = ndimage.correlate(gradient, np.outer(bell, bell)[None, :, :, None] / bell.sum() ** 2, mode="constant")
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_momentum_is_scale_free_and_survives_a_plateau():
    rng = np.random.default_rng(0)
    gradient = jnp.asarray(rng.standard_normal((2, 3, 3, 1)), jnp.float32)
    once, state = MOMENTUM.update(gradient, MOMENTUM.init(gradient))
    np.testing.assert_allclose(np.abs(once).mean(axis=(1, 2, 3)), 1, rtol=1e-6)
    scaled, _ = MOMENTUM.update(1e-20 * gradient, MOMENTUM.init(gradient))
    np.testing.assert_allclose(scaled, once, rtol=1e-5)
    still, _ = MOMENTUM.update(jnp.zeros_like(gradient), state)
    np.testing.assert_array_equal(still, once)


def test_starts(images):
    problem = problem_at(images, EPS, keys_of(1))
    first, later = jnp.int32(0), jnp.int32(1)
    inner = (images > EPS) & (images < 1 - EPS)
    shift = lambda start: (np.asarray(start) - images)[inner] / EPS  # noqa: E731
    np.testing.assert_array_equal(initial_points.given(problem, first), images)
    np.testing.assert_array_equal(initial_points.given_first(problem, first), images)
    np.testing.assert_array_equal(initial_points.given_first(problem, later), initial_points.uniform(problem, later))
    assert abs(shift(initial_points.uniform(problem, first)).std() * math.sqrt(3) - 1) < 0.05
    far = np.abs(initial_points.surface(problem, first) - images).max(axis=(1, 2, 3))
    assert (far <= np.float32(EPS)).all()
    assert far.mean() > 0.95 * EPS
    striped = np.asarray(initial_points.stripes(problem, first))
    np.testing.assert_allclose(np.abs(shift(striped)), 1, rtol=1e-4)
    up = striped > images
    assert (up == up[:, :1]).mean() > 0.99  # but for pixels that are 0 or 1 already
    assert 0.4 < up.mean() < 0.6


# Where they end.


def cliff(image):
    """Not a number on one side."""
    height = jnp.mean(image, axis=(1, 2, 3))
    return jnp.where(height > 0.501, jnp.nan, height)


def level(image):
    return jnp.full(len(image), 3.0) + 0 * image[:, 0, 0, 0]


@pytest.mark.parametrize("name", BEST)
def test_the_best_is_noted_with_its_own_loss_and_any_number_beats_none(name):
    image = jnp.full((EXAMPLES, 8, 8, 3), 0.5) + 0.01 * jax.random.normal(jax.random.key(0), (EXAMPLES, 8, 8, 3))
    problem = problem_at(image, 0.1, keys_of(0))
    states = trace(cliff, few(name), problem)
    best = states.best if name == "apgd" else states
    known = np.isfinite(best.value)
    assert known[-1].any()
    np.testing.assert_allclose(jax.vmap(cliff)(best.image)[known], best.value[known], rtol=1e-4, atol=1e-4)
    _, value = solve(cliff, few(name), problem)
    assert np.isfinite(value)[known[-1]].all()


def test_restarts_find_the_other_peak():
    """Two peaks, the far one higher; one start climbs the near one."""

    def peaks(image):
        x = image[:, 0, 0, 0]
        return jnp.where(x < 0.5, -jnp.abs(x - 0.45), 2 - jnp.abs(x - 0.6))

    problem = problem_at(jnp.full((EXAMPLES, 1, 1, 1), 0.44), 0.3, keys_of(0))
    first, one = solve(peaks, optimizer("pgd"), problem)
    found, best = solve(peaks, optimizer("pgd_restarts"), problem)
    np.testing.assert_allclose(found.loss_first, first.loss_first, rtol=1e-6)
    assert (one < 0).all()
    assert (best > 1.9).sum() >= EXAMPLES - 2


@pytest.mark.parametrize("name", ["pgd_random_start", "pgd_restarts", "di_fgsm", "apgd"])
def test_a_zero_gradient_leaves_the_optimizers_own_start(name, images):
    problem = problem_at(images, 0.1, keys_of(0))
    found, _ = solve(level, optimizer(name, 3), problem)
    want = optimizer(name).start(problem, jnp.int32(0))
    np.testing.assert_allclose(found.image, want, atol=1e-7)


def test_better_ones_climb_higher(loss, images):
    """Gradients over squares over draws, and many draws over one."""
    high = {}
    for name, steps in {"fgsm": 1, "pgd": 10, "pgd_restarts": 10, "apgd": 20, "square": 200}.items():
        high[name] = solve(loss, optimizer(name, steps), problem_at(images, EPS, keys_of(0)))[1]
    for name in ("uniform", "sign", "gaussian"):
        _, one = solve(loss, optimizer(f"random_{name}", 1), problem_at(images, EPS, keys_of(0)))
        _, many = solve(loss, optimizer(f"random_{name}", 20), problem_at(images, EPS, keys_of(0)))
        assert (many >= one).all()
        assert (high["square"] > many).all()
    assert (high["fgsm"] > high["square"] * 0.8).all()
    assert (high["pgd"] > high["square"]).all()
    assert (high["apgd"] >= high["pgd"] - 1e-3).all()
    assert (high["pgd_restarts"] >= high["pgd"]).all()


# What a frame costs.


def counted(calls):
    """A loss that counts its forward and backward passes."""

    def count(what, image):
        def note(_):
            calls[what] = calls.get(what, 0) + 1
            return np.float32(0)

        return jax.pure_callback(note, jax.ShapeDtypeStruct((), jnp.float32), jnp.sum(image))

    @jax.custom_vjp
    def loss(image):
        return jnp.sum(image, axis=(1, 2, 3)) + count("forward", image)

    def forward(image):
        return loss(image), image

    def backward(image, slope):
        return (jnp.ones_like(image) * slope[:, None, None, None] + count("backward", image),)

    loss.defvjp(forward, backward)
    return loss


@pytest.mark.parametrize("name", NAMES)
def test_evaluations(name):
    steps = few(name).steps
    forward, backward = steps, steps
    if name == "apgd":
        forward += 1
    elif name == "pgd_restarts":
        forward, backward = 5 * (steps + 1), 5 * steps
    elif name == "fab":
        forward += steps
    elif name not in GRADIENT:
        backward = 0
    calls = {}
    loss = counted(calls)
    problem = problem_at(jnp.full((EXAMPLES, 5, 5, 1), 0.5), 0.1, keys_of(0))
    jax.block_until_ready(jax.jit(lambda problem: maximise(loss, few(name), problem), compiler_options=QUICK)(problem))
    assert (calls["forward"], calls.get("backward", 0)) == (forward, backward)


# Names and numbers.


def test_registry():
    for name, make in OPTIMIZERS.items():
        assert optimizer(name) == make(None)
        assert hash(optimizer(name)) == hash(make(None))
        if name != "fgsm":
            assert optimizer(name, 7).steps == 7
            with pytest.raises(InputError, match=f"steps is 0; {name} needs at least 1"):
                optimizer(name, 0)
    assert optimizer("mi_fgsm") == Optimizer(10, IteratedGradient((MOMENTUM, SIGN)))
    assert len({optimizer(name) for name in OPTIMIZERS}) == len(OPTIMIZERS)
