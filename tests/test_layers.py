"""Layers against torch.nn.functional: values, gradients and the winners of ties, in loops and under vmap."""

import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from wmjax.core import convolution, correlation, layers
from wmjax.core.convolution import conv, conv_pool, max_pool, up_conv

torch = pytest.importorskip("torch", reason="layers are compared with PyTorch's")
F = torch.nn.functional


def normal(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype(np.float32)


def leaf(array):
    return torch.tensor(np.asarray(array), requires_grad=True)


def torch_conv(x, kernel):
    """[B, H, W, I] and [k, k, I, O], as ours."""
    return F.conv2d(x.permute(0, 3, 1, 2), kernel.permute(3, 2, 0, 1), padding="same").permute(0, 2, 3, 1)


def torch_pool(x):
    return F.max_pool2d(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)


def close(got, want, tolerance=1e-5):
    """Agree within `tolerance` of the largest magnitude."""
    want = want.detach().numpy() if isinstance(want, torch.Tensor) else want
    assert got.shape == want.shape
    assert np.max(np.abs(got - want)) <= tolerance * np.max(np.abs(want))


def gradients(function, *arrays, weight):
    total = lambda *a: jnp.sum(function(*a) * weight)  # noqa: E731
    return jax.jit(jax.grad(total, argnums=tuple(range(len(arrays)))))(*arrays)


def torch_gradients(function, *arrays, weight):
    leaves = [leaf(array) for array in arrays]
    return torch.autograd.grad((function(*leaves) * torch.tensor(weight)).sum(), leaves)


# batch, height, width, inputs, outputs, kernel size; the last three go by tiles, the two before them by columns
CONVOLUTIONS = [
    (2, 8, 8, 3, 8, 5),
    (1, 7, 5, 3, 4, 5),
    (2, 6, 10, 16, 16, 5),
    (2, 5, 9, 5, 7, 4),
    (1, 4, 4, 1, 1, 2),
    (2, 9, 6, 4, 3, 1),
    (1, 8, 8, 3, 20, 5),
    (2, 7, 9, 16, 3, 5),
    (1, 6, 5, 17, 4, 4),
    (2, 8, 7, 16, 24, 5),
    (1, 12, 12, 20, 16, 4),
    (3, 4, 8, 16, 17, 3),
]


@pytest.mark.parametrize("shape", CONVOLUTIONS, ids=str)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_conv_and_its_gradients(shape):
    batch, height, width, inputs, outputs, size = shape
    x, kernel = normal(batch, height, width, inputs), normal(size, size, inputs, outputs)
    weight = normal(batch, height, width, outputs, seed=1)
    assert correlation.goes_by_tiles(x, kernel) == (shape in CONVOLUTIONS[-3:])
    assert correlation._goes_by_columns(kernel) == (shape in CONVOLUTIONS[-5:-3])
    close(jax.jit(conv)(x, kernel), torch_conv(leaf(x), leaf(kernel)))
    want = torch_gradients(torch_conv, x, kernel, weight=weight)
    for got, expected in zip(gradients(conv, x, kernel, weight=weight), want, strict=True):
        close(got, expected)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    size=st.integers(1, 6),
    height=st.integers(1, 12),
    width=st.integers(1, 9),
    channels=st.sampled_from([(3, 2), (16, 3), (16, 16)]),
)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_conv_of_any_size(size, height, width, channels):
    x, kernel = normal(1, height, width, channels[0]), normal(size, size, *channels)
    close(jax.jit(conv)(x, kernel), torch_conv(leaf(x), leaf(kernel)))


def test_conv_in_a_loop_and_under_vmap():
    x, kernel = normal(2, 8, 8, 16), normal(5, 5, 16, 16) / 20

    @jax.jit
    def step(x):
        return x - 0.1 * jax.grad(lambda x: jnp.sum(jnp.cos(conv(x, kernel))))(x)

    looped, _ = jax.jit(lambda x: lax.scan(lambda x, _: (step(x), None), x, length=3))(x)
    close(looped, step(step(step(x))))

    kernels = jnp.stack([kernel, 2 * kernel])
    images = jnp.stack([x, -x])
    over_images = jax.vmap(step)(images)
    close(over_images[1], step(-x))
    both = jax.jit(jax.vmap(jax.grad(lambda k, x: jnp.sum(jnp.cos(conv(x, k))))))(kernels, images)
    close(both[1], gradients(lambda k: jnp.cos(conv(-x, k)), 2 * kernel, weight=1.0)[0])


@pytest.mark.parametrize(("size", "outputs"), [(1, 3), (2, 20), (3, 3), (4, 3), (5, 3), (5, 20)])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_conv_of_squares_of_pixels(size, outputs, monkeypatch):
    """Both that know squares of 2x2 pixels, the one that pools them and the one that makes them, with all gradients."""
    monkeypatch.setattr(convolution, "MANY", 1)
    x, kernel, bias = normal(3, 6, 8, 4), normal(size, size, 4, outputs), normal(outputs)

    def pooled(x, kernel, bias):
        return torch_pool(torch_conv(x, kernel) + bias)

    def raised(x, kernel):
        return torch_conv(x.repeat_interleave(2, 1).repeat_interleave(2, 2), kernel)

    pairs = (lambda *arrays: conv_pool(*arrays), pooled, (x, kernel, bias)), (up_conv, raised, (x, kernel))
    for ours, theirs, arrays in pairs:
        want = theirs(*map(leaf, arrays))
        close(jax.jit(ours)(*arrays), want)
        weight = normal(*want.shape, seed=1)
        wanted = torch_gradients(theirs, *arrays, weight=weight)
        for got, expected in zip(gradients(ours, *arrays, weight=weight), wanted, strict=True):
            close(got, expected)


@pytest.mark.parametrize("batch", [1, 6, 16])
def test_several_encoders_learn_in_a_loop(batch, monkeypatch):
    """Stacked weights, updates in a scan, and batches of any size: as one update after the other, by PyTorch."""
    monkeypatch.setattr(convolution, "MANY", 1)
    channels, seeds = (3, 8, 20), 2
    x = normal(batch, 8, 8, 3)
    stages = [(normal(5, 5, a, b) / 20, 0.1 * normal(b, seed=1)) for a, b in itertools.pairwise(channels)]
    stages = [[np.stack([(1 + seed) * array for seed in range(seeds)]) for array in stage] for stage in stages]
    weight = normal(batch, 2, 2, channels[-1], seed=1) / batch

    def loss(stages, x):
        for kernel, bias in stages:
            x = jnp.tanh(conv_pool(x, kernel, bias))
        return jnp.sum(x * weight)

    def update(stages, _):
        slopes = jax.vmap(jax.grad(loss), (0, None))(stages, x)
        return jax.tree.map(lambda a, b: a - 0.1 * b, stages, slopes), None

    learned, _ = jax.jit(lambda stages: lax.scan(update, stages, length=2))(stages)
    for seed in range(seeds):
        theirs = [leaf(array[seed]) for stage in stages for array in stage]
        for _ in range(2):
            y = torch.tensor(x)
            for kernel, bias in zip(theirs[::2], theirs[1::2], strict=True):
                y = torch.tanh(torch_pool(torch_conv(y, kernel) + bias))
            slopes = torch.autograd.grad((y * torch.tensor(weight)).sum(), theirs)
            theirs = [leaf((a - 0.1 * b).detach()) for a, b in zip(theirs, slopes, strict=True)]
        for got, want in zip(jax.tree.leaves(learned), theirs, strict=True):
            close(got[seed], want)


@pytest.mark.parametrize("taps", [2, 3, 4, 5])
def test_toom_cook_multiplies_polynomials(taps):
    from_rows, from_taps, to_rows = correlation._toom_cook(correlation.TILE, taps)
    rng = np.random.default_rng(taps)
    rows, kernel = rng.normal(size=correlation.TILE + taps - 1), rng.normal(size=taps)
    np.testing.assert_allclose(
        to_rows @ ((from_taps @ kernel) * (from_rows @ rows)), np.correlate(rows, kernel), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("shape", [(2, 8, 8, 3), (1, 7, 5, 4), (2, 3, 2, 1)], ids=str)
@pytest.mark.parametrize("levels", [2, 3, 1000])
def test_max_pool_sends_ties_to_the_first(shape, levels):
    x = np.random.default_rng(0).integers(levels, size=shape).astype(np.float32)
    weight = normal(shape[0], shape[1] // 2, shape[2] // 2, shape[3])
    np.testing.assert_array_equal(jax.jit(max_pool)(x), torch_pool(leaf(x)).detach())
    (got,), (want,) = (f(g, x, weight=weight) for f, g in ((gradients, max_pool), (torch_gradients, torch_pool)))
    np.testing.assert_array_equal(got, want)


def flat_images():
    rng = np.random.default_rng(0)
    constant = np.broadcast_to(rng.uniform(size=(1, 1, 1, 3)), (1, 64, 64, 3))
    blocks = rng.uniform(size=(1, 4, 4, 3)).repeat(16, 1).repeat(16, 2)
    shapes = np.roll(blocks, 3, axis=1)
    shapes[:, 20:40, 10:30] = 0.3
    noise = rng.uniform(size=(1, 64, 64, 3))
    noise[:, :, 20:] = 0.7
    images = {"constant": constant, "blocks": blocks, "shapes": shapes, "half noise": noise}
    return {name: image.astype(np.float32) for name, image in images.items()}


WIDE, NARROW = (3, 16, 24, 32, 32), (3, 8, 12, 16, 16)


@pytest.mark.parametrize(("channels", "many"), [(WIDE, 64), (WIDE, 1), (NARROW, 1)], ids=str)
@pytest.mark.parametrize("name", flat_images())
def test_flat_regions_tie_through_fast_stages(name, channels, many, monkeypatch):
    """Rounding may not decide who wins: stage by stage the winners are PyTorch's."""
    monkeypatch.setattr(convolution, "MANY", many)
    kernels = [normal(5, 5, a, b) / (5 * a**0.5) for a, b in itertools.pairwise(channels)]
    biases = [0.1 * normal(size, seed=1) for size in channels[1:]]

    def ours(x):
        for kernel, bias in zip(kernels, biases, strict=True):
            x = nn.silu(layers.rms_norm(conv_pool(x, kernel, bias), jnp.ones_like(bias)))
        return x

    def theirs(x):
        for kernel, bias in zip(kernels, biases, strict=True):
            x = torch_pool(torch_conv(x, torch.tensor(kernel)) + torch.tensor(bias))
            x = F.silu(F.rms_norm(x, x.shape[-1:], eps=1e-4))
        return x

    image = flat_images()[name] - 0.5
    weight = normal(1, 4, 4, channels[-1])
    close(jax.jit(ours)(image), theirs(leaf(image)))
    (got,) = gradients(ours, image, weight=weight)
    (want,) = torch_gradients(theirs, image, weight=weight)
    close(got, want)


def test_linear_layers_and_norm():
    x, kernel, blocks = normal(2, 3, 12), normal(12, 5), normal(4, 3, 2)
    close(layers.linear(x, kernel), x @ kernel)
    by_hand = np.concatenate([x[..., 3 * g : 3 * g + 3] @ blocks[g] for g in range(4)], axis=-1)
    close(layers.block_linear(x, blocks), by_hand)
    dense, parts = layers.Linear(5), (x[..., :4], x[..., 4:5], x[..., 5:])
    params = {"params": {"kernel": kernel, "bias": normal(5)}}
    close(dense.apply(params, *parts), dense.apply(params, x))
    scale = normal(12)
    close(layers.rms_norm(x, scale), F.rms_norm(torch.tensor(x), (12,), torch.tensor(scale), eps=1e-4))
    assert np.all(layers.rms_norm(np.zeros((1, 12), np.float32), scale) == 0)


def test_conv_stage_matches_pytorch_with_all_its_gradients():
    x, weight = normal(2, 12, 12, 3), normal(2, 6, 6, 8)
    stage = layers.ConvStage(8)
    params = jax.tree.map(lambda p: p + 0.1 * normal(*p.shape, seed=2), stage.init(jax.random.key(0), x))["params"]

    def theirs(x, kernel, bias, scale):
        return F.silu(F.rms_norm(torch_pool(torch_conv(x, kernel) + bias), (8,), scale, eps=1e-4))

    arrays = params["conv"]["kernel"], params["conv"]["bias"], params["norm"]["scale"]
    want_x, want_kernel, want_bias, want_scale = torch_gradients(theirs, x, *arrays, weight=weight)

    def apply(params, x):
        return stage.apply({"params": params}, x)

    got_params, got_x = gradients(apply, params, x, weight=weight)
    close(apply(params, x), theirs(*map(leaf, (x, *arrays))))
    close(got_x, want_x)
    close(got_params["conv"]["kernel"], want_kernel)
    close(got_params["conv"]["bias"], want_bias)
    close(got_params["norm"]["scale"], want_scale)


@pytest.mark.parametrize("norm", [True, False])
def test_up_stage(norm):
    x = normal(2, 4, 6, 16)
    stage = layers.UpStage(16, norm=norm)
    params = stage.init(jax.random.key(0), x)
    up = F.interpolate(leaf(x).permute(0, 3, 1, 2), scale_factor=2, mode="nearest").permute(0, 2, 3, 1)
    want = torch_conv(up, leaf(params["params"]["conv"]["kernel"]))
    if norm:
        want = F.silu(F.rms_norm(want, (16,), eps=1e-4))
    close(stage.apply(params, x), want)


def test_parameter_names_are_the_file_format():
    def shapes(module, *shape):
        params = jax.eval_shape(lambda: module.init(jax.random.key(0), jnp.ones(shape)))["params"]
        return jax.tree.map(lambda leaf: leaf.shape, params)

    def linear(inputs, outputs):
        return {"kernel": (inputs, outputs), "bias": (outputs,)}

    norm = {"scale": (4,)}
    assert shapes(layers.Linear(4), 2, 3) == linear(3, 4)
    assert shapes(layers.Linear(4, use_bias=False), 2, 3) == {"kernel": (3, 4)}
    assert shapes(layers.BlockLinear(6, 2), 5, 4) == {"kernel": (2, 2, 3), "bias": (6,)}
    stack = {"linear0": linear(3, 4), "norm0": norm, "linear1": linear(4, 4), "norm1": norm}
    assert shapes(layers.MLP(4, 2), 1, 3) == stack
    assert shapes(layers.MLP(4, 2, out=5), 1, 3) == {**stack, "out": linear(4, 5)}
    convolved = {"conv": {"kernel": (5, 5, 3, 4), "bias": (4,)}, "norm": norm}
    assert shapes(layers.ConvStage(4), 1, 8, 8, 3) == convolved
    assert shapes(layers.UpStage(4), 1, 8, 8, 3) == convolved
    assert shapes(layers.UpStage(4, norm=False), 1, 8, 8, 3) == {"conv": convolved["conv"]}
