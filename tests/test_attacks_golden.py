"""Attack losses, gradients and steps against those of the real PyTorch agents, all through the product's own paths."""

from collections import defaultdict
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wmjax import attacks
from wmjax.attacks.attack import Attack, Draw, Frame, Threat, attacker_loss
from wmjax.attacks.optimizers import fgsm, pgd
from wmjax.victims.base import Belief

EPS = 0.04
RELATIVE = 1e-4
SCENARIOS = {"shared": "same", "fresh": "indep"}


@partial(jax.jit, static_argnames=("attack", "victim"))
def perturb(attack, victim, params, prediction, embedding, image, noise, drawn, threat):
    return attacks.perturb(attack, victim, params, Frame(image, embedding, prediction, noise), drawn, threat)


@partial(jax.jit, static_argnames=("attack", "victim"))
def loss_and_gradient(attack, victim, params, prediction, embedding, image, noise, drawn, threat):
    frame = Frame(image, embedding, prediction, noise)
    loss, pullback = jax.vjp(attacker_loss(attack, victim, params, frame, drawn, threat), image)
    return loss, pullback(jnp.ones_like(loss))[0]


def on_golden_frame(function, golden, attack, objectives, images=None, shift=0.0):
    """Call `perturb` or `loss_and_gradient` on the golden step; return results [objectives, B, ...].

    `images` [objectives, B, H, W, C] take the place of the clean image; what the clean pass saw stays.
    """
    victim, params, arrays = golden
    clean = clean_image(arrays)
    repeat = lambda x: np.concatenate([x] * len(objectives))  # noqa: E731
    prediction, embedding = clean_pass(victim, params, arrays)
    names = [name for name in objectives for _ in clean]
    eps = np.full(len(names), EPS, np.float32)
    start = np.broadcast_to(np.float32(shift) / np.float32(EPS), clean.shape)
    result = function(
        attack,
        victim,
        params,
        jax.tree.map(repeat, prediction),
        repeat(embedding),
        repeat(clean) if images is None else np.concatenate(images),
        repeat(arrays["atk/gumbel_clean"]),
        Draw(repeat(start), repeat(arrays["atk/gumbel_adv"]), None),
        Threat(eps, attacks.objective_weights(names), 0 * eps),
    )
    return jax.tree.map(lambda x: np.asarray(x).reshape(len(objectives), len(clean), *x.shape[1:]), result)


@partial(jax.jit, static_argnames="victim")
def _clean_pass(victim, params, belief, action, image):
    return victim.predict(params, belief, action), victim.embed(params, image)


def clean_pass(victim, params, arrays):
    belief = Belief(arrays["atk/prev_stoch"], arrays["atk/prev_deter"])
    return _clean_pass(victim, params, belief, arrays["atk/prev_action"], clean_image(arrays))


def clean_image(arrays):
    return arrays["atk/image"].astype(np.float32) / np.float32(255)


def clip(image, clean):
    """The golden data's own projection, in float32."""
    eps = np.float32(EPS)
    return np.clip(clean + np.clip(image - clean, -eps, eps), np.float32(0), np.float32(1))


def iterates(arrays, name):
    """The images x_0 .. x_9 of a stored PGD run, rebuilt from the signs of its gradients, and its last one."""
    clean = clean_image(arrays)
    images = [clean]
    for signs in arrays[f"atk/{name}/pgd_signs"]:
        images.append(clip(images[-1] + arrays["atk/alpha"] * signs.astype(np.float32), clean))
    np.testing.assert_allclose(images[-1] - clean, arrays[f"atk/{name}/pgd_adv_delta"], atol=1e-7)
    return images


class Case(NamedTuple):
    label: str
    objective: str
    image: np.ndarray
    loss: np.ndarray
    slope: np.ndarray | None  # the gradient, or its int8 signs, where the golden data hold it


def cases(arrays, noise):
    """Every point at which the golden data hold a loss for this noise mode."""
    stored = lambda key: arrays.get(f"atk/{key}")  # noqa: E731
    clean = clean_image(arrays)
    elsewhere = {"point": clip(clean + stored("point_noise"), clean), "point2": stored("point2_image")}
    elsewhere["point_mode"] = elsewhere["point"]
    for objective in attacks.OBJECTIVES:
        for label in {"shared": ("point", "point2"), "fresh": (), "mode": ("point_mode",)}[noise]:
            loss, slope = stored(f"{objective}/{label}/loss"), stored(f"{objective}/{label}/grad")
            if loss is not None:
                yield Case(label, objective, elsewhere[label], loss, slope)
        run = f"{objective}/{SCENARIOS.get(noise)}"
        if stored(f"{run}/loss0") is not None:
            yield Case(SCENARIOS[noise], objective, clean, stored(f"{run}/loss0"), stored(f"{run}/grad0"))
            stepped = clip(clean + stored(f"{run}/fgsm_adv_delta"), clean)
            yield Case("fgsm", objective, stepped, stored(f"{run}/fgsm_loss"), None)
        if stored(f"{run}/pgd_signs") is not None:
            signs = [*stored(f"{run}/pgd_signs"), None]
            for image, loss, sign in zip(iterates(arrays, run), stored(f"{run}/pgd_losses"), signs, strict=True):
                yield Case("pgd", objective, image, loss, sign)


def same_sign(gradient, signs):
    """Whether each pixel's sign agrees, of those whose gradient is not lost in rounding."""
    size = np.abs(gradient)
    counted = size > 1e-6 * size.max(axis=(1, 2, 3), keepdims=True)
    return np.sign(gradient)[counted] == signs[counted]


@pytest.mark.parametrize("noise", ["shared", "fresh", "mode"])
def test_losses_and_gradients(golden, agrees, record_property, noise):
    """At every stored point, and at every iterate of every stored PGD run.

    Signs are counted over a run: where two pixels of a max-pool window tie up to float32 rounding, the gradient of a
    whole patch moves with the winner (in one such iterate ours is the float64 winner, PyTorch's float32 is not).
    """
    _, _, arrays = golden
    known = list(cases(arrays, noise))
    assert len(known) == {"shared": 5 * 4 - 1 + 3 * 11, "fresh": 4 * 2 + 2 * 11, "mode": 5}[noise]
    names, images = [case.objective for case in known], [case.image for case in known]
    losses, gradients = on_golden_frame(loss_and_gradient, golden, Attack(noise=noise), names, images)
    runs = defaultdict(list)
    for case, loss, gradient in zip(known, losses, gradients, strict=True):
        agrees(f"{case.objective} {case.label} loss", loss, case.loss, RELATIVE)
        if case.slope is not None and case.label == "pgd":
            runs[case.objective].append(same_sign(gradient, case.slope))
        elif case.slope is not None:
            agrees(f"{case.objective} {case.label} gradient", gradient, case.slope, RELATIVE)
    for objective, right in runs.items():
        wrong = 1 - np.concatenate(right).mean()
        record_property(f"{objective} pgd signs that differ", wrong)
        assert wrong <= 1e-3


@pytest.mark.parametrize("steps", [fgsm(), pgd()], ids=["fgsm", "pgd"])
@pytest.mark.parametrize("start", ["same", "unif"])
def test_shared_noise_leaves_exactly_no_gradient(golden, steps, start):
    """No latent flips near the clean image, so PDA and LDA see nothing, not even rounding that a sign would blow up."""
    _, _, arrays = golden
    clean = clean_image(arrays)
    shift = arrays["atk/start_noise"] if start == "unif" else np.zeros_like(clean)
    names = list(attacks.OBJECTIVES)
    result = on_golden_frame(perturb, golden, Attack(steps, "shared"), names, shift=shift)
    expected = attacks.project(attacks.ball(clean, np.full(2, EPS, np.float32)), clean + shift)
    for i, name in enumerate(names):
        assert (result.zero_grad[i] == (1 if name in ("pda", "lda") else 0)).all()
        if name in ("pda", "lda"):
            assert (arrays[f"atk/{name}/{start}/loss0"] == 0).all()
            assert (arrays[f"atk/{name}/{start}/grad0"] == 0).all()
            np.testing.assert_array_equal(result.loss_first[i], 0)
            np.testing.assert_allclose(result.image[i], expected, atol=1e-7, rtol=0)
        else:
            assert (result.image[i] != expected).mean() > 0.5


def test_mode_noise_leaves_exactly_no_gradient(golden):
    names = list(attacks.OBJECTIVES)
    result = on_golden_frame(perturb, golden, Attack(pgd(), "mode"), names)
    for i, name in enumerate(names):
        assert (result.zero_grad[i] == (1 if name in ("pda", "lda") else 0)).all()
        assert (result.image[i] == clean_image(golden[2])).all() == (name in ("pda", "lda"))


@pytest.mark.parametrize("noise", ["shared", "fresh"])
def test_fgsm(golden, record_property, noise):
    _, _, arrays = golden
    names = stored_objectives(arrays, noise)
    clean = clean_image(arrays)
    images = on_golden_frame(perturb, golden, Attack(fgsm(), noise), names).image
    for name, image in zip(names, images, strict=True):
        stored = f"atk/{name}/{SCENARIOS[noise]}"
        slope = arrays[f"{stored}/grad0"]
        strong = np.abs(slope) > 1e-6 * np.abs(slope).max(axis=(1, 2, 3), keepdims=True)
        delta, want = image - clean, arrays[f"{stored}/fgsm_adv_delta"]
        different = np.abs(delta - want)[strong] > 1e-6
        wrong = float(different.mean()) if different.size else 0.0
        record_property(f"{name} fgsm pixels that differ", wrong)
        assert wrong <= 1e-3
        assert strong.any() or (image == clean).all()


@pytest.mark.parametrize("noise", ["shared", "fresh"])
def test_pgd_climbs_as_far(golden, record_property, noise):
    """Our own ten steps; where a rare sign near zero differs, the runs part but end about as high."""
    _, _, arrays = golden
    names = stored_objectives(arrays, noise)
    clean = clean_image(arrays)
    images = on_golden_frame(perturb, golden, Attack(pgd(), noise), names).image
    assert (np.abs(images.astype(np.float64) - clean) <= np.float32(EPS)).all()
    assert images.min() >= 0
    assert images.max() <= 1
    last, _ = on_golden_frame(loss_and_gradient, golden, Attack(noise=noise), names, images)
    for name, image, loss in zip(names, images, last, strict=True):
        stored = f"atk/{name}/{SCENARIOS[noise]}"
        first, want = arrays[f"{stored}/pgd_losses"][[0, -1]]
        parted = np.abs(image - clean - arrays[f"{stored}/pgd_adv_delta"]) > 1e-6
        record_property(f"{name} pgd pixels that differ", float(parted.mean()))
        assert (loss >= want - 0.05 * np.abs(want - first) - RELATIVE * np.abs(want)).all()


def stored_objectives(arrays, noise):
    return [name for name in attacks.OBJECTIVES if f"atk/{name}/{SCENARIOS[noise]}/loss0" in arrays]


def test_clean_pass(golden, agrees):
    victim, params, arrays = golden
    prediction, embedding = clean_pass(victim, params, arrays)
    belief, clean = jax.jit(victim.update)(params, prediction, embedding, arrays["atk/gumbel_clean"])
    np.testing.assert_array_equal(belief.stoch, arrays["atk/clean_stoch"])
    agrees("clean deter", clean.deter, arrays["atk/clean_deter"])
    agrees("clean post_logits", clean.post_logits, arrays["atk/clean_post_logit"])
    agrees("clean prior_logits", clean.prior_logits, arrays["atk/clean_prior_logit"])
    agrees("clean actor mean", clean.policy.mean, arrays["atk/clean_actor_mean"])
    agrees("clean actor std", clean.policy.std, arrays["atk/clean_actor_std"])
    agrees("clean value", clean.value, arrays["atk/clean_value"][:, 0])
    _, moved = jax.jit(victim.update)(params, prediction, embedding, arrays["atk/gumbel_adv"])
    stoch, deter = attacks.drift(clean, moved)
    np.testing.assert_array_equal(deter, arrays["atk/extra/indep/lda_h"])
    np.testing.assert_array_equal(stoch, arrays["atk/lda/indep/loss0"])
