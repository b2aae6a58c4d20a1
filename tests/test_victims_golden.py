"""Every part of the inference graph against the outputs of the real PyTorch agents, from the same weights and noise."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wmjax.agents.base import Belief
from wmjax.core.distributions import OneHot

ROLLOUTS = ["roll", "rollmode"]


def flat(x):
    """[B, T, ...] -> [B * T, ...]."""
    return x.reshape(-1, *x.shape[2:])


def pixels(image):
    return image.astype(np.float32) / np.float32(255)


def before(arrays, name):
    """The belief and action that enter every step of a rollout, [B * T, ...]; zero where an episode begins."""
    shifted = {
        part: np.concatenate([arrays[f"roll/init_{part}"][:, None], arrays[f"{name}/{part}"][:, :-1]], axis=1)
        for part in ("stoch", "deter")
    }
    inputs = [flat(x) for x in (shifted["stoch"], shifted["deter"], arrays["roll/action"])]
    first = flat(arrays["roll/is_first"])
    stoch, deter, action = (np.where(first.reshape(-1, *[1] * (x.ndim - 1)), np.float32(0), x) for x in inputs)
    return Belief(stoch, deter), action


def restart(first, carry):
    """Zero all that the previous step left where an episode begins."""
    return jax.tree.map(lambda x: jnp.where(jnp.expand_dims(first, range(1, x.ndim)), 0.0, x), carry)


def after(arrays, name):
    return Belief(flat(arrays[f"{name}/stoch"]), flat(arrays[f"{name}/deter"]))


def noise(arrays, name, gumbel="gumbel_post"):
    if name == "rollmode":
        return None
    drawn = arrays[f"roll/{gumbel}"]
    return flat(drawn.swapaxes(0, 1) if gumbel == "gumbel_post" else drawn)


@partial(jax.jit, static_argnames="victim")
def agent_step(victim, params, belief, action, image, gumbel):
    prediction = victim.predict(params, belief, action)
    embedding = victim.embed(params, image)
    return embedding, *victim.update(params, prediction, embedding, gumbel)


def scan(step, params, start, xs):
    return jax.jit(lambda params, start, xs: jax.lax.scan(partial(step, params), start, xs))(params, start, xs)


def ambiguous(logits, gumbel):
    """Where the two best scores of a latent are too close for rounding to tell which one wins, [..., G]."""
    scores = np.asarray(OneHot.unimix(jnp.asarray(logits)).log_probs)
    best = np.sort(scores if gumbel is None else scores + gumbel, axis=-1)
    return best[..., -1] - best[..., -2] < 1e-5


def same_classes(got, want, close):
    """Assert equal one-hot classes except where that is a toss-up; return which examples agree throughout."""
    got = np.asarray(got)
    assert set(np.unique(got)) == {0.0, 1.0}
    assert (got.sum(-1) == 1).all()
    different = (got != want).any(-1)
    assert not (different & ~close).any()
    assert close.sum() <= 1
    return ~different.any(-1)


def test_embedding(golden, agrees):
    victim, params, arrays = golden
    embed = jax.jit(victim.embed)
    agrees("embed", embed(params, pixels(arrays["enc/image"])), arrays["enc/embed"])
    if "roll/embed" in arrays:
        agrees("embed roll", embed(params, pixels(flat(arrays["roll/image"]))), flat(arrays["roll/embed"]))


@pytest.mark.parametrize("name", ROLLOUTS)
def test_step(golden, agrees, name):
    """Each step of a rollout from the stored state before it, so that no step inherits another's rounding."""
    victim, params, arrays = golden
    names = [key for key in arrays if key.startswith(f"{name}/")]
    want = {key.removeprefix(f"{name}/"): flat(arrays[key]) for key in names}
    gumbel = noise(arrays, name)
    _, belief, internals = agent_step(victim, params, *before(arrays, name), pixels(flat(arrays["roll/image"])), gumbel)
    agrees("deter", belief.deter, want["deter"])
    agrees("post_logits", internals.post_logits, want["post_logit"])
    agrees("prior_logits", internals.prior_logits, want["prior_logit"])
    same = same_classes(belief.stoch, want["stoch"], ambiguous(want["post_logit"], gumbel))
    agrees("step actor mean", internals.policy.mean[same], want["actor_mean"][same])
    agrees("step actor std", internals.policy.std[same], want["actor_std"][same])
    agrees("step value", internals.value[same], want["value"][same, 0])
    assert (internals.deter == belief.deter).all()
    assert (internals.stoch == belief.stoch).all()

    gumbel = noise(arrays, name, "gumbel_prior")
    prior = OneHot.unimix(internals.prior_logits)
    sample = prior.mode() if gumbel is None else prior.sample(gumbel)
    same_classes(sample, want["prior_stoch"], ambiguous(want["prior_logit"], gumbel))


@pytest.mark.parametrize("name", ROLLOUTS)
def test_heads(golden, agrees, name):
    victim, params, arrays = golden
    want = lambda key: flat(arrays[f"{name}/{key}"])  # noqa: E731
    heads = ("policy", "value", "slow_value", "reward", "cont")
    belief = after(arrays, name)
    policy, value, slow_value, reward, cont = jax.jit(
        lambda params, belief: [getattr(victim, head)(params, belief) for head in heads]
    )(params, belief)
    agrees("actor mean", policy.mean, want("actor_mean"))
    agrees("actor std", policy.std, want("actor_std"))
    agrees("actor mode", policy.mode(), want("actor_mode"))
    agrees("actor entropy", policy.entropy(), want("actor_entropy"))
    agrees("value", value.mean(), want("value")[:, 0])
    agrees("slow value", slow_value.mean(), want("slow_value")[:, 0])
    agrees("reward", reward.mean(), want("reward")[:, 0])
    agrees("cont logit", cont.logit, want("cont_logit")[:, 0])
    agrees("cont prob", cont.prob(), want("cont_prob")[:, 0])
    m, s = np.split(want("actor_raw"), 2, axis=-1)
    agrees("actor raw mean", policy.mean, np.tanh(m))
    agrees("actor raw std", policy.std, 0.9 / (1 + np.exp(-s - 2)) + 0.1)
    if name == "roll":
        agrees("value logits", value.logits, want("value_logits"))
        agrees("reward logits", reward.logits, want("reward_logits"))


def test_divergences(golden, agrees):
    _, _, arrays = golden
    post, prior = flat(arrays["roll/post_logit"]), flat(arrays["roll/prior_logit"])
    raw = OneHot.raw(post).kl(OneHot.raw(prior)).sum(-1)
    mixed = OneHot.unimix(post).kl(OneHot.unimix(prior)).sum(-1)
    agrees("kl raw", raw, arrays["roll/kl_raw_nofree"].ravel())
    agrees("kl unimix", mixed, arrays["roll/kl_unimix"].ravel())
    agrees("posterior entropy", OneHot.unimix(post).entropy().sum(-1), arrays["roll/post_entropy"].ravel())
    agrees("log prob posterior", OneHot.unimix(post).log_probs, flat(arrays["roll/post_logprob"]))
    agrees("log prob prior", OneHot.unimix(prior).log_probs, flat(arrays["roll/prior_logprob"]))


@pytest.mark.parametrize("name", ROLLOUTS)
def test_reconstruction(golden, agrees, name):
    victim, params, arrays = golden
    if victim.agent != "dreamer":
        with pytest.raises(TypeError, match="only 'dreamer'"):
            victim.decode(params, after(arrays, name))
        return
    shown = Belief(*(flat(arrays[f"{name}/{part}"][:, [0, 3, 7]]) for part in ("stoch", "deter")))
    agrees("reconstruction", jax.jit(victim.decode)(params, shown), flat(arrays[f"{name}/recon_t0_3_7"]))


@pytest.mark.parametrize("name", ROLLOUTS)
def test_whole_rollout_in_a_scan(golden, agrees, name):
    """The same steps, each from our own state before it."""
    victim, params, arrays = golden
    start = Belief(arrays["roll/init_stoch"], arrays["roll/init_deter"])
    inputs = [pixels(arrays["roll/image"]), arrays["roll/action"], arrays["roll/is_first"]]
    steps = [x.swapaxes(0, 1) for x in inputs]

    def step(params, belief, x):
        image, action, first, gumbel = x
        belief, action = restart(first, (belief, action))
        _, belief, internals = agent_step(victim, params, belief, action, image, gumbel)
        return belief, (belief, internals.value)

    gumbel = None if name == "rollmode" else arrays["roll/gumbel_post"]
    _, (beliefs, values) = scan(step, params, start, (*steps, gumbel))
    np.testing.assert_array_equal(np.swapaxes(beliefs.stoch, 0, 1), arrays[f"{name}/stoch"])
    agrees("scan deter", np.swapaxes(beliefs.deter, 0, 1), arrays[f"{name}/deter"])
    agrees("scan value", np.swapaxes(values, 0, 1), arrays[f"{name}/value"][..., 0])


def test_closed_loop(golden, agrees):
    """The agent acts: from the zero state, with its own mode actions fed back."""
    victim, params, arrays = golden

    def step(params, carry, x):
        image, first, gumbel = x
        _, belief, internals = agent_step(victim, params, *restart(first, carry), image, gumbel)
        action = internals.policy.mode()
        return (belief, action), action

    start = victim.initial(3), jnp.zeros((3, victim.action_size))
    images, first = (arrays[f"roll/{key}"].swapaxes(0, 1) for key in ("image", "is_first"))
    (belief, _), actions = scan(step, params, start, (pixels(images), first, arrays["act/gumbel"]))
    agrees("act action", np.swapaxes(actions, 0, 1), arrays["act/action"])
    agrees("act deter", belief.deter, arrays["act/final_deter"])
    np.testing.assert_array_equal(belief.stoch, arrays["act/final_stoch"])


def test_imagination(golden, agrees):
    victim, params, arrays = golden
    last = Belief(arrays["roll/stoch"][:, -1:], arrays["roll/deter"][:, -1:])
    stored = Belief(arrays["imag/stoch"], arrays["imag/deter"])
    start = jax.tree.map(lambda first, rest: flat(np.concatenate([first, rest[:, :-1]], axis=1)), last, stored)
    gumbel = flat(arrays["imag/gumbel"].swapaxes(0, 1))
    action = flat(arrays["imag/action"])
    belief = jax.jit(victim.imagine)(params, start, action, gumbel)
    agrees("imagined deter", belief.deter, flat(stored.deter))
    close = ambiguous(jax.jit(victim.predict)(params, start, action).prior_logits, gumbel)
    same_classes(belief.stoch, flat(stored.stoch), close)
