"""What an attack maximises: objective, latent noise and defense put together around a victim's `update . embed`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from wmjax.agents.base import Belief, Embedding, Params, Prediction, Victim
from wmjax.attacks.defenses import through
from wmjax.attacks.linf_ball import Loss
from wmjax.attacks.objectives import NAMES, critic, mixture, towards
from wmjax.attacks.threat import Attack, Threat
from wmjax.core.jax_settings import check_keys, fixed_settings

_LATENT, _DEFENSE = 2**30, 2**30 + 2**29
"""What the keys of further draws are folded with, on from here: no step of an optimizer has such a number."""


@struct.dataclass
class Frame:
    """What an attack on one frame starts from."""

    image: jax.Array  #: [B, H, W, C] clean, in [0, 1]
    embedding: Embedding  #: of that image, as the agent sees it through its defense
    prediction: Prediction
    noise: jax.Array  #: [B, G, K] the Gumbel draw with which the agent will act


@struct.dataclass
class Draw:
    """The attacker's own random numbers for one frame."""

    start: jax.Array  #: [B, H, W, C] uniform in [-1, 1]
    gumbel: jax.Array  #: [B, G, K] latent noise of its passes where it does not know the agent's
    keys: jax.Array  #: [B] for what else is random: some optimizers, defenses, and further draws


@fixed_settings()
def draw(victim: Victim, keys: jax.Array) -> Draw:
    """Return the attacker's draw for one frame from a key an example, [B]; the keys are consumed.

    Raises InputError for keys of another generator than wmjax's.
    """
    check_keys("keys", keys)
    shape = (victim.image_size, victim.image_size, 3)

    def one(key: jax.Array) -> Draw:
        start, latent = jax.random.split(key)
        return Draw(
            start=jax.random.uniform(start, shape, minval=-1.0, maxval=1.0),
            gumbel=jax.random.gumbel(latent, victim.latent_shape),
            keys=jax.random.fold_in(key, 2),  # the split made 0 and 1
        )

    return jax.vmap(one)(keys)


def attacker_noise(attack: Attack, noise: jax.Array, drawn: Draw) -> tuple[jax.Array | None, jax.Array | None]:
    """Return the latent noise [B, G, K] of the attacker's clean and attacked passes; None stands for the mode."""
    match attack.noise:
        case "shared":
            return noise, noise
        case "mode":
            return None, None
        case _:
            return noise, drawn.gumbel


def attacker_loss(attack: Attack, victim: Victim, params: Params, frame: Frame, drawn: Draw, threat: Threat) -> Loss:
    """Return what `perturb`, with the same arguments, maximises: a function of the image, [B, H, W, C] -> [B]."""
    with fixed_settings(precision_of=frame.image):
        aim, n = attacker_aim(attack, victim, params, frame, drawn, threat), attack.draws

    def loss(image: jax.Array) -> jax.Array:
        with fixed_settings(precision_of=image):
            if not attack.adaptive:
                return aim(victim.embed(params, image))
            if not attack.defense.random:
                return aim(victim.embed(params, through(attack.defense, image, threat.strength, drawn.keys)))
            seen = through(attack.defense, _copies(image, n), _copies(threat.strength, n), _keys(drawn, n, _DEFENSE))
            return aim(victim.embed(params, seen))

    return loss


def attacker_aim(
    attack: Attack, victim: Victim, params: Params, frame: Frame, drawn: Draw, threat: Threat
) -> Callable[[Embedding], jax.Array]:
    """Return what `perturb` maximises [B] as a function of the embedding of what the agent sees.

    It is one for each example, [B, ...], or for each of its draws, [draws * B, ...]; all draws make one batch.
    """
    clean_noise, adv_noise = attacker_noise(attack, frame.noise, drawn)
    knows = attack.adaptive or attack.defense.name == "none"
    embedding = frame.embedding if knows else victim.embed(params, frame.image)
    _, clean = victim.update(params, frame.prediction, embedding, clean_noise)
    clean, n = jax.lax.stop_gradient(clean), attack.draws
    if n > 1 and attack.noise == "fresh":
        adv_noise = jax.vmap(lambda key: jax.random.gumbel(key, victim.latent_shape))(_keys(drawn, n, _LATENT))
    elif adv_noise is not None:
        adv_noise = _copies(adv_noise, n)

    clean, weights = _copies(clean, n), _copies(threat.weights, n)
    belief, asked = Belief(clean.stoch, clean.deter), jnp.any(weights[:, NAMES.index("critic")] != 0)
    worth = _where_asked(asked, lambda action: victim.action_value(params, belief, action))
    further = {"target": towards(_copies(threat.target, n)), "critic": critic(worth)}

    def aim(embedding: Embedding) -> jax.Array:
        count = n * len(threat.eps) // jax.tree.leaves(embedding)[0].shape[0]
        _, adv = victim.update(params, _copies(frame.prediction, n), _copies(embedding, count), adv_noise)
        return jnp.mean(mixture(weights, clean, adv, further).reshape(n, -1), axis=0)

    return aim


def _where_asked(asked: jax.Array, function: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """Return `function`, [B, A] -> [B], as one that costs nothing unless `asked` when the program runs; 0 then."""

    def value(x: jax.Array) -> jax.Array:
        def found() -> tuple[jax.Array, jax.Array]:
            found, pullback = jax.vjp(function, at)
            return found, *pullback(jnp.ones_like(found))

        # Differentiated inside of the branch: else all that its gradient needs, weights too, would be copied out of it.
        at = jax.lax.stop_gradient(x)
        y, slope = jax.lax.cond(asked, found, lambda: (jnp.zeros(len(x), x.dtype), jnp.zeros_like(x)))
        return y + jnp.sum(slope * (x - at), axis=-1)

    return value


def _keys(drawn: Draw, n: int, purpose: int) -> jax.Array:
    """Return the keys [n * B] of all draws for one purpose."""
    one = lambda draw: jax.vmap(lambda key: jax.random.fold_in(key, purpose + draw))(drawn.keys)  # noqa: E731
    return jnp.concatenate([one(draw) for draw in range(n)])


def _copies(tree: Any, n: int) -> Any:
    """Return `n` copies of a batch, one after the other: leaves [B, ...] -> [n * B, ...]."""
    return tree if n == 1 else jax.tree.map(lambda leaf: jnp.concatenate([leaf] * n), tree)
