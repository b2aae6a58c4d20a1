"""The five white-box objectives of ARB4WM (arXiv 2606.16605), all maximised, and the drift they are judged by."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from wmjax.core.distributions import OneHot
from wmjax.core.errors import unknown_name
from wmjax.victims.base import Internals

Objective = Callable[[Internals, Internals], jax.Array]
"""(clean, adv) -> loss [B]; both start from the same belief, and clean is constant."""


def pda(clean: Internals, adv: Internals) -> jax.Array:
    """Policy divergence: KL(pi_clean || pi_adv), summed over action dimensions, [B] in nats."""
    # The policy is a function of (z, h): where those agree it is the same policy, and rounding may not say otherwise.
    # A difference in the last bit would have a gradient, which a sign step blows up to full strength.
    same = jnp.all(clean.stoch == adv.stoch, axis=(1, 2)) & jnp.all(clean.deter == adv.deter, axis=1)
    return jnp.where(same, 0.0, clean.policy.kl(adv.policy))


def pea(clean: Internals, adv: Internals) -> jax.Array:
    """Policy entropy: H(pi_adv), [B] in nats."""
    del clean
    return adv.policy.entropy()


def vsa(clean: Internals, adv: Internals) -> jax.Array:
    """Value suppression: -V(s_adv), [B] in reward units."""
    del clean
    return -adv.value


def lda(clean: Internals, adv: Internals) -> jax.Array:
    """Latent drift: |z_adv - z_clean|^2 + |h_adv - h_clean|^2, [B]; within one step the second term is 0."""
    drift_z, drift_h = drift(clean, adv)
    return drift_z + drift_h


def dca(clean: Internals, adv: Internals) -> jax.Array:
    """Dynamics consistency: KL(q(z | x_adv, h) || p(z | h)) with unimix, summed over latent groups, [B] in nats."""
    del clean
    posterior, prior = OneHot.unimix(adv.post_logits), OneHot.unimix(adv.prior_logits)
    return jnp.sum(posterior.kl(prior), axis=-1)


OBJECTIVES: dict[str, Objective] = {"pda": pda, "pea": pea, "vsa": vsa, "lda": lda, "dca": dca}
"""By name; the order is that of `losses` and `objective_weights`."""

NEEDS_DISTANCE = frozenset({"pda", "lda"})
"""Objectives whose gradient is exactly zero at the clean image when both passes share their latent noise."""


def drift(clean: Internals, adv: Internals) -> tuple[jax.Array, jax.Array]:
    """Return the squared distances (|z_adv - z_clean|^2, |h_adv - h_clean|^2), [B] each."""
    return (
        jnp.sum((adv.stoch - clean.stoch) ** 2, axis=(1, 2)),
        jnp.sum((adv.deter - clean.deter) ** 2, axis=1),
    )


def losses(clean: Internals, adv: Internals) -> jax.Array:
    """Return all objectives of one forward pass, [B, objectives], in the order of OBJECTIVES."""
    return jnp.stack([objective(clean, adv) for objective in OBJECTIVES.values()], axis=-1)


def objective_weights(names: Sequence[str]) -> np.ndarray:
    """Return a one-hot row an example, [B, objectives] float32; "random" and "clean" ask for no gradient: zeros.

    The weights are traced, so one program serves all objectives. Raises InputError for an unknown name.
    """
    known = list(OBJECTIVES)
    weights = np.zeros((len(names), len(known)), np.float32)
    for row, name in zip(weights, names, strict=True):
        if name in OBJECTIVES:
            row[known.index(name)] = 1.0
        elif name not in ("random", "clean"):
            raise unknown_name("objective", name, [*known, "random"])
    return weights
