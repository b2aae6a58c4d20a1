"""The four distributions against the PyTorch agents' numbers, SciPy, and the identities they must keep."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from wmjax.core.distributions import Bernoulli, DiagGaussian, OneHot, TwoHot, symexp

rng = np.random.default_rng(0)


def normal(*shape, scale=1.0):
    return (scale * rng.standard_normal(shape)).astype(np.float32)


# Against the PyTorch agents.


def test_golden_gaussian(golden, agrees):
    _, _, arrays = golden
    policy = DiagGaussian.bounded(jnp.asarray(arrays["unit/bn_raw"]))
    agrees("gaussian mean", policy.mean, arrays["unit/bn_mean"])
    agrees("gaussian std", policy.std, arrays["unit/bn_std"])
    agrees("gaussian entropy", policy.entropy(), arrays["unit/bn_entropy"])
    agrees("gaussian log_prob", policy.log_prob(arrays["unit/bn_action"]), arrays["unit/bn_logprob"])


def test_golden_one_hot(golden, agrees):
    _, _, arrays = golden
    logits, gumbel, weight = (jnp.asarray(arrays[f"unit/oh_{key}"]) for key in ("logits", "gumbel", "weight"))
    latent = OneHot.unimix(logits)
    agrees("one-hot log_probs", latent.log_probs, arrays["unit/oh_logprob"])
    agrees("one-hot probs", jnp.exp(latent.log_probs), arrays["unit/oh_probs"])
    agrees("one-hot entropy", latent.entropy(), arrays["unit/oh_entropy"])
    np.testing.assert_array_equal(latent.mode(), arrays["unit/oh_mode"])
    np.testing.assert_array_equal(latent.sample(gumbel), arrays["unit/oh_sample"])
    for name, draw in (("sample", lambda x: x.sample(gumbel)), ("mode", OneHot.mode)):
        gradient = jax.jit(jax.grad(lambda logits, draw=draw: jnp.sum(weight * draw(OneHot.unimix(logits)))))(logits)
        agrees(f"one-hot {name} gradient", gradient, arrays[f"unit/oh_grad_{name}"])


def test_golden_two_hot(golden, agrees):
    _, _, arrays = golden
    scalar = TwoHot(jnp.asarray(arrays["unit/twohot_logits"]))
    want = arrays["unit/twohot_mode"][:, 0]
    np.testing.assert_allclose(scalar.bins(), arrays["unit/twohot_bins"], rtol=2e-6)
    # Each case has a scale of its own; where mirrored bins of 1e8 cancel, what is left of it is their rounding.
    largest = (scipy.special.softmax(arrays["unit/twohot_logits"], -1) * np.abs(arrays["unit/twohot_bins"])).max(-1)
    assert (np.abs(scalar.mode() - want) <= 2e-5 * np.abs(want) + 2e-7 * largest).all()
    agrees("two-hot log_prob", scalar.log_prob(arrays["unit/twohot_target"][:, 0]), arrays["unit/twohot_logprob"])


# The diagonal Gaussian.


def test_gaussian_against_scipy():
    raw, other, action = normal(7, 6, scale=2), normal(7, 6), normal(7, 3)
    p, q = DiagGaussian.bounded(jnp.asarray(raw)), DiagGaussian.bounded(jnp.asarray(other))
    reference = scipy.stats.norm(np.float64(p.mean), np.float64(p.std))
    np.testing.assert_allclose(p.log_prob(action), reference.logpdf(action).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(p.entropy(), reference.entropy().sum(-1), rtol=1e-5, atol=1e-6)
    s, t = np.float64(p.std), np.float64(q.std)
    textbook = np.log(t / s) + (s**2 + (np.float64(p.mean) - q.mean) ** 2) / (2 * t**2) - 0.5
    np.testing.assert_allclose(p.kl(q), textbook.sum(-1), rtol=1e-5)
    noise = normal(7, 3)
    np.testing.assert_array_equal(p.sample(noise), p.mean + p.std * noise)


@pytest.mark.parametrize("raw", [-1e4, -3.0, 0.0, 3.0, 1e4])
def test_gaussian_is_bounded(raw):
    policy = DiagGaussian.bounded(jnp.full(2, raw, jnp.float32))
    assert jnp.abs(policy.mean) <= 1
    assert 0.1 - 1e-7 <= policy.std <= 1 + 1e-6


@given(hnp.arrays(np.float32, (4, 6), elements=st.floats(-20, 20, width=32)))
def test_gaussian_kl_to_itself_is_exactly_flat(raw):
    value, gradient = kl_to_constant(raw, raw)
    np.testing.assert_array_equal(value, 0)
    np.testing.assert_array_equal(gradient, 0)


@jax.jit
def kl_to_constant(raw, constant):
    kl, pullback = jax.vjp(lambda raw: DiagGaussian.bounded(constant).kl(DiagGaussian.bounded(raw)), raw)
    return kl, pullback(jnp.ones_like(kl))[0]


def bin_masses(mean, std, count):
    """Log-probability of each bin by SciPy, in float64: what truncation to it adds to a log density."""
    edges = np.concatenate([[-np.inf], np.linspace(-1, 1, count + 1)[1:-1], [np.inf]])
    centres = np.linspace(-1, 1, count + 1)[:-1] + 1 / count
    low, high = (edges[:-1] - mean[..., None]) / std[..., None], (edges[1:] - mean[..., None]) / std[..., None]
    z = (centres - mean[..., None]) / std[..., None]
    return scipy.stats.norm.logpdf(z) - scipy.stats.truncnorm.logpdf(z, low, high)


jitted_bins = jax.jit(DiagGaussian.log_bins, static_argnums=1)
bin_slopes = jax.jit(jax.jacrev(lambda policy: policy.log_bins(21)[0, 0]))


@pytest.mark.parametrize("count", [3, 21, 64])
def test_bins_of_a_gaussian_are_exact(count):
    """From a hundredth of a bin's width to the whole range wide; the furthest bins are 200 standard deviations off."""
    rng = np.random.default_rng(1)
    mean = np.concatenate([[-1, 0, 1, 0.3, -3], rng.uniform(-1, 1, 15)]).reshape(4, 5)
    std = np.concatenate([[0.01] * 5, 10 ** rng.uniform(-2, 0.5, 15)]).reshape(4, 5)
    want = bin_masses(mean, std, count)
    with jax.enable_x64(True):
        exact = jitted_bins(DiagGaussian(jnp.asarray(mean), jnp.asarray(std)), count)
        assert exact.dtype == np.float64
        np.testing.assert_allclose(exact, want, rtol=1e-8, atol=1e-12)  # SciPy's is a difference of two terms
    got = jitted_bins(DiagGaussian(jnp.float32(mean), jnp.float32(std)), count)
    assert got.shape == (4, 5, count)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(np.exp(np.float64(got)).sum(-1), 1, rtol=1e-5)


@given(st.floats(-1e3, 1e3, width=32), st.integers(-4, 4))
def test_bins_and_their_slopes_are_finite(mean, power):
    policy = DiagGaussian(jnp.full((1, 1), mean, jnp.float32), jnp.full((1, 1), 10.0**power, jnp.float32))
    assert np.isfinite(jitted_bins(policy, 21)).all()
    slopes = bin_slopes(policy)
    assert np.isfinite(slopes.mean).all()
    assert np.isfinite(slopes.std).all()


def test_far_bins_have_the_right_slope():
    """50 standard deviations off, the slope of a bin is that of its nearer edge, nearly."""
    policy = DiagGaussian(jnp.full((1, 1), -1.0), jnp.full((1, 1), 0.02))
    slope = np.asarray(bin_slopes(policy).mean)[:, 0, 0]
    edge = np.linspace(-1, 1, 22)[11]
    assert scipy.stats.norm.sf(edge, -1, 0.02) == 0  # underflows: the reason for logarithms
    np.testing.assert_allclose(slope[11], (edge + 1) / 0.02**2, rtol=1e-3)


# The one-hot latent.


def test_one_hot_against_scipy():
    logits, other = normal(5, 4, 6, scale=3), normal(5, 4, 6, scale=3)
    for build, share in ((OneHot.raw, 0.0), (OneHot.unimix, 0.01)):
        p, q = ((1 - share) * scipy.special.softmax(np.float64(x), -1) + share / 6 for x in (logits, other))
        ours, theirs = build(jnp.asarray(logits)), build(jnp.asarray(other))
        np.testing.assert_allclose(np.exp(ours.log_probs), p, rtol=1e-5)
        np.testing.assert_allclose(ours.entropy(), scipy.stats.entropy(p, axis=-1), rtol=1e-5)
        np.testing.assert_allclose(ours.kl(theirs), scipy.stats.entropy(p, q, axis=-1), rtol=1e-4)
        picked = np.broadcast_to(np.eye(6, dtype=np.float32)[[2, 0, 5, 1]], logits.shape)
        np.testing.assert_allclose(ours.log_prob(picked), np.log((p * picked).sum(-1)), rtol=1e-5)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_one_hot_draws_are_exactly_one_hot(scale):
    latent = OneHot.unimix(jnp.asarray(normal(64, 8, scale=scale)))
    gumbel = rng.gumbel(size=(64, 8)).astype(np.float32)
    for draw, scores in ((latent.mode(), latent.log_probs), (latent.sample(gumbel), latent.log_probs + gumbel)):
        np.testing.assert_array_equal(draw, np.eye(8)[np.argmax(scores, -1)])


def test_one_hot_samples_follow_the_probabilities():
    probs = np.array([0.5, 0.3, 0.15, 0.05], np.float32)
    latent = OneHot(jnp.log(jnp.broadcast_to(probs, (40000, 4))))
    share = np.mean(latent.sample(jax.random.gumbel(jax.random.key(0), (40000, 4))), axis=0)
    assert (np.abs(share - probs) < 4 * np.sqrt(probs * (1 - probs) / 40000)).all()


def test_one_hot_kl_to_itself_is_exactly_zero():
    latent = OneHot.unimix(jnp.asarray(normal(32, 8, scale=5)))
    np.testing.assert_array_equal(latent.kl(latent), 0)


# The two-hot scalar.


def test_two_hot_bins():
    bins = np.asarray(TwoHot(jnp.zeros((1, 255))).bins())
    np.testing.assert_array_equal(bins, -bins[::-1])
    assert bins[127] == 0
    assert (np.diff(bins) > 0).all()
    grid = np.linspace(-20, 20, 255)
    np.testing.assert_allclose(bins, np.sign(grid) * np.expm1(np.abs(grid)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(symexp(jnp.float32(-2)), -np.expm1(2), rtol=1e-6)


def test_two_hot_mean():
    lopsided, even = normal(6, 255), normal(6, 255)
    lopsided -= 0.3 * np.abs(np.arange(255) - 140)
    even = np.concatenate([even[:, :127], even[:, 127:128], even[:, :127][:, ::-1]], axis=-1)
    bins = np.float64(TwoHot(jnp.zeros((1, 255))).bins())
    want = (scipy.special.softmax(np.float64(lopsided), -1) * bins).sum(-1)
    np.testing.assert_allclose(jax.jit(TwoHot.mean)(TwoHot(lopsided)), want, rtol=1e-5)
    # Symmetric logits put 1e8 on both sides: only mirrored pairs make that exactly nothing.
    np.testing.assert_array_equal(jax.jit(TwoHot.mean)(TwoHot(even)), 0)
    np.testing.assert_array_equal(TwoHot(even).mode(), 0)


@given(st.floats(-1e9, 1e9, width=32))
def test_two_hot_log_prob_splits_between_neighbours(target):
    logits = normal(255)
    bins = np.float64(TwoHot(jnp.asarray(logits)).bins())
    weights = np.zeros(255)
    x = np.clip(target, bins[0], bins[-1])
    above = np.clip(np.searchsorted(bins, x, side="right"), 1, 254)
    weights[above] = (x - bins[above - 1]) / (bins[above] - bins[above - 1])
    weights[above - 1] = 1 - weights[above]
    want = (weights * scipy.special.log_softmax(np.float64(logits))).sum()
    got = TwoHot(jnp.asarray(logits)[None]).log_prob(jnp.full(1, target, jnp.float32))
    np.testing.assert_allclose(got[0], want, rtol=1e-4)


# The coin.


def test_bernoulli_against_scipy():
    logits, other = np.linspace(-8, 8, 17, dtype=np.float32), normal(17)
    p, q = Bernoulli(jnp.asarray(logits)), Bernoulli(jnp.asarray(other))
    probs, others = scipy.special.expit(np.float64(logits)), scipy.special.expit(np.float64(other))
    reference = scipy.stats.bernoulli(probs)
    np.testing.assert_allclose(p.prob(), probs, rtol=1e-5)
    np.testing.assert_allclose(p.entropy(), reference.entropy(), rtol=1e-4)
    for value in (0, 1):
        got = p.log_prob(jnp.full(17, value, jnp.float32))
        np.testing.assert_allclose(got, reference.logpmf(value), rtol=1e-5, atol=1e-7)
    want = scipy.special.rel_entr(probs, others) + scipy.special.rel_entr(1 - probs, 1 - others)
    np.testing.assert_allclose(p.kl(q), want, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(p.mode(), probs > 0.5)
    np.testing.assert_array_equal(p.sample(jnp.full(17, 0.3)), probs > 0.3)


@pytest.mark.parametrize("logit", [-200.0, 200.0])
def test_bernoulli_stays_finite_when_certain(logit):
    coin = Bernoulli(jnp.float32(logit))
    slope = jax.grad(lambda x: Bernoulli(x).entropy())(coin.logit)
    for value in (coin.entropy(), coin.log_prob(jnp.float32(logit > 0)), coin.kl(coin), slope):
        assert np.abs(value) < 1e-6


def test_a_latent_of_nan_is_no_sample():
    logits = jnp.zeros((2, 3, 4)).at[0, 1, 2].set(jnp.nan)
    for drawn in (OneHot.unimix(logits).sample(jnp.zeros((2, 3, 4))), OneHot.unimix(logits).mode()):
        np.testing.assert_array_equal(jnp.isnan(drawn).all(-1), [[False, True, False], [False] * 3])
        np.testing.assert_array_equal(jnp.isnan(drawn).any(-1), [[False, True, False], [False] * 3])
