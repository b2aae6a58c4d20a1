"""Frames of a small random agent."""

from functools import partial

import jax
import jax.numpy as jnp
from programs import QUICK

from wmjax.agents.base import Params
from wmjax.agents.dreamer import Dreamer
from wmjax.attacks import Draw, Frame, draw


@partial(jax.jit, static_argnums=(0, 2), compiler_options=QUICK)
def frames(victim: Dreamer, params: Params, batch: int) -> tuple[Frame, Draw]:
    """Return random frames of grey levels at the start of episodes, [B], and an attacker's draws for them."""
    size = victim.image_size
    keys = jax.random.split(jax.random.key(2), 4)
    image = jax.random.randint(keys[0], (batch, size, size, 3), 0, 256).astype(jnp.float32) / 255
    noise = jax.random.gumbel(keys[1], (batch, *victim.latent_shape))
    action = jax.random.normal(keys[2], (batch, victim.action_size))
    prediction = victim.predict(params, victim.initial(batch), action)
    frame = Frame(image, victim.embed(params, image), prediction, noise)
    return frame, draw(victim, jax.random.split(keys[3], batch))
