"""One attacked frame: objective, optimizer and latent noise put together around a victim's `update . embed`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wmjax.attacks.defenses import DEFENSES, Defense, through
from wmjax.attacks.objectives import NEEDS_DISTANCE, OBJECTIVES, losses, objective_weights
from wmjax.attacks.optimizers import NO_STEPS, Optimizer
from wmjax.attacks.problem import Best, Loss, Problem, ball, keep, keys_at, per_pixel, project, unknown
from wmjax.core.errors import InputError, unknown_name
from wmjax.victims.base import Embedding, Params, Prediction, Victim

NOISES = ("fresh", "shared", "mode")
"""What the attacker knows of the agent's latent sampling, which stays random when the agent acts.

fresh: nothing; its passes on the attacked frame use an independent draw, fixed over the iterations.
shared: everything; its passes use the very draw that the agent will use.
mode: it does not sample at all, and aims at the likeliest latent.
"""


_LATENT, _DEFENSE = 2**30, 2**30 + 2**29
"""What the keys of further draws are folded with, on from here: no step of an optimizer has such a number."""


@dataclass(frozen=True)
class Attack:
    """The static choices: one compiled program each."""

    optimizer: Optimizer = NO_STEPS
    noise: str = "fresh"
    defense: Defense = DEFENSES["none"]  #: the agent sees every frame through it, attacked or not
    adaptive: bool = False  #: the attacker knows the defense: its gradient goes through it
    draws: int = 1  #: of latent noise, and of a random defense that it knows, over which its loss is averaged (EOT)

    def __post_init__(self) -> None:
        if not isinstance(self.optimizer, Optimizer):
            raise InputError(f"optimizer is {self.optimizer!r:.80}; expected one made by wmjax.attacks.optimizer")
        if self.noise not in NOISES:
            raise unknown_name("noise", self.noise, NOISES)
        if not isinstance(self.defense, Defense):
            raise InputError(f"defense is {self.defense!r:.80}; expected one made by wmjax.attacks.defense")
        if type(self.draws) is not int or self.draws < 1:
            raise InputError(f"draws is {self.draws!r:.80}; expected a whole number from 1")


@struct.dataclass
class Threat:
    """The traced choices, one an example: budgets and objectives share a program."""

    eps: jax.Array  #: [B] L-inf budget in image units
    weights: jax.Array  #: [B, objectives] what is maximised; all zero: nothing, which is random noise in the ball
    strength: jax.Array  #: [B] of the agent's defense


def threat(objectives: Sequence[str], eps: Sequence[float], strength: float = 0.0) -> Threat:
    """Return the threat of `objectives` and budgets `eps`, one an example, in image units: 8 grey levels are 8 / 255.

    `strength` is that of the agent's defense, from `defense_strength`. Raises InputError for an unknown objective, or a
    budget outside [0, 1].
    """
    given = np.asarray(eps, np.float64)
    if given.shape != (len(objectives),) or not ((given >= 0) & (given <= 1)).all():
        raise InputError(f"eps is {eps!r:.80}; expected {len(objectives)} budgets in [0, 1], one an objective")
    budget = given.astype(np.float32)
    above = budget > given  # rounded up; never attack with more than was asked for
    budget = np.where(above, np.nextafter(budget, np.float32(0)), budget)
    strengths = jnp.full(len(objectives), strength, jnp.float32)
    return Threat(jnp.asarray(budget), jnp.asarray(objective_weights(objectives)), strengths)


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


def draw(victim: Victim, keys: jax.Array) -> Draw:
    """Return the attacker's draw for one frame from a key an example, [B]; the keys are consumed."""
    shape = (victim.image_size, victim.image_size, 3)

    def one(key: jax.Array) -> Draw:
        start, latent = jax.random.split(key)
        return Draw(
            start=jax.random.uniform(start, shape, minval=-1.0, maxval=1.0),
            gumbel=jax.random.gumbel(latent, victim.latent_shape),
            keys=jax.random.fold_in(key, 2),  # the split made 0 and 1
        )

    return jax.vmap(one)(keys)


@struct.dataclass
class Perturbed:
    """An attacked frame and how the attack went."""

    image: jax.Array  #: [B, H, W, C] in the ball and in [0, 1]
    loss_first: jax.Array  #: [B] objective at the first point evaluated, of the first start; 0 without steps
    zero_grad: jax.Array  #: [B] fraction of the steps whose gradient was exactly zero everywhere, or not a number


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
    aim, n = attacker_aim(attack, victim, params, frame, drawn, threat), attack.draws

    def loss(image: jax.Array) -> jax.Array:
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

    def aim(embedding: Embedding) -> jax.Array:
        count = n * len(threat.eps) // jax.tree.leaves(embedding)[0].shape[0]
        _, adv = victim.update(params, _copies(frame.prediction, n), _copies(embedding, count), adv_noise)
        values = jnp.sum(_copies(threat.weights, n) * losses(_copies(clean, n), adv), axis=-1)
        return jnp.mean(values.reshape(n, -1), axis=0)

    return aim


def _keys(drawn: Draw, n: int, purpose: int) -> jax.Array:
    """Return the keys [n * B] of all draws for one purpose."""
    one = lambda draw: jax.vmap(lambda key: jax.random.fold_in(key, purpose + draw))(drawn.keys)  # noqa: E731
    return jnp.concatenate([one(draw) for draw in range(n)])


def _copies(tree: Any, n: int) -> Any:
    """Return `n` copies of a batch, one after the other: leaves [B, ...] -> [n * B, ...]."""
    return tree if n == 1 else jax.tree.map(lambda leaf: jnp.concatenate([leaf] * n), tree)


def perturb(attack: Attack, victim: Victim, params: Params, frame: Frame, drawn: Draw, threat: Threat) -> Perturbed:
    """Return the attacked version of the frame's image; no example depends on the others of its batch.

    Unless the optimizer has a start of its own, it starts at the clean image; where that gives nothing to climb
    (`start_radius`), at a random point of the ball.
    """
    if not jnp.issubdtype(frame.image.dtype, jnp.floating):
        raise InputError(f"image has dtype {frame.image.dtype}; expected floats in [0, 1]: grey levels / 255")
    loss = attacker_loss(attack, victim, params, frame, drawn, threat)
    bounds = ball(frame.image, threat.eps)
    start = project(bounds, frame.image + per_pixel(start_radius(attack, threat)) * drawn.start)
    return maximise(loss, attack.optimizer, Problem(frame.image, bounds, threat.eps, start, drawn.keys))


def start_radius(attack: Attack, threat: Threat) -> jax.Array:
    """Return how far from the clean image an attack starts, [B]: 0, or eps.

    Random noise has no other step; and PDA and LDA have no gradient at the clean image where the attacker's two passes
    share their latent noise.
    """
    away = jnp.all(threat.weights == 0, axis=-1)
    if attack.noise != "fresh":
        blind = np.isin(list(OBJECTIVES), list(NEEDS_DISTANCE))
        away |= jnp.any(threat.weights[:, blind] != 0, axis=-1)
    return jnp.where(away, threat.eps, 0.0)


def maximise(loss: Loss, optimizer: Optimizer, problem: Problem) -> Perturbed:
    """Maximise a per-example `loss` inside the ball; restarts keep the image of the best loss."""
    if not optimizer.steps:
        zeros = jnp.zeros_like(problem.eps)
        return Perturbed(problem.start, zeros, zeros)
    if optimizer.restarts == 1:
        return _run(loss, optimizer, problem, jnp.zeros((), jnp.int32))[0]

    def again(best: Best, restart: jax.Array) -> tuple[Best, tuple[jax.Array, jax.Array]]:
        found, value = _run(loss, optimizer, replace(problem, keys=keys_at(problem, restart)), restart)
        return keep(best, found.image, value), (found.loss_first, found.zero_grad)

    best, (first, zero) = jax.lax.scan(again, unknown(problem.image), jnp.arange(optimizer.restarts))
    return Perturbed(best.image, first[0], jnp.mean(zero, axis=0))


def _run(loss: Loss, optimizer: Optimizer, problem: Problem, restart: jax.Array) -> tuple[Perturbed, jax.Array]:
    """Return what one start leads to, and its loss [B]; where that is not used, compiled code does not compute it."""
    method, steps = optimizer.method, optimizer.steps
    state = method.init(problem, optimizer.start(problem, restart))

    def step(state: Any, t: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        return method.step(loss, problem, state, t, steps)

    state, (values, zero) = jax.lax.scan(step, state, jnp.arange(steps))
    best = method.best(loss, problem, state)
    return Perturbed(best.image, values[0], jnp.mean(zero.astype(values.dtype), axis=0)), best.value
