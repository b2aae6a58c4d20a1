"""Random keys of episodes, which no order, batch or machine changes: they come from what an episode is called."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wmjax.core.jax_settings import GENERATOR


def episode_keys(names: Sequence[Any]) -> jax.Array:
    """Return a random key an episode, [B], from what names it alone: not from its place in a batch, chunk or run."""
    digests = b"".join(digest(name)[:8] for name in names)
    numbers = np.frombuffer(digests, ">u4").astype(np.uint32).reshape(-1, 2)
    return jax.random.wrap_key_data(jnp.asarray(numbers), impl=GENERATOR)


def digest(name: Any) -> bytes:
    """Return 32 bytes that tell `name`, anything that JSON can write, from all others."""
    return hashlib.sha256(json.dumps(name, sort_keys=True).encode()).digest()
