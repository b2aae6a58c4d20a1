"""What attacks maximise: the five objectives of ARB4WM (arXiv 2606.16605), those of other policy attacks, and mixtures.

All work for continuous (`DiagGaussian`) and for categorical (`OneHot`) actors. For continuous actors `dlr`, `boundary`
and both gaps have no public reference: they are ours. So is `critic`, made of the agent's own imagination.
"""

import re
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from wmjax.agents.base import Internals, Policy
from wmjax.attacks.linf_ball import select_examples
from wmjax.core.call_syntax import parse_call
from wmjax.core.distributions import OneHot
from wmjax.core.errors import InputError, unknown_name

Objective = Callable[[Internals, Internals], jax.Array]
"""(clean, adv) -> loss [B]; both start from the same belief, and clean is constant."""

BINS = 21
"""Bins of a continuous action component, over [-1, 1].

A bin is as wide as the smallest standard deviation of the agents (0.1): wider ones would hide a shift of the mean, and
with narrower ones the three likeliest, which `dlr` compares, would be all but equal. Odd: zero lies inside a bin.
"""

TAU = 0.5
"""How far a component of a continuous action must move to be beyond the boundary: a quarter of its range."""


def pda(clean: Internals, adv: Internals) -> jax.Array:
    """Policy divergence: KL(pi_clean || pi_adv), summed over action dimensions, [B] in nats."""
    return jnp.where(_same(clean, adv), 0.0, clean.policy.kl(adv.policy))


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


def ce(clean: Internals, adv: Internals) -> jax.Array:
    """Cross-entropy with the clean action: -log pi_adv(a), where a is the clean policy's mode, [B] in nats.

    At the clean image a Gaussian's only slope is that of its standard deviation.
    """
    return -adv.policy.log_prob(clean.policy.mode())


def dlr(clean: Internals, adv: Internals) -> jax.Array:
    """Difference of logits ratio (arXiv 2003.01690), on log-probabilities z: -(z_y - max_{i!=y} z_i) / (z_(1) - z_(3)).

    y is the clean policy's likeliest class; of a continuous actor, the likeliest bin of each action component, over
    which the ratios are summed: [B]. Between two classes there is no third, and no ratio is taken. Where y is the third
    likeliest the ratio is 1, whatever the image: bins, unlike labels, are passed one after the other, so that attacks
    often end on that plateau.
    """
    logits, y = _choices(adv.policy), jnp.argmax(_choices(clean.policy), axis=-1)
    margin = _margin(logits, y)
    if logits.shape[-1] > 2:
        top = jax.lax.top_k(logits, 3)[0]
        margin = margin / (top[..., 0] - top[..., 2] + 1e-12)
    return jnp.sum(margin, axis=-1)


def mad(clean: Internals, adv: Internals) -> jax.Array:
    """Maximal action difference (arXiv 2003.08938): the squared shift of the mean in standard deviations, summed, [B].

    Deviations are those of the clean policy. Of categorical actors it is KL(pi_clean || pi_adv), in nats.
    """
    if isinstance(clean.policy, OneHot):
        return pda(clean, adv)
    shift = (adv.policy.mode() - clean.policy.mode()) / clean.policy.std
    return jnp.where(_same(clean, adv), 0.0, jnp.sum(shift**2, axis=-1))


def boundary(clean: Internals, adv: Internals) -> jax.Array:
    """Margin [B], positive exactly where the agent acts otherwise.

    Categorical actors: log-probability of the likeliest of the other classes, minus that of the clean action.
    Continuous actors: the largest shift of a component of the mean, minus TAU.
    """
    if isinstance(clean.policy, OneHot):
        return _margin(_choices(adv.policy)[:, 0], jnp.argmax(clean.policy.log_probs, axis=-1))
    shift = jnp.max(jnp.abs(adv.policy.mode() - clean.policy.mode()), axis=-1)
    return jnp.where(_same(clean, adv), 0.0, shift) - TAU


def towards(target: jax.Array) -> Objective:
    """Return the objective "target": log pi_adv(target), [B] in nats, for `target` [B, A] or, all alike, [B, 1].

    For categorical actors it is one-hot [B, A], or a number: -1 is the first class, 1 the last, the others lie between.
    """

    def objective(clean: Internals, adv: Internals) -> jax.Array:
        del clean
        size = adv.policy.mode().shape[-1]
        if isinstance(adv.policy, OneHot) and target.shape[-1] == 1:
            index = jnp.round((target[:, 0] + 1) / 2 * (size - 1)).astype(jnp.int32)
            return adv.policy.log_prob(jax.nn.one_hot(index, size, dtype=target.dtype))
        return adv.policy.log_prob(jnp.broadcast_to(target, (len(target), size)))

    return objective


def critic(action_value: Callable[[jax.Array], jax.Array]) -> Objective:
    """Return the objective "critic": minus the value [B], to the agent itself, of what the attacked policy does.

    `action_value` gives the value [B] of an action [B, A] in the clean belief; the action is the policy's mode. Attacks
    on a critic Q(s, a) are known (arXiv 1712.03632); a world model imagines it.
    """

    def objective(clean: Internals, adv: Internals) -> jax.Array:
        del clean
        return -action_value(adv.policy.mode())

    return objective


OBJECTIVES: dict[str, Objective] = {
    "pda": pda,
    "pea": pea,
    "vsa": vsa,
    "lda": lda,
    "dca": dca,
    "ce": ce,
    "dlr": dlr,
    "mad": mad,
    "boundary": boundary,
}
"""By name; these need the two internals alone."""

NAMES = (*OBJECTIVES, "target", "critic")
"""All objectives, in the order of `losses` and `objective_weights`; the last two are made anew for each frame."""

NEEDS_DISTANCE = frozenset({"pda", "lda", "mad", "boundary"})
"""Objectives whose gradient is exactly zero at the clean image when both passes share their latent noise.

They are even in what differs between the passes. `boundary` is of them for continuous actors only.
"""

HAS_BOUNDARY = frozenset({"boundary"})
"""Objectives that are positive on the far side of a boundary only, as FAB needs them."""


def drift(clean: Internals, adv: Internals) -> tuple[jax.Array, jax.Array]:
    """Return the squared distances (|z_adv - z_clean|^2, |h_adv - h_clean|^2), [B] each."""
    return (
        jnp.sum((adv.stoch - clean.stoch) ** 2, axis=(1, 2)),
        jnp.sum((adv.deter - clean.deter) ** 2, axis=1),
    )


def losses(clean: Internals, adv: Internals, further: Mapping[str, Objective]) -> jax.Array:
    """Return all objectives of one forward pass, [B, objectives], in the order of NAMES.

    `further` holds those that are made anew for each frame: "target" of `towards`, and "critic" of `critic`.
    """
    return jnp.stack([objective(clean, adv) for objective in _all(further)], axis=-1)


def mixture(weights: jax.Array, clean: Internals, adv: Internals, further: Mapping[str, Objective]) -> jax.Array:
    """Return the sum [B] of the `losses` times their `weights` [B, objectives].

    An objective of weight 0 adds nothing at all to it and to its gradient, be it infinite or not a number.
    """
    total = jnp.zeros_like(adv.value)
    for weight, objective in zip(weights.T, _all(further), strict=True):
        used = weight != 0
        # Its gradient is cut off as well: 0 times an infinite slope would be no number.
        loss = objective(clean, select_examples(used, adv, clean))
        total += jnp.where(used, weight * loss, 0.0)
    return total


def objective_weights(names: Sequence[str]) -> np.ndarray:
    """Return the weights of the objectives for each example, [B, objectives] float32, in the order of NAMES.

    A name is that of an objective, `target(v)` with v in [-1, 1], or a mixture of those: terms joined by +, each
    `name` or `number*name`, such as `vsa+0.5*pea`. "random" and "clean" ask for no gradient: zeros. The weights are
    traced, so one program serves all objectives. Raises InputError for anything else.
    """
    weights = np.zeros((len(names), len(NAMES)), np.float32)
    for row, name in zip(weights, names, strict=True):
        for term, (weight, _) in _terms(name).items():
            row[NAMES.index(term)] = weight
    return weights


def objective_targets(names: Sequence[str]) -> np.ndarray:
    """Return the v of `target(v)` for each example, [B] float32, 0 where there is none; InputError as above."""
    return np.array([_terms(name).get("target", (0.0, 0.0))[1] for name in names], np.float32)


def policy_gap(policy: Policy) -> jax.Array:
    """Return by how much the policy prefers its likeliest action to its unlikeliest, [B] in [0, 1].

    It is a difference of probabilities (arXiv 1703.06748); of continuous actors, of the bins of `dlr`, averaged over
    action components.
    """
    probs = jnp.exp(_choices(policy))
    return jnp.mean(jnp.max(probs, axis=-1) - jnp.min(probs, axis=-1), axis=-1)


def value_gap(policy: Policy, action_value: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Return how much value the worst action costs, [B] from 0, in reward units: the policy's mode against the others.

    The others are all classes, or the mode with one component moved to -1 or 1. `action_value` is as in `critic`.
    """
    mode = policy.mode()
    size = mode.shape[-1]
    one = jnp.eye(size, dtype=mode.dtype)[:, None]
    if isinstance(policy, OneHot):
        others = [jnp.broadcast_to(one, (size, *mode.shape))]
    else:
        others = [jnp.where(one > 0, bound, mode[None]) for bound in (-1.0, 1.0)]
    values = jax.vmap(action_value)(jnp.concatenate([mode[None], *others]))
    return values[0] - jnp.min(values, axis=0)


_TERM = re.compile(r"(?:([0-9]{1,6}(?:\.[0-9]{1,6})?)\*)?(.+)", re.DOTALL)


def _terms(text: str) -> dict[str, tuple[float, float]]:
    """Return (weight, target) of each objective in `text`; the target is 0 for all but "target"."""
    if text in ("random", "clean"):
        return {}
    terms: dict[str, tuple[float, float]] = {}
    for part in text.split("+"):
        found = _TERM.fullmatch(part)
        weight, name = (float(found[1] or 1), found[2]) if found else (1.0, part)
        match parse_call(name):
            case "target", (v,) if -1 <= v <= 1:
                name, target = "target", float(v)
            case known, () if known in OBJECTIVES or known == "critic":
                target = 0.0
            case "target", _:
                raise InputError(f"objective is {text!r:.80}; target takes one number from -1 to 1, as in target(0.5)")
            case _:
                allowed = ["target(v)" if known == "target" else known for known in NAMES]
                raise unknown_name("objective", name, [*allowed, "random", "mixtures such as vsa+0.5*pea"])
        if weight == 0:
            raise InputError(f"objective is {text!r:.80}; weights are numbers above 0")
        if name in terms:
            raise InputError(f"objective is {text!r:.80}; it names {name} twice")
        terms[name] = weight, target
    return terms


def _all(further: Mapping[str, Objective]) -> list[Objective]:
    everything = {**OBJECTIVES, **further}
    return [everything[name] for name in NAMES]


def _same(clean: Internals, adv: Internals) -> jax.Array:
    """Return where both passes have the same latent, [B].

    The policy is a function of (z, h): where those agree it is the same policy, and rounding may not say otherwise. A
    difference in the last bit would have a gradient, which a sign step blows up to full strength.
    """
    return jnp.all(clean.stoch == adv.stoch, axis=(1, 2)) & jnp.all(clean.deter == adv.deter, axis=1)


def _choices(policy: Policy) -> jax.Array:
    """Return log-probabilities [B, A, BINS] of a continuous actor's bins, or [B, 1, K] of the classes."""
    return policy.log_probs[:, None] if isinstance(policy, OneHot) else policy.log_bins(BINS)


def _margin(logits: jax.Array, y: jax.Array) -> jax.Array:
    """Return the largest of the other `logits` [..., K] minus that of class `y` [...]: [...]."""
    chosen = jax.nn.one_hot(y, logits.shape[-1], dtype=bool)
    # Left out by the least number, not by -inf: that has no slope.
    others = jnp.where(chosen, jnp.finfo(logits.dtype).min, logits)
    return jnp.max(others, axis=-1) - jnp.sum(jnp.where(chosen, logits, 0.0), axis=-1)
