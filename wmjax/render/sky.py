"""The sky: a cube map around the camera, filtered as Mesa's software driver does."""

import jax
import jax.numpy as jnp
import numpy as np

from wmjax.render.texture import blend, levels, stretch

# For each of OpenGL's faces +x, -x, +y, -y, +z, -z: the axis that it is on, and the axes along which its columns and
# rows run, signed and counted from 1.
_FACES = ((1, -3, -2), (-1, 3, -2), (2, 1, 3), (-2, 1, -3), (3, 1, -2), (-3, -1, -2))


def sky(cube: np.ndarray, directions: np.ndarray, shape: tuple[int, int]) -> jax.Array:
    """Return the sky's colours [3, N], in [0, 1], in the directions [3, N] of the pixels of a frame of `shape`.

    `cube` is [6, H, H, 3], uint8; the directions are the world's.
    """
    turned = np.stack([directions[0], directions[2], -directions[1]])
    major = np.abs(turned).argmax(axis=0)
    filtered = jax.jit(levels)
    result = np.zeros((3, directions.shape[1]), np.float32)
    for face, (axis, column, row) in enumerate(_FACES):
        mine = (major == abs(axis) - 1) & (np.sign(turned[abs(axis) - 1]) == np.sign(axis))
        if not mine.any():
            continue
        # Also for pixels just beyond the face's edge: mip levels depend on where neighbours are.
        depth = np.sign(axis) * turned[abs(axis) - 1]
        depth = np.where(depth > 0, depth, 1)
        s, t = (np.sign(k) * turned[abs(k) - 1] / depth / 2 + 0.5 for k in (column, row))
        chain = [np.asarray(level) for level in filtered(jnp.asarray(cube[face], jnp.float32) / 255)]
        columns, rows = (jnp.asarray(x, jnp.float32).reshape(shape) for x in (s, t))
        steps = stretch(columns, rows, (cube.shape[1], cube.shape[2]))
        level, weight = (np.asarray(x) for x in blend(steps.reshape(-1), len(chain)))
        colours = np.zeros_like(result)
        for k in np.unique(level[mine]):
            fine, coarse = (_bilinear(chain[min(k + j, len(chain) - 1)], s, t) for j in range(2))
            colours = np.where(level == k, fine + weight * (coarse - fine), colours)
        result = np.where(mine, colours, result)
    return jnp.asarray(result)


def _bilinear(image: np.ndarray, s: np.ndarray, t: np.ndarray) -> np.ndarray:
    size = image.shape[0]
    x, y = np.clip(s * size - 0.5, 0, size - 1), np.clip(t * size - 0.5, 0, size - 1)
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    right, below = np.minimum(left + 1, size - 1), np.minimum(top + 1, size - 1)
    u, v = (x - left)[:, None], (y - top)[:, None]
    upper = (1 - u) * image[top, left] + u * image[top, right]
    return ((1 - v) * upper + v * ((1 - u) * image[below, left] + u * image[below, right])).T
