"""The four distributions of a Dreamer-family agent: diagonal Gaussian, one-hot, symexp two-hot, Bernoulli.

Sampling noise is always an argument. Formulas follow DreamerV3 (arXiv 2301.04104) as the PyTorch agents compute them.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

UNIMIX = 0.01
"""Share of the uniform distribution mixed into every latent's probabilities."""


@struct.dataclass
class DiagGaussian:
    """Independent normals over A action dimensions; neither squashed nor clipped."""

    mean: jax.Array  #: [..., A]
    std: jax.Array  #: [..., A], positive

    @classmethod
    def bounded(cls, raw: jax.Array, min_std: float = 0.1, max_std: float = 1.0) -> "DiagGaussian":
        """Read `raw` [..., 2 A] as (m, s): mean tanh(m) in (-1, 1), std in (min_std, max_std), sigmoidal in s."""
        mean, std = jnp.split(raw, 2, axis=-1)
        return cls(jnp.tanh(mean), (max_std - min_std) * jax.nn.sigmoid(std + 2.0) + min_std)

    def mode(self) -> jax.Array:
        """Return the mean [..., A]."""
        return self.mean

    def sample(self, noise: jax.Array) -> jax.Array:
        """Return mean + std * noise for standard normal `noise` [..., A]."""
        return self.mean + self.std * noise

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return the log density of `action` [..., A], summed over dimensions: [...]."""
        z = (action - self.mean) / self.std
        return jnp.sum(-0.5 * z**2 - jnp.log(self.std) - 0.5 * math.log(2 * math.pi), axis=-1)

    def entropy(self) -> jax.Array:
        """Return the entropy in nats, summed over dimensions: [...]."""
        return jnp.sum(0.5 * math.log(2 * math.pi * math.e) + jnp.log(self.std), axis=-1)

    def kl(self, other: Any) -> jax.Array:
        """Return KL(self || other) in nats, of another diagonal Gaussian, summed over dimensions: [...].

        In the ratio form, which is exactly 0 with an exactly zero gradient where the two agree. The textbook form
        log(s2/s1) + ... leaves rounding there, which a sign step would blow up to full strength.
        """
        ratio = (self.std / other.std) ** 2
        shift = ((self.mean - other.mean) / other.std) ** 2
        return 0.5 * jnp.sum(ratio - 1.0 - jnp.log(ratio) + shift, axis=-1)

    def log_bins(self, count: int) -> jax.Array:
        """Return log-probabilities [..., A, count] of equal bins over [-1, 1]; the outer ones take the tails.

        `count` is 3 at least. Exact however far off a bin is, up to rounding; beyond 1000 standard deviations the value
        stays what it is there, so that it and its gradient are finite.
        """
        edges = jnp.asarray(np.linspace(-1.0, 1.0, count + 1)[1:-1], self.mean.dtype)
        edges = jnp.expand_dims(edges, range(self.mean.ndim))
        z = jnp.clip((edges - self.mean[..., None]) / self.std[..., None], -1e3, 1e3)
        below, above = jax.scipy.special.log_ndtr(z), jax.scipy.special.log_ndtr(-z)
        # A bin is the difference of two tails: of those on its own side of the mean, which are small and do not cancel.
        left = z[..., 1:] + z[..., :-1] < 0
        larger = jnp.where(left, below[..., 1:], above[..., :-1])
        smaller = jnp.where(left, below[..., :-1], above[..., 1:])
        # Of a bin too narrow for its tails to differ, the probability is next to nothing, and not exactly that.
        inner = larger + jnp.log(-jnp.expm1(-jnp.maximum(larger - smaller, 1e-30)))
        return jnp.concatenate([below[..., :1], inner, above[..., -1:]], axis=-1)


@struct.dataclass
class OneHot:
    """Independent categoricals over K classes, as one-hot vectors with straight-through gradients."""

    log_probs: jax.Array  #: [..., K], normalised

    @classmethod
    def unimix(cls, logits: jax.Array, ratio: float = UNIMIX) -> "OneHot":
        """Mix softmax(`logits` [..., K]) with `ratio` of the uniform distribution."""
        probs = (1.0 - ratio) * jax.nn.softmax(logits, axis=-1) + ratio / logits.shape[-1]
        return cls(jnp.log(probs))

    @classmethod
    def raw(cls, logits: jax.Array) -> "OneHot":
        """Take softmax(`logits` [..., K]) as it is; the training KL uses this form."""
        return cls(jax.nn.log_softmax(logits, axis=-1))

    def mode(self) -> jax.Array:
        """Return the likeliest class, one-hot [..., K]; its gradient goes through the log-probabilities."""
        return _straight_through(self.log_probs, lambda scores: scores)

    def sample(self, gumbel: jax.Array) -> jax.Array:
        """Return argmax(log p + `gumbel`), one-hot [..., K], for standard Gumbel noise [..., K].

        Its gradient is that of softmax(log p + gumbel), unlike the mode's.
        """
        return _straight_through(self.log_probs + gumbel, jax.nn.softmax)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Return the log probability of one-hot `value` [..., K]: [...]."""
        return jnp.sum(self.log_probs * value, axis=-1)

    def entropy(self) -> jax.Array:
        """Return the entropy of each categorical in nats: [...]."""
        return -jnp.sum(jnp.exp(self.log_probs) * self.log_probs, axis=-1)

    def kl(self, other: Any) -> jax.Array:
        """Return KL(self || other) of each categorical in nats, of as many others: [...]."""
        return jnp.sum(jnp.exp(self.log_probs) * (self.log_probs - other.log_probs), axis=-1)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _straight_through(scores: jax.Array, soft: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Return the largest of `scores` [..., K] as one-hot, with the derivative of `soft(scores)`; NaN stays NaN."""
    hard = jax.nn.one_hot(jnp.argmax(scores, axis=-1), scores.shape[-1], dtype=scores.dtype)
    return jnp.where(jnp.isnan(jnp.max(scores, axis=-1, keepdims=True)), jnp.nan, hard)


@_straight_through.defjvp
def _soft_derivative(soft: Callable[[jax.Array], jax.Array], primals: Any, tangents: Any) -> tuple[Any, Any]:
    return _straight_through(*primals, soft), jax.jvp(soft, primals, tangents)[1]


def symexp(x: jax.Array) -> jax.Array:
    """Return sign(x) (exp|x| - 1)."""
    return jnp.sign(x) * jnp.expm1(jnp.abs(x))


@struct.dataclass
class TwoHot:
    """A scalar as a categorical over exponentially spaced bins: symexp of an even grid on [-20, 20]."""

    logits: jax.Array  #: [..., bins]; `bins` is odd

    def bins(self) -> jax.Array:
        """Return the bin positions [bins]: the negative half mirrored, so exactly antisymmetric."""
        half = symexp(jnp.linspace(-20.0, 0.0, self.logits.shape[-1] // 2 + 1, dtype=self.logits.dtype))
        return jnp.concatenate([half, -half[:-1][::-1]])

    def mean(self) -> jax.Array:
        """Return the expectation [...], from the differences of mirrored weights: equal ones cancel exactly.

        Bins reach 5e8, where two products that should cancel leave a rounding error of 0.1. Nor may the weights be
        divided first: compiled, that division becomes a product, fused into the difference and rounded unevenly.
        """
        weights = jnp.exp(self.logits - jax.lax.stop_gradient(jnp.max(self.logits, axis=-1, keepdims=True)))
        centre = self.logits.shape[-1] // 2
        excess = weights[..., centre + 1 :] - weights[..., :centre][..., ::-1]
        bins = jnp.expand_dims(self.bins()[centre + 1 :], range(excess.ndim - 1))
        return jnp.sum(excess * bins, axis=-1) / jnp.sum(weights, axis=-1)

    mode = mean

    def log_prob(self, target: jax.Array) -> jax.Array:
        """Return the log-likelihood [...] of `target` [...], split linearly between its two neighbouring bins.

        Targets beyond the outer bins count as those.
        """
        bins = self.bins()
        target = jnp.clip(target, bins[0], bins[-1])[..., None]
        # The share of every bin, though all but two are 0: to pick these costs more, and their gradient a scatter.
        below, above = jnp.concatenate([2 * bins[:1], bins[:-1]]), jnp.concatenate([bins[1:], 2 * bins[-1:]])
        below, bins, above = (jnp.expand_dims(x, range(target.ndim - 1)) for x in (below, bins, above))
        share = jnp.minimum((target - below) / (bins - below), (above - target) / (above - bins))
        return jnp.sum(jnp.maximum(share, 0.0) * jax.nn.log_softmax(self.logits, axis=-1), axis=-1)


@struct.dataclass
class Bernoulli:
    """A coin with log-odds `logit`."""

    logit: jax.Array  #: [...]

    def prob(self) -> jax.Array:
        """Return P(1) in [0, 1]: [...]."""
        return jax.nn.sigmoid(self.logit)

    def mode(self) -> jax.Array:
        """Return 1 where it is likelier than 0: [...]."""
        return (self.logit > 0).astype(self.logit.dtype)

    def sample(self, uniform: jax.Array) -> jax.Array:
        """Return 1 where `uniform` [...] in [0, 1) falls below P(1)."""
        return (uniform < self.prob()).astype(self.logit.dtype)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Return the log-likelihood [...] of `value` [...] in [0, 1]."""
        return value * jax.nn.log_sigmoid(self.logit) + (1.0 - value) * jax.nn.log_sigmoid(-self.logit)

    def entropy(self) -> jax.Array:
        """Return the entropy in nats: [...]."""
        return -self.log_prob(self.prob())

    def kl(self, other: "Bernoulli") -> jax.Array:
        """Return KL(self || other) in nats: [...]."""
        return self.log_prob(self.prob()) - other.log_prob(self.prob())
