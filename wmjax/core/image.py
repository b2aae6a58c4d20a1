"""Grey levels: images of bytes as floats, k / 255."""

import numpy as np

LEVELS = np.arange(256, dtype=np.float32) / np.float32(255)
"""[256], in [0, 1]: to be looked up. Compiled, a division by 255 becomes a product, and is off by a rounding error."""
