"""The plain PyTorch agent reproduces the goldens, so that it can stand for the original code at any size."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the PyTorch reference needs torch")

from benchmarks import torch_agent as ta  # noqa: E402
from benchmarks import torch_attacks as attacks  # noqa: E402

TINY = dict(deter=64, hidden=32, stoch=8, discrete=4, depth=4, units=32, action=2)
FOLDERS = {f"tiny_{agent}": ta.Sizes(agent, **TINY) for agent in ta.AGENTS} | {"m12_r2dreamer": ta.Sizes()}


class Golden:
    """One folder: the agent with its weights, and the arrays as tensors."""

    def __init__(self, folder, sizes):
        file = folder / ("latest.pt" if sizes.deter == 64 else "model.pt")
        self.state = torch.load(file, weights_only=True, map_location="cpu")["agent_state_dict"]
        self.agent = ta.Agent(sizes).load(self.state)
        self.sizes = sizes
        with np.load(folder / "golden.npz") as arrays:
            self.arrays = {k: torch.from_numpy(v) for k, v in arrays.items() if k[:5] not in ("ckpt/", "train")}

    def __getitem__(self, key):
        return self.arrays[key]

    def image(self, key):
        return self[key].float() / 255


@pytest.fixture(scope="module", params=FOLDERS)
def gold(request, shared):
    return Golden(shared / "golden" / request.param, FOLDERS[request.param])


def close(got, want, tolerance=1e-5):
    """Agree within `tolerance` of the array's largest magnitude."""
    assert got.shape == want.shape
    error = (got - want).abs().max() / want.abs().max().clamp(min=1e-30)
    assert error <= tolerance, f"off by {error:.1e} of the scale"


def rollout(gold, noise):
    """The stored rollout: all states [B, T, ...] of the posterior chain."""
    agent, stoch, deter = gold.agent, gold["roll/init_stoch"], gold["roll/init_deter"]
    out = []
    for t in range(8):
        keep = (~gold["roll/is_first"][:, t]).float()[:, None]
        action = gold["roll/action"][:, t] * keep
        deter, prior = agent.predict(stoch * keep[..., None], deter * keep, action)
        post = agent.rssm.posterior(deter, agent.encoder(gold.image("roll/image")[:, t]))
        stoch = ta.draw(post, gold["roll/gumbel_post"][t] if noise else None)
        out.append((stoch, deter, post, prior))
    return [torch.stack(part, 1) for part in zip(*out, strict=True)]


def test_embeddings(gold):
    close(gold.agent.encoder(gold.image("enc/image")), gold["enc/embed"])


@pytest.mark.parametrize("name", ["roll", "rollmode"])
def test_rollout_and_heads(gold, name):
    stoch, deter, post, prior = rollout(gold, noise=name == "roll")
    assert torch.equal(stoch, gold[f"{name}/stoch"])
    close(deter, gold[f"{name}/deter"])
    close(post, gold[f"{name}/post_logit"])
    close(prior, gold[f"{name}/prior_logit"])
    feature = ta.feature(stoch, deter)
    mean, std = gold.agent.policy(feature)
    close(mean, gold[f"{name}/actor_mean"])
    close(std, gold[f"{name}/actor_std"])
    close(ta.two_hot_mean(gold.agent.value(feature))[..., None], gold[f"{name}/value"])
    close(ta.two_hot_mean(gold.agent._slow_value(feature))[..., None], gold[f"{name}/slow_value"])
    close(ta.two_hot_mean(gold.agent.reward(feature))[..., None], gold[f"{name}/reward"])
    close(gold.agent.cont(feature), gold[f"{name}/cont_logit"])
    if gold.sizes.agent == "dreamer":
        recon = torch.stack([gold.agent.decoder._cnn(stoch[:, t], deter[:, t]) for t in (0, 3, 7)], 1)
        close(recon, gold[f"{name}/recon_t0_3_7"])


def test_imagination(gold):
    stoch, deter = gold["roll/stoch"][:, -1], gold["roll/deter"][:, -1]
    for t in range(5):
        deter, prior = gold.agent.predict(stoch, deter, gold["imag/action"][:, t])
        stoch = ta.draw(prior, gold["imag/gumbel"][t])
        close(deter, gold["imag/deter"][:, t])
        assert torch.equal(stoch, gold["imag/stoch"][:, t])


def test_acting_from_its_own_beginning(gold):
    image, sizes = gold.image("roll/image"), gold.sizes
    stoch, deter = torch.zeros(3, sizes.stoch, sizes.discrete), torch.zeros(3, sizes.deter)
    action = torch.zeros(3, sizes.action)
    for t in range(8):
        keep = (~gold["roll/is_first"][:, t]).float()[:, None]
        deter, _ = gold.agent.predict(stoch * keep[..., None], deter * keep, action * keep)
        post = gold.agent.rssm.posterior(deter, gold.agent.encoder(image[:, t]))
        stoch = ta.draw(post, gold["act/gumbel"][t])
        action, _ = gold.agent.policy(ta.feature(stoch, deter))
        close(action, gold["act/action"][:, t])
    assert torch.equal(stoch, gold["act/final_stoch"])
    close(deter, gold["act/final_deter"])


def attacked_step(gold, *, fresh=False, mode=False):
    deter, prior = gold.agent.predict(*(gold[f"atk/prev_{part}"] for part in ("stoch", "deter", "action")))
    clean_noise = None if mode else gold["atk/gumbel_clean"]
    post = gold.agent.rssm.posterior(deter, gold.agent.encoder(gold.image("atk/image")))
    noise = gold["atk/gumbel_adv"] if fresh else clean_noise
    return attacks.Step(deter, prior, noise, ta.draw(post, clean_noise))


@pytest.mark.parametrize("objective", attacks.OBJECTIVES)
def test_attack_losses_and_gradients(gold, objective):
    image, eps = gold.image("atk/image"), float(gold["atk/eps"])
    near = attacks.project(image + gold["atk/point_noise"], image, eps)
    points = [
        ("same/loss0", "same/grad0", image, attacked_step(gold)),
        ("point/loss", "point/grad", near, attacked_step(gold)),
        ("point2/loss", "point2/grad", gold["atk/point2_image"], attacked_step(gold)),
        ("point_mode/loss", "point_mode/grad", near, attacked_step(gold, mode=True)),
    ]
    if objective == "dca":  # does not read the sample, so has no fresh-noise case; point2 is its own result
        points.pop(2)
    else:
        points.append(("indep/loss0", "indep/grad0", image, attacked_step(gold, fresh=True)))
    for loss_key, grad_key, at, step in points:
        loss, grad = attacks.loss_and_grad(attacks.OBJECTIVES[objective], gold.agent, at, step)
        close(loss, gold[f"atk/{objective}/{loss_key}"], 1e-4)
        close(grad, gold[f"atk/{objective}/{grad_key}"], 1e-4)


@pytest.mark.parametrize(("objective", "start"), [("vsa", "same"), ("pea", "same"), ("pda", "indep"), ("lda", "indep")])
def test_pgd_follows_the_stored_signs(gold, objective, start):
    image, eps, alpha = gold.image("atk/image"), float(gold["atk/eps"]), float(gold["atk/alpha"])
    step, loss = attacked_step(gold, fresh=start == "indep"), attacks.OBJECTIVES[objective]
    at = image
    for index, signs in enumerate(gold[f"atk/{objective}/{start}/pgd_signs"]):
        value, grad = attacks.loss_and_grad(loss, gold.agent, at, step)
        close(value, gold[f"atk/{objective}/{start}/pgd_losses"][index], 1e-4)
        clear = grad.abs() > 1e-6 * grad.abs().max()
        assert (grad.sign() == signs)[clear].float().mean() >= 0.999
        at = attacks.project(at + alpha * signs.float(), image, eps)
    assert torch.allclose(at - image, gold[f"atk/{objective}/{start}/pgd_adv_delta"], atol=1e-7)


def test_fgsm_is_one_whole_step(gold):
    image, eps = gold.image("atk/image"), float(gold["atk/eps"])
    step = attacked_step(gold)
    adversarial, losses = attacks.pgd(attacks.vsa, gold.agent, image, step, eps=eps, alpha=eps, steps=1)
    close(losses[0], gold["atk/vsa/same/loss0"])
    same = (adversarial - image - gold["atk/vsa/same/fgsm_adv_delta"]).abs() < 1e-6
    assert same.float().mean() >= 0.999


def test_checkpoint_keys_and_aliases_are_the_original_ones(gold):
    state = ta.checkpoint_state_dict(gold.agent)
    assert list(state) == list(gold.state)
    assert all(state[key].shape == gold.state[key].shape for key in state)
    assert state["_frozen_slow_value.last.bias"].data_ptr() == state["_slow_value.last.bias"].data_ptr()


def test_random_agents_are_reproducible_and_well_scaled():
    sizes = ta.Sizes("dreamer", deter=48, blocks=4, hidden=20, stoch=5, discrete=7, depth=2, units=24, action=3)
    agent, twin = ta.random_agent(sizes, seed=1), ta.random_agent(sizes, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(agent.state_dict().values(), twin.state_dict().values(), strict=True))
    deter, prior = agent.predict(torch.zeros(2, 5, 7), torch.zeros(2, 48), torch.ones(2, 3))
    image = torch.rand(2, 64, 64, 3, generator=torch.Generator().manual_seed(0))
    stoch = ta.draw(agent.rssm.posterior(deter, agent.encoder(image)), None)
    value = ta.two_hot_mean(agent.value(ta.feature(stoch, deter)))
    assert prior.shape == (2, 5, 7)
    assert (value.abs() < 100).all()
    assert agent.decoder._cnn(stoch, deter).shape == (2, 64, 64, 3)
