"""Replayed sequences to train on: the same for every library."""

import numpy as np


def random_sequences(
    updates: int, batch: int, length: int, *, stoch: int, discrete: int, deter: int, action: int, seed: int = 0
) -> dict[str, np.ndarray]:
    """Return batches of sequences for so many updates, by the names of a batch's fields: [U, B, T, ...].

    Frames are random uint8 images; every second sequence begins an episode, every fourth ends one in its middle. The
    latents before the first frames are `stoch` [U, B, G, K], one-hot, and `deter` [U, B, D].
    """
    rng = np.random.default_rng(seed)
    shape = updates, batch, length
    ends, begins = np.zeros((2, *shape), bool)
    ends[:, ::4, length // 2] = True
    begins[:, ::4, length // 2 + 1] = True
    begins[:, ::2, 0] = True
    return {
        "image": rng.integers(0, 256, (*shape, 64, 64, 3), np.uint8),
        "action": rng.uniform(-1, 1, (*shape, action)).astype(np.float32),
        "reward": rng.uniform(0, 1, shape).astype(np.float32),
        "is_first": begins,
        "is_last": ends,
        "is_terminal": np.zeros(shape, bool),
        "stoch": np.eye(discrete, dtype=np.float32)[rng.integers(discrete, size=(updates, batch, stoch))],
        "deter": rng.uniform(-1, 1, (updates, batch, deter)).astype(np.float32),
    }
