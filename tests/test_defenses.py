"""Defenses against PIL and SciPy; range, batch independence and gradients of every one; what BPDA sees."""

import io
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from scipy import ndimage

from wmjax import envs
from wmjax.attacks.defenses import DEFENSES, defense, defense_strength, named, through
from wmjax.attacks.jpeg import _DCT, compress
from wmjax.core.errors import InputError

QUALITIES = (1, 10, 30, 49, 50, 75, 95, 100)
NAMES = list(DEFENSES)

images = hnp.arrays(np.float32, (2, 16, 16, 3), elements=st.just(1.0) | st.floats(0, 1, width=32))


@partial(jax.jit, static_argnums=0)
def applied(defense, image, strength, keys):
    return defense.apply(image, strength, keys)


@partial(jax.jit, static_argnums=0)
def pulled(defense, image, strength, keys, cotangent):
    """Return `through` and its pullback of `cotangent`."""
    value, pullback = jax.vjp(lambda image: through(defense, image, strength, keys), image)
    return value, *pullback(cotangent)


def defend(name, image, value=None, seed=0, run=applied):
    """Apply a defense of one strength to a batch."""
    chosen, batch = defense(name), len(image)
    level = np.full(batch, defense_strength(chosen, value), np.float32)
    return np.asarray(run(chosen, jnp.asarray(image), level, jax.random.split(jax.random.key(seed), batch)))


def drawn(height, width):
    """Return uint8 images [5, H, W, 3]: a gradient, waves, the gradient with noise, white with black squares, noise."""
    rng = np.random.default_rng(height * 1000 + width)
    y, x = np.mgrid[:height, :width].astype(float)
    gradient = np.stack([x * 255 / width, y * 255 / height, (x + y) * 255 / (height + width)], axis=-1)
    waves = 127 + 120 * np.sin(x[..., None] / [2, 3, 9]) * np.cos(y[..., None] / [8, 5, 2])
    grainy = gradient + rng.normal(0, 20, gradient.shape)
    squares = np.where(((x // 7 + y // 5) % 2 == 0)[..., None], [255.0] * 3, [0, 0, 30])
    noise = rng.integers(0, 256, gradient.shape)
    return np.clip([gradient, waves, grainy, squares, noise], 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def frames():
    """Rendered uint8 frames [3, 64, 64, 3]."""
    with envs.make("dmc_walker_walk", batch=3) as env:
        return env.reset(np.arange(3)).image


def pil(levels, quality):
    """Return uint8 images as PIL saves and loads them."""

    def one(image):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=quality)
        return np.asarray(Image.open(file))

    return np.stack([one(image) for image in levels])


def jpeg(levels, qualities):
    image = np.float32(levels) / np.float32(255)
    return np.asarray(jax.jit(compress)(image, np.asarray(qualities, np.float32)))


def assert_is_pil(levels):
    """Assert that JPEG gives PIL's very pixels, at all qualities in one batch."""
    got = jpeg(np.concatenate([levels] * len(QUALITIES)), np.repeat(QUALITIES, len(levels)))
    want = np.concatenate([pil(levels, quality) for quality in QUALITIES])
    np.testing.assert_array_equal(got, np.float32(want) / np.float32(255))


@pytest.mark.parametrize("size", [(64, 64), (16, 16), (84, 84), (50, 38), (37, 51), (9, 5)])
def test_jpeg_is_pil(size):
    assert_is_pil(drawn(*size))


def test_jpeg_of_frames_is_pil(frames):
    assert_is_pil(frames)


@given(levels=hnp.arrays(np.uint8, (1, 16, 16, 3)), quality=st.integers(1, 100))
def test_jpeg_is_pil_for_any_image(levels, quality):
    np.testing.assert_array_equal(jpeg(levels, [quality]), np.float32(pil(levels, quality)) / np.float32(255))


def test_jpeg_rounds_to_grey_levels_first():
    levels = drawn(16, 16)
    off = np.random.default_rng(0).uniform(-0.49, 0.49, levels.shape)
    moved = np.clip(levels + off, 0, 255) / 255
    np.testing.assert_array_equal(defend("jpeg", np.float32(moved)), jpeg(levels, [75] * 5))


def test_jpeg_matrix_is_the_dct():
    frequency, position = np.mgrid[:8, :8]
    cosine = np.cos((2 * position + 1) * frequency * np.pi / 16) * np.where(frequency == 0, 1, np.sqrt(2))
    assert np.abs(_DCT - 8192 * cosine).max() < 1.5


@given(image=images)
def test_median_is_scipys(image):
    want = ndimage.median_filter(image, size=(1, 3, 3, 1), mode="reflect")
    np.testing.assert_array_equal(defend("median", image), want)


def test_gradient_of_median_goes_to_the_median():
    image = np.random.default_rng(0).random((1, 16, 20, 3), np.float32)
    value, gradient = defend_and_pull("median", image, np.ones_like(image))
    padded = np.pad(image[0], [(1, 1), (1, 1), (0, 0)], mode="symmetric")
    source = np.pad(np.arange(320).reshape(16, 20), 1, mode="symmetric")
    want = np.zeros((320, 3))
    for y, x, channel in np.ndindex(16, 20, 3):
        window = padded[y : y + 3, x : x + 3, channel] == value[0, y, x, channel]
        at = source[y : y + 3, x : x + 3][window]
        np.add.at(want[:, channel], at, 1 / len(at))  # at a corner a pixel is in its window several times
    np.testing.assert_allclose(gradient.reshape(320, 3), want, atol=1e-6)


@pytest.mark.parametrize("sigma", [0.0, 0.1, 0.125, 0.5, 1.0, 1.3, 2.0, 4.0])
@pytest.mark.parametrize("size", [(64, 64), (16, 21)])
def test_blur_is_scipys(sigma, size):
    image = np.random.default_rng(1).random((2, *size, 3), np.float32)
    want = ndimage.gaussian_filter(image.astype(np.float64), (0, sigma, sigma, 0), mode="reflect", truncate=4.0)
    np.testing.assert_allclose(defend("blur", image, sigma), want, atol=1e-6, rtol=0)


def test_gradient_of_blur_is_its_transpose():
    rng = np.random.default_rng(2)
    image, cotangent = rng.random((1, 16, 20, 3), np.float32), rng.normal(size=(1, 16, 20, 3)).astype(np.float32)
    _, gradient = defend_and_pull("blur", image, cotangent)
    other = rng.random((1, 16, 20, 3), np.float32)
    # <c, K x> = <K^T c, x> for any x: a blur is linear
    np.testing.assert_allclose(np.vdot(cotangent, defend("blur", other)), np.vdot(gradient, other), rtol=1e-4)


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("name", ["blur", "median"])
def test_gradient_is_whole_and_even_where_the_image_is_flat(name, value):
    image = np.full((1, 16, 16, 3), value, np.float32)
    seen, gradient = defend_and_pull(name, image, np.ones_like(image))
    np.testing.assert_allclose(seen, image, atol=1e-6)
    np.testing.assert_allclose(gradient, 1, atol=1e-5)


@given(image=images, bits=st.integers(1, 8))
def test_bits_are_numpys_and_idempotent(image, bits):
    got = defend("bits", image, bits)
    steps = np.float32(2**bits - 1)
    np.testing.assert_array_equal(got, np.rint(image * steps) / steps)
    np.testing.assert_array_equal(defend("bits", got, bits), got)


def test_eight_bits_keep_a_frame(frames):
    image = np.float32(frames) / np.float32(255)
    np.testing.assert_array_equal(defend("bits", image, 8), image)


def test_noise_is_normal():
    image = np.full((64, 32, 32, 3), 0.5, np.float32)
    noise = (defend("noise", image, 0.05) - 0.5) / 0.05
    count = noise.size  # 196,608: the bounds are five standard errors
    assert abs(noise.mean()) < 5 / np.sqrt(count)
    assert abs(noise.var() - 1) < 5 * np.sqrt(2 / count)
    assert abs((noise**4).mean() - 3) < 5 * np.sqrt(96 / count)
    pairs = noise.reshape(64, -1)
    correlation = np.corrcoef(pairs)[np.triu_indices(64, 1)]
    assert np.abs(correlation).max() < 5 / np.sqrt(pairs.shape[1])


def test_noise_is_cut_to_the_range():
    black, white = (defend("noise", np.full((2, 16, 16, 3), value, np.float32), 0.5) for value in (0.0, 1.0))
    for got, edge in ((black, 0.0), (white, 1.0)):
        assert 0.4 < (got == edge).mean() < 0.6


def test_gradient_of_noise_is_one_inside_the_range():
    image = np.random.default_rng(3).random((2, 16, 16, 3), np.float32)
    value, gradient = defend_and_pull("noise", image, np.ones_like(image), 0.3)
    np.testing.assert_array_equal(gradient, (value > 0) & (value < 1))
    edges = np.round(image)
    _, gradient = defend_and_pull("noise", edges, np.ones_like(image), 0.0)
    np.testing.assert_array_equal(gradient, 1)


def test_only_noise_reads_its_keys():
    image = np.random.default_rng(4).random((2, 16, 16, 3), np.float32)
    for name, chosen in DEFENSES.items():
        first, again, other = defend(name, image), defend(name, image), defend(name, image, seed=1)
        np.testing.assert_array_equal(first, again)
        assert np.array_equal(first, other) != chosen.random


def test_none_changes_nothing(frames):
    image = np.float32(frames) / np.float32(255)
    np.testing.assert_array_equal(defend("none", image), image)


def defend_and_pull(name, image, cotangent, value=None):
    """Return what the defense gives and the gradient an adaptive attack gets from `cotangent`."""
    got, gradient = defend(name, image, value, run=partial(_pull, cotangent))
    return got, gradient


def _pull(cotangent, *arguments):
    return np.stack(pulled(*arguments, cotangent))


@pytest.mark.parametrize("name", NAMES)
@given(image=images)
def test_range_dtype_and_gradient(name, image):
    value = defend(name, image)
    assert value.shape == image.shape
    assert value.dtype == np.float32
    assert value.min() >= 0
    assert value.max() <= 1
    seen, gradient = defend_and_pull(name, image, np.ones_like(image))
    np.testing.assert_array_equal(seen, value)  # the adaptive attacker sees the defense, bit for bit
    assert np.isfinite(gradient).all()
    assert np.abs(gradient).max() > 0


@pytest.mark.parametrize("name", ["jpeg", "bits"])
def test_gradient_through_rounding_is_the_identitys(name):
    rng = np.random.default_rng(5)
    image, cotangent = rng.random((2, 16, 16, 3), np.float32), rng.normal(size=(2, 16, 16, 3)).astype(np.float32)
    value, gradient = defend_and_pull(name, image, cotangent)
    assert not np.array_equal(value, image)
    np.testing.assert_array_equal(gradient, cotangent)


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_independent(name):
    """An example gets the same bits in another place, and with others of another strength."""
    chosen = defense(name)
    image = np.random.default_rng(6).random((5, 16, 16, 3), np.float32)
    keys = jax.random.split(jax.random.key(7), 5)
    allowed = chosen.strength
    levels = np.zeros(5, np.float32) if allowed is None else np.linspace(max(allowed.lowest, 1), allowed.highest, 5)
    levels = np.float32(np.round(levels))
    whole = np.asarray(applied(chosen, image, levels, keys))
    order = np.array([3, 1, 4, 0, 2])
    np.testing.assert_array_equal(applied(chosen, image[order], levels[order], keys[order]), whole[order])


@pytest.mark.parametrize("name", NAMES)
def test_draws_are_a_batch_axis(name):
    """What EOT needs: `vmap` over keys, for the value and the gradient."""
    chosen = defense(name)
    image = np.random.default_rng(8).random((2, 16, 16, 3), np.float32)
    levels = np.full(2, defense_strength(chosen), np.float32)
    keys = jax.random.split(jax.random.key(9), (3, 2))
    values, gradients = jax.jit(jax.vmap(partial(pulled, chosen), (None, None, 0, None)))(image, levels, keys, image)
    for i in range(3):
        value, gradient = pulled(chosen, image, levels, keys[i], image)
        np.testing.assert_allclose(values[i], value, atol=1e-6)
        np.testing.assert_allclose(gradients[i], gradient, atol=1e-6)


def test_a_strength_is_checked():
    assert [defense_strength(chosen) for chosen in DEFENSES.values()] == [0.0, 75.0, 0.0, 1.0, 3.0, pytest.approx(0.04)]
    assert defense_strength(defense("jpeg"), 30) == 30.0
    assert defense_strength(defense("blur"), 0) == 0.0
    for name, value in [
        ("jpeg", 0), ("jpeg", 101), ("jpeg", 75.5), ("jpeg", True), ("jpeg", "75"), ("bits", 9), ("bits", 2.5),
        ("blur", -0.1), ("blur", 4.5), ("blur", float("nan")), ("noise", -1.0), ("noise", float("inf")),
    ]:  # fmt: skip
        with pytest.raises(InputError, match=rf"{name} is {value!r}; expected a (whole )?number in \["):
            defense_strength(defense(name), value)
    for name in ("none", "median"):
        with pytest.raises(InputError, match=f"{name} takes no strength, and was given 3"):
            defense_strength(defense(name), 3)
    with pytest.raises(InputError, match="unknown defense 'jpg'; known: bits, blur, jpeg, median, noise, none"):
        defense("jpg")


@pytest.mark.parametrize(
    ("text", "name", "strength", "canonical"),
    [
        ("none", "none", 0, "none"),
        ("median", "median", 0, "median"),
        ("jpeg", "jpeg", 75, "jpeg(75)"),
        ("jpeg(75.0)", "jpeg", 75, "jpeg(75)"),
        ("jpeg(100)", "jpeg", 100, "jpeg(100)"),
        ("blur", "blur", 1, "blur(1)"),
        ("blur(-0)", "blur", 0, "blur(0)"),
        ("blur(1.50)", "blur", 1.5, "blur(1.5)"),
        ("noise(0.000001)", "noise", 1e-6, "noise(0.000001)"),
    ],
)
def test_a_text_names_a_defense_and_its_strength(text, name, strength, canonical):
    assert named(text) == (DEFENSES[name], strength, canonical)
    assert named(canonical) == (DEFENSES[name], strength, canonical)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sharpen", "unknown defense 'sharpen'; known: bits, blur, jpeg, median, noise, none"),
        ("jpeg[75]", r"unknown defense 'jpeg\[75\]'"),
        ("jpeg(high)", r"unknown defense 'jpeg\(high\)'"),
        ("jpeg(101)", r"quality of defense jpeg is 101; expected a whole number in \[1, 100\]"),
        ("jpeg(7.5)", r"quality of defense jpeg is 7\.5; expected a whole number"),
        ("median(3)", "defense median takes no strength, and was given 3"),
        ("blur(1,2)", r"defense 'blur\(1,2\)' has 2 strengths; expected blur or blur\(strength\)"),
    ],
)
def test_a_text_that_names_no_defense_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        named(text)
