"""Frames to attack: images and the agent's states before them, the same for every library."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any
"""A NumPy array, or JAX's inside a program."""

EPS, ALPHA, STEPS = 0.04, 0.004, 10
"""L-infinity budget and step size in image units, and iterations: PGD as in the attack's benchmark."""


@dataclass(frozen=True)
class Frames:
    """A batch of environment steps under attack, float32."""

    stoch: Array  #: [B, G, K] one-hot
    deter: Array  #: [B, D]
    action: Array  #: [B, A]
    image: Array  #: [B, H, W, C] in [0, 1]
    gumbel: Array  #: [B, G, K]


def random_frames(batch: int, *, stoch: int, discrete: int, deter: int, action: int, seed: int = 0) -> Frames:
    """Return `batch` random frames; a frame's content does not depend on the batch that it is in."""
    frames = []
    for index in range(batch):
        rng = np.random.default_rng((seed, index))
        frames.append(
            (
                np.eye(discrete)[rng.integers(discrete, size=stoch)],
                rng.uniform(-1, 1, deter),
                rng.uniform(-1, 1, action),
                rng.uniform(0, 1, (64, 64, 3)),
                rng.gumbel(size=(stoch, discrete)),
            )
        )
    return Frames(*(np.stack(part).astype(np.float32) for part in zip(*frames, strict=True)))
