"""From recorded episodes back to what an attack starts from: every frame, with what the agent believes before it."""

import jax
import jax.numpy as jnp

from wmjax.agents.base import Belief, Params, Victim
from wmjax.attacks.attack_loss import Draw, Frame
from wmjax.attacks.threat import Attack, Threat
from wmjax.core.jax_settings import fixed_settings
from wmjax.rollout.step import draw_at, frame_at, respond


@fixed_settings()
def replay(
    victim: Victim,
    attack: Attack,
    params: Params,
    frames: jax.Array,
    actions: jax.Array,
    keys: jax.Array,
    attack_keys: jax.Array,
    threat: Threat,
) -> tuple[Frame, Draw]:
    """Return all frames of B episodes, with the attacker's draws for them: leaves [T, B, ...].

    `frames` uint8 [T, B, H, W, C] are what the agent saw and `actions` [T, B, A] what it did, from the first agent step
    on, in episodes that are not attacked or whose frames are grey levels; `keys` and `attack_keys` [B] are those that
    they were played with. A pure function, to be jitted with the first two arguments static.
    """

    def step(before: tuple[Belief, jax.Array], now: tuple[jax.Array, ...]) -> tuple[tuple, tuple[Frame, Draw]]:
        image, action, t = now
        frame = frame_at(attack, victim, params, *before, image, keys, t, threat)
        belief, *_ = respond(victim, params, frame.prediction, frame.embedding, frame.noise)
        return (belief, action), (frame, draw_at(victim, attack_keys, t))

    first = victim.initial(frames.shape[1]), jnp.zeros_like(actions[0])
    return jax.lax.scan(step, first, (frames, actions, jnp.arange(len(frames))))[1]
