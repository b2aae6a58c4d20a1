"""Objectives: values by hand and by SciPy, where they have no slope, mixtures, and attacks on two kinds of actor."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from programs import QUICK, quick

from wmjax.agents.base import Belief, Internals, Prediction
from wmjax.attacks import (
    Attack,
    Frame,
    attacker_loss,
    draw,
    losses,
    objective_targets,
    objective_weights,
    optimizer,
    threat,
)
from wmjax.attacks import perturb as plain_perturb
from wmjax.attacks.objectives import (
    BINS,
    HAS_BOUNDARY,
    NAMES,
    NEEDS_DISTANCE,
    OBJECTIVES,
    TAU,
    critic,
    mixture,
    policy_gap,
    towards,
    value_gap,
)
from wmjax.core.distributions import DiagGaussian, OneHot
from wmjax.core.errors import InputError

perturb = quick(plain_perturb)


def internals(policy, seed=0):
    """Internals with that policy; another seed is another latent."""
    batch = len(policy.mode())
    rng = np.random.default_rng(seed)
    normal = lambda *shape: jnp.asarray(rng.standard_normal(shape, np.float32))  # noqa: E731
    return Internals(
        policy=policy,
        value=normal(batch),
        stoch=jnp.asarray(np.eye(4, dtype=np.float32)[rng.integers(0, 4, (batch, 8))]),
        deter=jnp.ones((batch, 4)),
        post_logits=normal(batch, 8, 4),
        prior_logits=normal(batch, 8, 4),
    )


def gaussian(mean, std=1.0):
    mean = jnp.atleast_2d(jnp.float32(mean))
    return DiagGaussian(mean, jnp.broadcast_to(jnp.float32(std), mean.shape))


def classes(probs):
    return OneHot(jnp.log(jnp.atleast_2d(jnp.float32(probs))))


def loss(name, clean, adv):
    return float(OBJECTIVES[name](internals(clean), internals(adv, seed=1))[0])


def worth(action):
    """An action value: the sum of its components, each with a weight of its own."""
    return action @ jnp.arange(1.0, action.shape[-1] + 1)


# Values.


def test_names():
    assert NAMES == ("pda", "pea", "vsa", "lda", "dca", "ce", "dlr", "mad", "boundary", "target", "critic")
    assert set(NAMES) >= NEEDS_DISTANCE | HAS_BOUNDARY


def test_values_of_a_continuous_actor():
    clean, adv = gaussian([0.0, 0.5], [0.5, 0.25]), gaussian([0.25, -0.5], [0.1, 1.0])
    density = scipy.stats.norm([0.25, -0.5], [0.1, 1.0])
    assert loss("ce", clean, adv) == pytest.approx(-density.logpdf([0, 0.5]).sum(), rel=1e-6)
    assert loss("mad", clean, adv) == pytest.approx((0.25 / 0.5) ** 2 + (1 / 0.25) ** 2)
    assert loss("boundary", clean, adv) == pytest.approx(1 - TAU)
    assert loss("boundary", clean, clean) == pytest.approx(-TAU)
    target = towards(jnp.array([[0.3, 0.7]]))(internals(clean), internals(adv))
    np.testing.assert_allclose(target, density.logpdf([0.3, 0.7]).sum(), rtol=1e-6)
    target = towards(jnp.array([[0.3]]))(internals(clean), internals(adv))
    np.testing.assert_allclose(target, density.logpdf(0.3).sum(), rtol=1e-6)
    np.testing.assert_allclose(critic(worth)(internals(clean), internals(adv)), -(0.25 - 2 * 0.5))


def test_dlr_of_a_continuous_actor():
    edges = np.concatenate([[-np.inf], np.linspace(-1, 1, BINS + 1)[1:-1], [np.inf]])
    clean, adv = ([0.0, 0.5], [0.5, 0.25]), ([0.25, -0.5], [0.4, 1.0])
    want = 0.0
    for i in range(2):
        y, z = (np.log(np.diff(scipy.stats.norm(p[0][i], p[1][i]).cdf(edges))) for p in (clean, adv))
        y = np.argmax(y)
        first, _, third = np.sort(z)[::-1][:3]
        want -= (z[y] - np.delete(z, y).max()) / (first - third)
    assert loss("dlr", gaussian(*clean), gaussian(*adv)) == pytest.approx(want, rel=1e-4)


def test_values_of_a_categorical_actor():
    clean, adv = classes([0.5, 0.3, 0.2]), classes([0.1, 0.2, 0.7])
    divergence = scipy.stats.entropy([0.5, 0.3, 0.2], [0.1, 0.2, 0.7])
    assert loss("pda", clean, adv) == pytest.approx(divergence, rel=1e-5)
    assert loss("mad", clean, adv) == pytest.approx(divergence, rel=1e-5)
    assert loss("pea", clean, adv) == pytest.approx(scipy.stats.entropy([0.1, 0.2, 0.7]), rel=1e-5)
    assert loss("ce", clean, adv) == pytest.approx(-np.log(0.1), rel=1e-6)
    assert loss("boundary", clean, adv) == pytest.approx(np.log(0.7 / 0.1), rel=1e-6)
    assert loss("boundary", clean, clean) == pytest.approx(np.log(0.3 / 0.5), rel=1e-6)
    assert loss("dlr", clean, adv) == pytest.approx(1)  # log(0.7 / 0.1) / log(0.7 / 0.1)
    assert loss("dlr", clean, clean) == pytest.approx(-np.log(0.5 / 0.3) / np.log(0.5 / 0.2), rel=1e-5)
    assert loss("dlr", classes([0.6, 0.4]), classes([0.2, 0.8])) == pytest.approx(np.log(4), rel=1e-5)
    for number, index in ((-1.0, 0), (-0.4, 1), (0.0, 1), (0.6, 2), (1.0, 2)):
        target = towards(jnp.array([[number]]))(internals(clean), internals(adv))
        np.testing.assert_allclose(target, np.log([0.1, 0.2, 0.7][index]), rtol=1e-6)
    target = towards(jnp.array([[0.0, 1.0, 0.0]]))(internals(clean), internals(adv))
    np.testing.assert_allclose(target, np.log(0.2), rtol=1e-6)
    np.testing.assert_allclose(critic(worth)(internals(clean), internals(adv)), -3)


def test_gaps_of_a_continuous_actor():
    # Sure of one bin; and as good as sure that it is one of the outer two.
    np.testing.assert_allclose(policy_gap(gaussian([0.0, 0.0], [1e-3, 1e3])), [(1 + 0.5) / 2], atol=1e-3)
    np.testing.assert_allclose(policy_gap(gaussian([1.0], [0.1])), scipy.stats.norm.cdf(2 / BINS / 0.1), rtol=1e-5)
    np.testing.assert_allclose(value_gap(gaussian([0.5, -0.5]), worth), [1.5])  # to (-1, -0.5)
    np.testing.assert_allclose(value_gap(gaussian([0.5, 0.5]), worth), [3.0])  # to (0.5, -1)
    assert value_gap(gaussian([-1.0, -1.0]), worth) == 0  # nothing is worse


def test_gaps_of_a_categorical_actor():
    policy = classes([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
    np.testing.assert_allclose(policy_gap(policy), [0.3, 0.6], rtol=1e-6)
    np.testing.assert_allclose(value_gap(policy, worth), [0, 2])


@partial(jax.jit, compiler_options=QUICK)
def both_gaps(policy):
    return policy_gap(policy), value_gap(policy, lambda action: jnp.sin(7 * worth(action)))


@given(hnp.arrays(np.float32, (4, 6), elements=st.floats(-30, 30, width=32)))
def test_gaps_have_their_ranges(raw):
    for policy in (DiagGaussian.bounded(jnp.asarray(raw)), OneHot.raw(jnp.asarray(raw))):
        gap, cost = both_gaps(policy)
        assert ((gap >= 0) & (gap <= 1)).all()
        assert (cost >= 0).all()


@partial(jax.jit, compiler_options=QUICK)
def jitted_dlr(clean, adv):
    return OBJECTIVES["dlr"](internals(OneHot(clean)), internals(OneHot(adv)))


logits = hnp.arrays(np.float32, (3, 5), elements=st.floats(-20, 20, width=32))


@given(logits, logits, st.floats(-50, 50, width=32), st.floats(0.125, 8, width=32))
def test_dlr_does_not_depend_on_where_logits_begin_or_how_long_they_are(z, other, shift, scale):
    z = np.round(z * 4) / 4  # so that no shift rounds a difference away
    ordered = np.sort(z, axis=-1)
    apart = ordered[:, -1] > ordered[:, -3]
    want = jitted_dlr(other, z)
    for moved in (z + np.round(shift * 4) / 4, z * scale):
        np.testing.assert_allclose(jitted_dlr(other, np.float32(moved))[apart], want[apart], rtol=1e-4, atol=1e-6)


@given(logits, logits)
def test_the_boundary_is_where_another_class_wins(z, other):
    other = np.round(other * 4) / 4  # so that no rounding makes two classes equal
    ordered = np.sort(z, axis=-1)
    clear = ordered[:, -1] - ordered[:, -2] > 1e-4
    value = OBJECTIVES["boundary"](internals(OneHot.raw(jnp.asarray(other))), internals(OneHot.raw(jnp.asarray(z))))
    flips = z.argmax(-1) != other.argmax(-1)
    np.testing.assert_array_equal((np.asarray(value) > 0)[clear], flips[clear])


@given(hnp.arrays(np.float32, (2, 3, 4), elements=st.floats(-1, 1, width=32)))
def test_the_boundary_of_a_continuous_actor_is_a_distance(means):
    value = OBJECTIVES["boundary"](internals(gaussian(means[0])), internals(gaussian(means[1]), seed=1))
    np.testing.assert_allclose(value, np.abs(means[0] - means[1]).max(-1) - TAU, atol=1e-6)


# Numbers that are none.


def total(name, further):
    everything = {**OBJECTIVES, **further}
    return lambda clean, adv: jnp.sum(everything[name](clean, adv))


@pytest.mark.parametrize("kind", [DiagGaussian.bounded, OneHot.unimix, OneHot.raw])
@pytest.mark.parametrize("name", NAMES)
def test_extreme_policies_have_finite_losses_and_slopes(kind, name):
    ends = np.float32([-1e4, -30, 0, 30, 1e4])
    raw = np.stack(np.meshgrid(ends, ends, ends, ends), -1).reshape(-1, 4)
    rng = np.random.default_rng(0)
    clean, adv = internals(kind(jnp.asarray(raw))), internals(kind(jnp.asarray(rng.permutation(raw))), seed=1)
    further = {"target": towards(jnp.full((len(raw), 1), -1.0)), "critic": critic(worth)}
    judged = jax.jit(jax.value_and_grad(total(name, further), argnums=1), compiler_options=QUICK)
    for other in (adv, clean):
        value, slope = judged(clean, other)
        assert all(np.isfinite(leaf).all() for leaf in (value, *jax.tree.leaves(slope)))


@pytest.mark.parametrize("broken", ["clean", "adv"])
def test_a_weight_of_zero_leaves_out_what_is_not_a_number(broken):
    """Row 0 has a policy without a density; its value is as good as any."""
    sound, bad = gaussian([[0.1, 0.2], [0.3, 0.4]]), gaussian([[np.inf, np.nan], [0.3, 0.4]], [[0.0, 0.0], [1.0, 1.0]])
    clean, adv = internals(bad if broken == "clean" else sound), internals(bad if broken == "adv" else sound, seed=1)
    further = {"target": towards(jnp.zeros((2, 1))), "critic": critic(worth)}
    assert not np.isfinite(jax.jit(lambda adv: losses(clean, adv, further), compiler_options=QUICK)(adv)[0]).all()
    weights = jnp.asarray(objective_weights(["2*vsa", "pea+vsa"]))

    @partial(jax.jit, compiler_options=QUICK)
    def mixed(adv):
        value, pullback = jax.vjp(lambda adv: mixture(weights, clean, adv, further), adv)
        return value, pullback(jnp.ones(2))[0]

    value, slope = mixed(adv)
    np.testing.assert_allclose(value[0], -2 * adv.value[0])
    np.testing.assert_array_equal(slope.value, [-2, -1])
    np.testing.assert_array_equal(slope.policy.mean, 0)
    np.testing.assert_array_equal(slope.policy.std, [[0, 0], [1, 1]])


def test_a_mixture_is_a_weighted_sum():
    clean, adv = internals(gaussian([[0.1, 0.2]] * 3)), internals(gaussian([[0.5, -0.2]] * 3, 0.5), seed=1)
    further = {"target": towards(jnp.full((3, 1), 0.5)), "critic": critic(worth)}
    weights = objective_weights(["vsa+0.5*pea", "mad+2*critic+0.25*target(0.5)", "random"])

    @partial(jax.jit, compiler_options=QUICK)
    def both(clean, adv):
        return mixture(jnp.asarray(weights), clean, adv, further), losses(clean, adv, further)

    got, parts = both(clean, adv)
    np.testing.assert_allclose(got, (weights * parts).sum(-1), rtol=1e-6)
    assert got[2] == 0


# Names.

numbers = st.decimals("0.001", 99, places=3)
names = st.sampled_from([name for name in NAMES if name != "target"])
aims = st.decimals(-1, 1, places=2)


@given(st.dictionaries(names, numbers, max_size=4), st.none() | st.tuples(aims, numbers), st.randoms())
def test_mixtures_are_read_as_they_are_written(terms, aim, random):
    written = [f"{weight}*{name}" for name, weight in terms.items()]
    want = np.zeros(len(NAMES), np.float32)
    for name, weight in terms.items():
        want[NAMES.index(name)] = weight
    if aim is not None or not terms:
        target, weight = aim or (0, 1)
        want[NAMES.index("target")] = weight
        written.append(f"{weight}*target({target})")
    random.shuffle(written)
    text = "+".join(written)
    np.testing.assert_array_equal(objective_weights(["pda", text])[1], want)
    np.testing.assert_array_equal(objective_targets(["pda", text]), np.float32([0, aim[0] if aim else 0]))


def test_single_names():
    weights = objective_weights([*NAMES[:9], "target(-0.5)", "critic", "random", "clean"])
    assert weights.dtype == np.float32
    np.testing.assert_array_equal(weights, np.eye(13, 11))
    np.testing.assert_array_equal(objective_targets(["vsa", "target(-0.5)", "random", "target(1)"]), [0, -0.5, 0, 1])
    assert objective_targets(["vsa"]).dtype == np.float32
    assert objective_weights([]).shape == (0, 11)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("VSA", ["unknown objective 'VSA'", "boundary", "target(v)", "random", "vsa+0.5*pea"]),
        ("vsa+pae", ["unknown objective 'pae'", "pea"]),
        ("", ["unknown objective ''"]),
        ("vsa+", ["unknown objective ''"]),
        ("vsa+random", ["unknown objective 'random'"]),
        ("vsa + pea", ["unknown objective 'vsa '"]),
        ("-1*vsa", ["unknown objective '-1*vsa'"]),
        ("inf*vsa", ["unknown objective"]),
        ("2*2*vsa", ["unknown objective '2*vsa'"]),
        ("1e9*vsa", ["unknown objective"]),
        ("vsa(1)", ["unknown objective 'vsa(1)'"]),
        ("vsa\n", ["unknown objective"]),
        ("0*vsa", ["0*vsa", "above 0"]),
        ("vsa+0.5*vsa", ["names vsa twice"]),
        ("target", ["one number from -1 to 1"]),
        ("target(1.5)", ["target(1.5)", "from -1 to 1"]),
        ("target(0,1)", ["one number"]),
        ("target(0)+target(1)", ["names target twice"]),
    ],
)
def test_wrong_names(text, words):
    for read in (objective_weights, objective_targets):
        with pytest.raises(InputError) as error:
            read(["vsa", text])
        message = str(error.value)
        assert "\n" not in message
        assert all(word in message for word in words)


# Whole attacks.

IMAGINED = []
"""An entry each time that an action value of the victim below was computed."""


@dataclass(frozen=True)
class Chooser:
    """A small agent with a categorical actor. Its latent is hard as a Dreamer's, or smooth."""

    hard: bool = True
    continuous: bool = False
    action_size: int = 4
    image_size: int = 6
    latent_shape: tuple[int, int] = (3, 4)

    @partial(jax.jit, static_argnums=0, compiler_options=QUICK)
    def init(self, key):
        shapes = {"encoder": (108, 12), "core": (8 + self.action_size, 8), "prior": (8, 12), "obs": (8, 12)}
        shapes |= {"actor": (20, 2 * self.action_size if self.continuous else self.action_size), "critic": (20, 1)}
        keys = jax.random.split(key, len(shapes))
        return {name: jax.random.normal(k, shapes[name]) / 3 for name, k in zip(shapes, keys, strict=True)}

    def initial(self, batch):
        return Belief(jnp.zeros((batch, *self.latent_shape)), jnp.zeros((batch, 8)))

    def predict(self, params, belief, action):
        deter = jnp.tanh(jnp.concatenate([belief.deter, action], -1) @ params["core"])
        return Prediction(deter, (deter @ params["prior"]).reshape(-1, *self.latent_shape), deter @ params["obs"])

    def embed(self, params, image):
        return image.reshape(len(image), -1) @ params["encoder"]

    def update(self, params, prediction, embedding, noise):
        logits = (prediction.obs_hidden + embedding).reshape(-1, *self.latent_shape)
        latent = OneHot.unimix(logits)
        stoch = jax.nn.softmax(logits) if not self.hard else latent.mode() if noise is None else latent.sample(noise)
        belief = Belief(stoch, prediction.deter)
        raw, value = (self._feature(belief) @ params[name] for name in ("actor", "critic"))
        policy = DiagGaussian.bounded(raw) if self.continuous else OneHot.raw(raw)
        return belief, Internals(policy, value[:, 0], stoch, prediction.deter, logits, prediction.prior_logits)

    def action_value(self, params, belief, action):
        jax.debug.callback(lambda: IMAGINED.append(1))
        after = self.predict(params, belief, action)
        return (self._feature(Belief(belief.stoch, after.deter)) @ params["critic"])[:, 0]

    def _feature(self, belief):
        return jnp.concatenate([belief.stoch.reshape(len(belief.deter), -1), belief.deter], -1)


def scene(victim, params, batch):
    """(victim, params, frame, draw) of random frames."""
    return victim, params, *drawn_frames(victim, params, batch)


@partial(jax.jit, static_argnums=(0, 2), compiler_options=QUICK)
def drawn_frames(victim, params, batch):
    keys = jax.random.split(jax.random.key(7), 4)
    image = jax.random.uniform(keys[0], (batch, victim.image_size, victim.image_size, 3))
    noise = jax.random.gumbel(keys[1], (batch, *victim.latent_shape))
    action = jax.random.uniform(keys[2], (batch, victim.action_size))
    prediction = victim.predict(params, victim.initial(batch), action)
    frame = Frame(image, victim.embed(params, image), prediction, noise)
    return frame, draw(victim, jax.random.split(keys[3], batch))


ALL = [*NAMES[:9], "target(0.5)", "critic", "vsa+0.5*pea"]


@pytest.fixture(scope="module")
def dreamer(tiny):
    return scene(*tiny, len(ALL))


@pytest.fixture(scope="module")
def chooser():
    return scene(Chooser(), Chooser().init(jax.random.key(0)), len(ALL))


@quick
def slopes(attack, victim, params, frame, drawn, hunt, image):
    value, pullback = jax.vjp(attacker_loss(attack, victim, params, frame, drawn, hunt), image)
    return value, pullback(jnp.ones_like(value))[0]


@pytest.mark.parametrize("noise", ["shared", "mode"])
@pytest.mark.parametrize("kind", ["dreamer", "chooser"])
def test_which_objectives_need_distance(kind, noise, request):
    """Exactly these have no slope at the clean image; the boundary of a categorical actor does have one."""
    victim, params, frame, drawn = request.getfixturevalue(kind)
    hunt = threat(ALL, [0.1] * len(ALL))
    _, slope = slopes(Attack(noise=noise), victim, params, frame, drawn, hunt, frame.image)
    flat = {name for name, row in zip(ALL, slope, strict=True) if not np.any(row)}
    assert flat == (NEEDS_DISTANCE if kind == "dreamer" else NEEDS_DISTANCE - {"boundary"})


@pytest.mark.parametrize("name", ["pda", "mad", "boundary"])
@pytest.mark.parametrize("kind", [gaussian, OneHot.raw])
def test_rounding_between_equal_latents_has_no_slope(name, kind):
    """Two compiled passes may round the policy of one latent differently; a sign step would take that for truth."""
    if name == "boundary" and kind is not gaussian:
        pytest.skip("its slope is no rounding")
    clean = internals(kind(jnp.array([[0.1, 0.4]])))
    nearly = clean.replace(policy=jax.tree.map(lambda leaf: leaf + 1e-6, clean.policy))
    judged = jax.jit(jax.value_and_grad(lambda adv: OBJECTIVES[name](clean, adv)[0]), compiler_options=QUICK)
    value, slope = judged(nearly)
    assert value == (-TAU if name == "boundary" else 0)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(slope))
    _, slope = judged(nearly.replace(deter=clean.deter + 1))
    assert any(np.any(leaf) for leaf in jax.tree.leaves(slope))


def climbed(victim, params, frame, drawn, attack):
    """The losses of the clean and of the attacked images."""
    hunt = threat(ALL, [0.3] * len(ALL))
    image = perturb(attack, victim, params, frame, drawn, hunt).image
    assert np.abs(np.asarray(image - frame.image)).max() <= 0.3 + 1e-6
    return [np.asarray(slopes(attack, victim, params, frame, drawn, hunt, x)[0]) for x in (frame.image, image)]


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("continuous", [False, True])
def test_every_objective_rises(continuous, draws):
    """Where the latent is smooth, and gradients tell the truth."""
    victim = Chooser(hard=False, continuous=continuous)
    played = scene(victim, victim.init(jax.random.key(0)), len(ALL))
    before, after = climbed(*played, Attack(optimizer("pgd"), "shared", draws=draws))
    rises = after > before
    if not continuous:  # its action is one class or another, and what the critic says of it a staircase
        rises[NAMES.index("critic")] |= after[NAMES.index("critic")] == before[NAMES.index("critic")]
    assert rises.all()


@pytest.mark.parametrize(("noise", "draws"), [("fresh", 1), ("fresh", 3), ("mode", 1)])
@pytest.mark.parametrize("kind", ["dreamer", "chooser"])
def test_most_objectives_rise_where_latents_are_hard(kind, noise, draws, request):
    before, after = climbed(*request.getfixturevalue(kind), Attack(optimizer("pgd"), noise, draws=draws))
    assert np.isfinite(after).all()
    assert (after > before).sum() >= len(ALL) // 2


def test_objectives_targets_and_mixtures_share_a_program(chooser):
    programs = set()
    for name in ("vsa", "critic", "target(0.25)", "ce+2*dlr", "random"):
        perturb(Attack(optimizer("pgd", 4)), *chooser, threat([name] * len(ALL), [0.1] * len(ALL)))
        programs.add(perturb._cache_size())
    assert len(programs) == 1


def test_nothing_is_imagined_unless_asked(chooser):
    victim, params, frame, drawn = chooser
    for hunted, asked in ((["vsa"] * 12, False), (["vsa"] * 11 + ["pea+0.1*critic"], True)):
        IMAGINED.clear()
        found = perturb(Attack(optimizer("pgd", 4)), victim, params, frame, drawn, threat(hunted, [0.1] * 12))
        jax.block_until_ready(found)
        jax.effects_barrier()
        assert bool(IMAGINED) == asked


@pytest.mark.parametrize("kind", ["dreamer", "chooser"])
def test_the_critic_judges_in_the_clean_belief(kind, request):
    """Value and slope are those of the action value, with the belief of the clean pass."""
    victim, params, frame, drawn = request.getfixturevalue(kind)
    image = jnp.clip(frame.image + 0.1 * drawn.start, 0, 1)
    hunt = threat(["critic"] * len(ALL), [0.1] * len(ALL))

    @jax.jit
    def directly(image):
        belief, _ = victim.update(params, frame.prediction, frame.embedding, frame.noise)
        _, adv = victim.update(params, frame.prediction, victim.embed(params, image), drawn.gumbel)
        return -victim.action_value(params, jax.lax.stop_gradient(belief), adv.policy.mode())

    want, pullback = jax.vjp(directly, image)
    value, slope = slopes(Attack(), victim, params, frame, drawn, hunt, image)
    np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-6)
    (want,) = pullback(jnp.ones_like(want))
    assert np.abs(want).max() > 0
    np.testing.assert_allclose(slope, want, rtol=1e-3, atol=1e-5 * np.abs(want).max())


def test_action_value_of_a_dreamer(tiny):
    """Reward, continuation and value of where one imagined step leads."""
    victim, params = tiny
    keys = jax.random.split(jax.random.key(3), 3)
    belief = Belief(
        jax.nn.one_hot(jax.random.randint(keys[0], (5, 4), 0, 4), 4), jnp.tanh(jax.random.normal(keys[1], (5, 32)))
    )
    action = jax.random.uniform(keys[2], (5, 2), minval=-1.0)

    @partial(jax.jit, compiler_options=QUICK)
    def apart(action):
        after = victim.imagine(params, belief, action, None)
        return (
            victim.reward(params, after).mean(),
            victim.cont(params, after).prob(),
            victim.value(params, after).mean(),
        )

    reward, going_on, value = apart(action)
    np.testing.assert_allclose(victim.discount, 0.996997, atol=1e-6)
    got = jax.jit(victim.action_value, compiler_options=QUICK)(params, belief, action)
    np.testing.assert_allclose(got, reward + victim.discount * going_on * value, rtol=1e-5, atol=1e-6)
    assert got.shape == (5,)
    total = lambda action: jnp.sum(victim.action_value(params, belief, action))  # noqa: E731
    slope = jax.jit(jax.grad(total), compiler_options=QUICK)(action)
    assert np.abs(slope).max() > 0


@pytest.mark.parametrize(("continuous", "noise"), [(False, "fresh"), (True, "shared")])
def test_fab_comes_closer_than_pgd(continuous, noise):
    """The distance at which FAB finds another action is below any budget with which PGD does."""
    victim = Chooser(hard=False, continuous=continuous)
    victim, params, frame, drawn = scene(victim, victim.init(jax.random.key(1)), 8)
    hunt, given = threat(["boundary"] * 8, [1] * 8), (victim, params, frame, drawn)

    def run(name, eps):
        return perturb(Attack(optimizer(name, 30), noise), *given, threat(["boundary"] * 8, eps)).image

    def beyond(image):
        return np.asarray(slopes(Attack(noise=noise), *given, hunt, image)[0]) > 0

    image = run("fab", [0.5] * 8)
    distance = np.abs(np.asarray(image - frame.image)).max(axis=(1, 2, 3))
    assert beyond(image).all()
    assert not beyond(frame.image).any()
    assert (distance < 0.5).all()
    needed = np.full(8, np.inf)
    for eps in np.linspace(0.005, 0.5, 34)[::-1]:
        needed[beyond(run("pgd", [eps] * 8))] = eps
    assert np.isfinite(needed).all()
    assert (distance < needed).all()
