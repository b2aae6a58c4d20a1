"""Training against the PyTorch agents' own: every loss, gradient and optimizer step of one update, noise replayed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from wmjax.agents.base import Belief
from wmjax.agents.dreamer import AGENTS
from wmjax.agents.dreamer.torch_layout import weights
from wmjax.train.batch import Batch, Noise
from wmjax.train.learner import gradient, split
from wmjax.train.optimizer import LaPropState, clip_by_weight, laprop, optimizer, warm_up
from wmjax.train.recipe import Recipe
from wmjax.train.representation import translate

trained_agents = pytest.mark.parametrize("golden", [f"tiny_{a}" for a in AGENTS], indirect=True, scope="session")
"""Of these the golden folders hold an update."""

RENAMED = {"prj.": "projector.", "_prototypes": "prototypes"}
"""How names of the optimizer's arrays begin, where the state dict has others."""


@pytest.fixture(scope="module")
def update(golden):
    """(victim, params, arrays, batch, noise, gradient's results) of the stored update."""
    victim, params, arrays = golden
    train = {name[6:]: value for name, value in arrays.items() if name.startswith("train/")}
    batch = Batch(
        image=jnp.asarray(train["image"]),
        action=jnp.asarray(train["action"]),
        reward=jnp.asarray(train["reward"]).reshape(4, 6),
        is_first=jnp.asarray(train["is_first"]).reshape(4, 6).astype(bool),
        is_last=jnp.asarray(train["is_last"]).reshape(4, 6).astype(bool),
        is_terminal=jnp.asarray(train["is_terminal"]).reshape(4, 6).astype(bool),
        initial=Belief(jnp.asarray(train["init_stoch"]), jnp.asarray(train["init_deter"])),
    )
    noise = Noise(
        post=jnp.asarray(train["noise_obs_gumbel"]),
        action=jnp.asarray(train["noise_imag_normal"]),
        prior=jnp.asarray(train["noise_imag_gumbel"]),
    )
    if victim.agent == "dreamerpro":
        shift, augmented = train["aug_shift_wh"].astype(np.int32), train["noise_aug_gumbel"]
        noise = noise.replace(shift=jnp.asarray(shift), augmented=jnp.asarray(augmented))
    results = jax.jit(gradient, static_argnums=(0, 1))(victim, Recipe(), params, batch, noise)
    return victim, params, train, batch, noise, results


def stored(victim, train, kind, trained):
    """The arrays `kind`/* of the trained weights, by path, in our layout."""
    arrays = {}
    for weight in weights(victim):
        if weight.path.split("/")[0] in trained:
            name = weight.key
            for ours, theirs in RENAMED.items():
                name = theirs + name.removeprefix(ours) if name.startswith(ours) else name
            arrays[weight.path] = weight.to_jax(train[f"{kind}/{name}"])
    return arrays


@trained_agents
def test_every_loss_term(update, agrees):
    _, _, train, _, _, (_, (belief, quantiles, metrics)) = update
    ours = {name.removeprefix("loss/"): value for name, value in metrics.items() if name.startswith("loss/")}
    if "recon" in ours:
        ours["image"] = ours.pop("recon")
    assert {f"metric/loss/{name}" for name in ours} == {name for name in train if name.startswith("metric/loss/")}
    for name, value in ours.items():
        agrees(name, value, train[f"metric/loss/{name}"], 1e-4)
    agrees("total", metrics["opt/loss"], train["metric/opt/loss"], 1e-4)
    agrees("return_ema", quantiles, train["return_ema_after"], 1e-4)
    agrees("deter", belief.deter, train["post_deter"], 1e-4)
    np.testing.assert_array_equal(belief.stoch, train["post_stoch"])


@trained_agents
def test_every_gradient(update, record_property):
    victim, _, train, _, _, (grads, _) = update
    wanted = stored(victim, train, "grad", grads)
    flat = flatten_dict(grads, sep="/")
    assert flat.keys() == wanted.keys()
    errors = {path: np.linalg.norm(flat[path] - want) / np.linalg.norm(want) for path, want in wanted.items()}
    worst = max(errors, key=errors.get)
    record_property("worst", errors[worst])
    assert errors[worst] <= 1e-3, (worst, errors[worst])
    total = np.sqrt(sum(np.sum(np.square(g)) for g in flat.values()))
    np.testing.assert_allclose(total, train["gradnorm_total"], rtol=1e-3)


@trained_agents
def test_step_from_the_stored_optimizer_state(update, shared, request, record_property):
    torch = pytest.importorskip("torch")
    victim, params, train, _, _, _ = update
    folder = shared / "golden" / f"tiny_{victim.agent}"
    state = torch.load(folder / "latest.pt", weights_only=True)["optims_state_dict"]["_optimizer"]["state"]
    with np.load(folder / "golden.npz") as arrays:
        names = [str(name) for name in arrays["ckpt/optimizer_param_names"]]
    moments = {
        kind: {f"{kind}/{name}": state[i][kind].numpy() for i, name in enumerate(names) if i in state}
        for kind in ("exp_avg", "exp_avg_sq")
    }
    trained, _ = split(params)
    tree = lambda flat: unflatten_dict({path: jnp.asarray(x) for path, x in flat.items()}, sep="/")  # noqa: E731
    before = LaPropState(
        step=jnp.int32(state[0]["step"]),
        mu=tree(stored(victim, moments["exp_avg"], "exp_avg", trained)),
        nu=tree(stored(victim, moments["exp_avg_sq"], "exp_avg_sq", trained)),
        lr_1=jnp.float32(state[0]["exp_avg_lr_1"]),
        lr_2=jnp.float32(state[0]["exp_avg_lr_2"]),
    )
    grads = stored(victim, train, "grad", trained)
    recipe = Recipe(lr=float(train["step_lr"]), warmup=0)
    clipping, _ = optimizer(victim, recipe).init(trained)
    steps, _ = jax.jit(optimizer(victim, recipe).update)(tree(grads), (clipping, before), trained)
    wanted = stored(victim, train, "update", trained)
    worst = 0.0
    for path, step in flatten_dict(steps, sep="/").items():
        felt = np.abs(grads[path]) > 1e-15  # below, second moments are denormal numbers, which XLA takes for 0
        error = np.linalg.norm((step - wanted[path])[felt]) / max(np.linalg.norm(wanted[path][felt]), 1e-30)
        worst = max(worst, error)
        assert error <= 1e-4, (path, error)
    record_property("worst", worst)


@trained_agents
def test_three_steps_of_two_tensors(golden, agrees):
    _, _, arrays = golden
    opt = {name[4:]: value for name, value in arrays.items() if name.startswith("opt/")}
    rates = jnp.asarray(opt["lr"])
    clip = clip_by_weight(0.3, 1e-3, {"p0": "first", "p1": "second"})
    chain = laprop(lambda count: rates[count], 0.9, 0.999, 1e-20)
    pair = lambda kind, t: {f"p{i}": jnp.asarray(opt[kind.format(i, t)]) for i in (0, 1)}  # noqa: E731
    params = pair("p{}_{}", 0)
    state = chain.init(params)
    for t in range(3):
        clipped, _ = clip.update(pair("g{}_{}", t), clip.init(params), params)
        steps, state = chain.update(clipped, state)
        params = jax.tree.map(jnp.add, params, steps)
        for name, wanted in pair("g{}_agc_{}", t).items():
            agrees(f"clipped {name} {t}", clipped[name], wanted, 1e-5)
        for name, wanted in pair("p{}_{}", t + 1).items():
            agrees(f"stepped {name} {t}", params[name], wanted, 1e-5)


@pytest.mark.parametrize("golden", ["tiny_dreamerpro"], indirect=True, scope="session")
def test_augmentation(update, agrees):
    _, _, train, batch, noise, _ = update
    image = jnp.concatenate([batch.image, batch.image]).astype(jnp.float32) / 255
    agrees("image", translate(image, noise.shift, 3)[:, 0], train["aug_image_t0"], 1e-5)


def test_warm_up_reaches_the_rate():
    rate = warm_up(1e-3, 10)
    np.testing.assert_allclose([rate(jnp.int32(n)) for n in (0, 4, 9, 50)], [1e-4, 5e-4, 1e-3, 1e-3], rtol=1e-6)
