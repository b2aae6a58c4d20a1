"""The plain PyTorch training update reproduces the goldens, so that it can stand for the original code's speed."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the PyTorch reference needs torch")

from benchmarks import torch_agent as ta  # noqa: E402
from benchmarks import torch_optimizer as to  # noqa: E402
from benchmarks import torch_training as tt  # noqa: E402

TINY = dict(deter=64, hidden=32, stoch=8, discrete=4, depth=4, units=32, action=2)


class Golden:
    """One agent with its optimizer's state, and the arrays of its stored update as tensors."""

    def __init__(self, folder, name):
        state = torch.load(folder / "latest.pt", weights_only=True, map_location="cpu")
        self.agent = ta.Agent(ta.Sizes(name, **TINY)).load(state["agent_state_dict"])
        with np.load(folder / "golden.npz") as arrays:
            self.arrays = {k.partition("/")[2]: arrays[k] for k in arrays if k.startswith("train/")}
            order = {str(key): index for index, key in enumerate(arrays["ckpt/optimizer_param_names"])}
        self.optimizer = to.begin(self.agent)
        self.moments = state["optims_state_dict"]["_optimizer"]["state"]
        self.order = {name: order[stored(name)] for name in self.optimizer.weights}

    def __getitem__(self, key):
        return torch.from_numpy(self.arrays[key])

    @property
    def batch(self):
        flat = lambda *names: (self[name][..., 0] for name in names)  # noqa: E731
        rest = flat("reward", "is_first", "is_last", "is_terminal")
        return tt.Batch(self["image"], self["action"], *rest, self["init_stoch"], self["init_deter"])

    @property
    def noise(self):
        names = ["noise_obs_gumbel", "noise_imag_normal", "noise_imag_gumbel", "aug_shift_wh", "noise_aug_gumbel"]
        return tt.Noise(*(self[name] for name in names if name in self.arrays))


def stored(name):
    """Return a parameter's name in the stored arrays."""
    return name.replace("prj.", "projector.").removeprefix("_")


@pytest.fixture(scope="module", params=ta.AGENTS)
def gold(request, shared):
    return Golden(shared / "golden" / f"tiny_{request.param}", request.param)


def test_losses_gradients_and_step(gold):
    loss, terms, spread = tt.weighted(gold.agent, gold.batch, gold.noise)
    want = {name.rpartition("/")[2]: gold[name].item() for name in gold.arrays if name.startswith("metric/loss/")}
    got = {"image" if name == "recon" else name: term.item() for name, term in terms.items()}
    assert got == pytest.approx(want, rel=1e-4)
    assert loss.item() == pytest.approx(gold["metric/opt/loss"].item(), rel=1e-4)
    assert torch.allclose(spread, gold["return_ema_after"], rtol=1e-4)

    weights = gold.optimizer.weights
    grads = torch.autograd.grad(loss, list(weights.values()))
    for name, grad in zip(weights, grads, strict=True):
        want = gold[f"grad/{stored(name)}"]
        assert (grad - want).norm() <= 1e-3 * want.norm(), name

    scale = [
        (a.norm() / b.norm()).item() for a, b in zip(to.clipped(list(weights.values()), grads), grads, strict=True)
    ]
    assert scale == pytest.approx([gold["agc_scale"][gold.order[name]].item() for name in weights], rel=1e-4)


def test_a_step_of_the_optimizer(gold):
    weights, mu, nu, updates, lr_1, lr_2 = gold.optimizer
    for index, name in enumerate(weights):
        moments = gold.moments[gold.order[name]]
        mu[index].copy_(moments["exp_avg"])
        nu[index].copy_(moments["exp_avg_sq"])
        updates.fill_(moments["step"])
        lr_1.fill_(moments["exp_avg_lr_1"])
        lr_2.fill_(moments["exp_avg_lr_2"])
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    grads = [gold[f"grad/{stored(name)}"] for name in weights]
    with torch.no_grad():
        to.laprop(gold.optimizer, to.clipped(list(weights.values()), grads), gold["step_lr"])
    for name, grad in zip(weights, grads, strict=True):
        want, step = gold[f"update/{stored(name)}"], weights[name].detach() - before[name]
        clear = grad.abs() > 1e-15  # below, second moments are denormal numbers
        assert (step - want)[clear].abs().max() <= 1e-4 * want.abs().max(), name


@pytest.mark.parametrize("name", ta.AGENTS)
def test_a_whole_update_moves_everything(name):
    sizes = ta.Sizes(name, deter=48, blocks=4, hidden=16, stoch=8, discrete=8, depth=2, units=16, action=1)
    agent = ta.random_agent(sizes)
    optimizer = to.begin(agent)
    optimizer.updates.fill_(to.FROZEN_PROTOTYPES)
    before = {key: value.clone() for key, value in agent.state_dict().items()}
    none = torch.zeros(2, 3, dtype=torch.bool)
    image = torch.randint(0, 256, (2, 3, 64, 64, 3), dtype=torch.uint8)
    latent = torch.zeros(2, 8, 8), torch.zeros(2, 48)
    batch = tt.Batch(image, torch.randn(2, 3, 1), torch.ones(2, 3), none, none, none, *latent)
    terms = tt.update(agent, optimizer, batch, tt.draw_noise(sizes, 2, 3))
    assert all(term.isfinite() for term in terms.values())
    assert [key for key, value in agent.state_dict().items() if torch.equal(value, before[key])] == []
