"""Transforms of the image that the agent sees, meant to undo an attack, and how an adaptive attack sees through them.

Median filter and bit depth: feature squeezing (arXiv 1704.01155). BPDA: arXiv 1802.00420.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from wmjax.attacks.jpeg import compress
from wmjax.core.call_syntax import parse_call
from wmjax.core.errors import InputError, unknown_name
from wmjax.core.numbers import is_whole

# k / n for n = 1, 3 .. 255 and k in 0..255. Compiled, a division by n becomes a product, off by a rounding error.
_LEVELS = np.arange(256, dtype=np.float32) / (2 ** np.arange(1, 9, dtype=np.float32) - 1)[:, None]

Apply = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""(image [B, H, W, 3] float32 in [0, 1], strength [B] float32, keys [B], consumed) -> image, again in [0, 1]."""


@dataclass(frozen=True)
class Strength:
    """What the strength of a defense means, and the values it takes."""

    field: str
    default: float
    lowest: float
    highest: float
    whole: bool = False  #: only whole numbers


@dataclass(frozen=True)
class Defense:
    """A static choice, one compiled program each; its strength is traced. No example depends on others of its batch."""

    name: str
    apply: Apply
    smooth: bool  #: its own gradient is of use; else it is zero almost everywhere
    random: bool = False  #: it reads the keys
    strength: Strength | None = None  #: None: it has none, and reads none


def through(defense: Defense, image: jax.Array, strength: jax.Array, keys: jax.Array) -> jax.Array:
    """Return `defense.apply(image, strength, keys)`, bit for bit, with the derivative that an adaptive attack follows.

    It is the exact one where that is of use, else the identity's (BPDA). Average over keys where the defense is random.
    """
    if defense.smooth:
        return defense.apply(image, strength, keys)
    return _straight_through(image, defense.apply(jax.lax.stop_gradient(image), strength, keys))


@jax.custom_jvp
def _straight_through(image: jax.Array, defended: jax.Array) -> jax.Array:
    return defended


# Not `image + stop_gradient(defended - image)`: that has the same derivative, but rounds.
_straight_through.defjvps(lambda tangent, out, image, defended: tangent, None)


def _none(image: jax.Array, strength: jax.Array, keys: jax.Array) -> jax.Array:
    return image


def _jpeg(image: jax.Array, quality: jax.Array, keys: jax.Array) -> jax.Array:
    return compress(image, quality)


def _median(image: jax.Array, strength: jax.Array, keys: jax.Array) -> jax.Array:
    """Return the median of each 3 x 3 window, by channel; the border is reflected with its pixels repeated (d|dcb).

    That is `reflect` in SciPy and `symmetric` in NumPy. Pixels that tie for the median share its gradient evenly.
    """
    return _median_inside(jnp.pad(image, [(0, 0), (1, 1), (1, 1), (0, 0)], mode="edge"))


@jax.custom_vjp
def _median_inside(padded: jax.Array) -> jax.Array:
    """Return the medians [B, H, W, 3] of the windows that lie in `padded` [B, H+2, W+2, 3]."""
    height, width = padded.shape[1] - 2, padded.shape[2] - 2
    columns = _sorted3(*(padded[:, row : row + height] for row in range(3)))
    low, middle, high = ([part[:, :, column : column + width] for column in range(3)] for part in columns)
    # Each column is sorted once for the three windows it is in; then three candidates are left.
    return _median3(
        jnp.maximum(jnp.maximum(low[0], low[1]), low[2]),
        _median3(*middle),
        jnp.minimum(jnp.minimum(high[0], high[1]), high[2]),
    )


def _median_forward(padded: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    median = _median_inside(padded)
    return median, (padded, median)


def _median_backward(saved: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array]:
    # The derivative of the min and max themselves would be several times slower, and uneven where pixels tie.
    padded, median = saved
    ties = sum((window == median).astype(median.dtype) for window in _windows(padded))
    outside = [(0, 0), (2, 2), (2, 2), (0, 0)]
    medians, shares = _windows(jnp.pad(median, outside)), _windows(jnp.pad(gradient / ties, outside))
    collected = (jnp.where(padded == middle, share, 0) for middle, share in zip(medians, shares, strict=True))
    return (sum(collected, start=jnp.zeros_like(padded)),)


_median_inside.defvjp(_median_forward, _median_backward)


def _windows(image: jax.Array) -> list[jax.Array]:
    """Return the nine neighbours [B, H-2, W-2, C] of each pixel inside `image` [B, H, W, C], itself among them."""
    height, width = image.shape[1] - 2, image.shape[2] - 2
    return [image[:, row : row + height, column : column + width] for row in range(3) for column in range(3)]


def _sorted3(a: jax.Array, b: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    low, high = jnp.minimum(a, b), jnp.maximum(a, b)
    rest = jnp.minimum(high, c)
    return jnp.minimum(low, rest), jnp.maximum(low, rest), jnp.maximum(high, c)


def _median3(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    return jnp.maximum(jnp.minimum(a, b), jnp.minimum(jnp.maximum(a, b), c))


def _blur(image: jax.Array, sigma: jax.Array, keys: jax.Array) -> jax.Array:
    """Return the image under a Gaussian of `sigma` pixels, cut at 4 sigma; the border as in `_median`."""
    rows, columns = (_gaussian(size, sigma) for size in image.shape[1:3])
    # Matrix products, because their cost and shapes do not depend on sigma. They need all of float32.
    blurred = jnp.einsum("bhi,biwc->bhwc", rows, image, precision=jax.lax.Precision.HIGHEST)
    blurred = jnp.einsum("bwj,bhjc->bhwc", columns, blurred, precision=jax.lax.Precision.HIGHEST)
    # An average of [0, 1] leaves it by rounding only. That must not cut the gradient off in white areas.
    return blurred + jax.lax.stop_gradient(jnp.clip(blurred, 0, 1) - blurred)


def _gaussian(size: int, sigma: jax.Array) -> jax.Array:
    """Return the blur of a line as a matrix [B, size, size], for sigma <= size / 4."""
    line = np.arange(size, dtype=np.float32)
    here, there = line[:, None], line[None]
    sigma = sigma[:, None, None]

    def weight(distance: np.ndarray) -> jax.Array:
        scaled = distance[None] / jnp.maximum(sigma, 1e-3)  # at 0 the identity, not 0 / 0
        return jnp.where(distance[None] - 0.5 <= 4 * sigma, jnp.exp(-0.5 * scaled**2), 0)

    # A pixel, and its mirror images beyond both ends.
    total = weight(np.abs(here - there)) + weight(here + there + 1) + weight(2 * size - 1 - here - there)
    return total / jnp.sum(total, axis=2, keepdims=True)


def _bits(image: jax.Array, bits: jax.Array, keys: jax.Array) -> jax.Array:
    """Return round(image * n) / n with n = 2**bits - 1: the nearest of 2**bits levels, halves to the even one."""
    bits = jnp.round(bits).astype(jnp.int32)[:, None, None, None]
    steps = ((1 << bits) - 1).astype(image.dtype)
    return jnp.asarray(_LEVELS)[bits - 1, jnp.round(image * steps).astype(jnp.int32)]


def _noise(image: jax.Array, sigma: jax.Array, keys: jax.Array) -> jax.Array:
    """Return the image plus independent normal noise of standard deviation `sigma`, cut to [0, 1]."""
    noise = jax.vmap(lambda key: jax.random.normal(key, image.shape[1:], image.dtype))(keys)
    noisy = image + sigma[:, None, None, None] * noise
    # Unlike jnp.clip this keeps the whole gradient at 0 and 1 themselves: at saturated pixels without noise.
    return jnp.where(noisy < 0, 0, jnp.where(noisy > 1, 1, noisy))


DEFENSES: dict[str, Defense] = {
    defense.name: defense
    for defense in (
        Defense("none", _none, smooth=True),
        Defense("jpeg", _jpeg, smooth=False, strength=Strength("quality", 75, 1, 100, whole=True)),
        Defense("median", _median, smooth=True),
        Defense("blur", _blur, smooth=True, strength=Strength("sigma", 1.0, 0, 4)),
        Defense("bits", _bits, smooth=False, strength=Strength("bits", 3, 1, 8, whole=True)),
        Defense("noise", _noise, smooth=True, random=True, strength=Strength("sigma", 0.04, 0, 1)),
    )
}
"""By name. Sigma is in pixels for blur, in image units for noise; blur needs images of at least 4 sigma a side.

The default sigmas are choices: one pixel is the finest detail of a frame; the noise is as large as a common budget.
"""


def defense(name: str) -> Defense:
    """Return the named defense; raises InputError for an unknown name."""
    if not isinstance(name, str) or name not in DEFENSES:
        raise unknown_name("defense", name, DEFENSES)
    return DEFENSES[name]


def defense_strength(defense: Defense, value: float | None = None) -> float:
    """Return the strength to apply `defense` with, `value` or by default its own; 0 where it has none.

    Raises InputError for a value that the defense does not take.
    """
    allowed = defense.strength
    if allowed is None:
        if value is not None:
            raise InputError(f"defense {defense.name} takes no strength, and was given {value!r:.80}")
        return 0.0
    if value is None:
        return float(allowed.default)
    number = isinstance(value, float | np.floating) or is_whole(value)
    if not number or not allowed.lowest <= value <= allowed.highest or (allowed.whole and value != int(value)):
        kind = "whole number" if allowed.whole else "number"
        raise InputError(
            f"{allowed.field} of defense {defense.name} is {value!r:.80}; "
            f"expected a {kind} in [{allowed.lowest:g}, {allowed.highest:g}]"
        )
    return float(value)


def named(text: str) -> tuple[Defense, float, str]:
    """Return the defense that `jpeg(75)`, `jpeg` or `median` names, its strength, and the one text that names both.

    Raises InputError for an unknown name, or a strength that the defense does not take.
    """
    name, numbers = parse_call(text)
    chosen = defense(name)
    if len(numbers) > 1:
        raise InputError(f"defense {text!r:.80} has {len(numbers)} strengths; expected {name} or {name}(strength)")
    strength = abs(defense_strength(chosen, *numbers))  # -0 is 0
    if chosen.strength is None:
        return chosen, strength, name
    return chosen, strength, f"{name}({strength:.6f}".rstrip("0").rstrip(".") + ")"
