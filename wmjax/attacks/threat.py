"""What an attack is: the static choices, one compiled program each, and the traced ones, one an example."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wmjax.agents.base import Victim
from wmjax.attacks.defenses import DEFENSES, Defense
from wmjax.attacks.objectives import objective_targets, objective_weights
from wmjax.attacks.optimizers import NO_STEPS, Optimizer
from wmjax.attacks.timing import GAPS
from wmjax.core.errors import InputError, unknown_name
from wmjax.core.jax_settings import fixed_settings
from wmjax.core.numbers import whole

NOISES = ("fresh", "shared", "mode")
"""What the attacker knows of the agent's latent sampling, which stays random when the agent acts.

fresh: nothing; its passes on the attacked frame use an independent draw, fixed over the iterations.
shared: everything; its passes use the very draw that the agent will use.
mode: it does not sample at all, and aims at the likeliest latent.
"""


@dataclass(frozen=True)
class Attack:
    """The static choices: one compiled program each."""

    optimizer: Optimizer = NO_STEPS
    noise: str = "fresh"
    defense: Defense = DEFENSES["none"]  #: the agent sees every frame through it, attacked or not
    adaptive: bool = False  #: the attacker knows the defense: its gradient goes through it
    draws: int = 1  #: of latent noise, and of a random defense that it knows, over which its loss is averaged (EOT)
    rounded: bool = False  #: the attacked frame is rounded to grey levels, within the budget
    gap: str = "none"  #: what an online rule of timing weighs frames by: nothing, the policy's gap or the value's
    source: Victim | None = None  #: the agent that attacks are computed on while another plays; None: that one

    def __post_init__(self) -> None:
        if not isinstance(self.optimizer, Optimizer):
            raise InputError(f"optimizer is {self.optimizer!r:.80}; expected one made by wmjax.attacks.optimizer")
        if self.noise not in NOISES:
            raise unknown_name("noise", self.noise, NOISES)
        if not isinstance(self.defense, Defense):
            raise InputError(f"defense is {self.defense!r:.80}; expected one made by wmjax.attacks.defense")
        object.__setattr__(self, "draws", whole("draws", self.draws, 1))
        if self.gap not in GAPS:
            raise unknown_name("gap", self.gap, GAPS)

    @property
    def knowledge(self) -> "Attack":
        """The choices that its loss depends on: attacks that differ in the others share programs that compute it."""
        return replace(self, optimizer=NO_STEPS, rounded=False, gap="none")


@struct.dataclass
class Threat:
    """The traced choices, one an example: budgets and objectives share a program."""

    eps: jax.Array  #: [B] L-inf budget in image units
    weights: jax.Array  #: [B, objectives] what is maximised; all zero: nothing, which is random noise in the ball
    strength: jax.Array  #: [B] of the agent's defense
    target: jax.Array  #: [B, A] or [B, 1] the action that the objective `target` aims at
    region: jax.Array  #: [B, H, W, C], each axis but the first also 1: the share of the budget that a pixel may use
    delta: jax.Array  #: [B, H, W, C] as `region`: from the clean image to where the attack starts, in image units
    threshold: jax.Array  #: [B] frames with a smaller gap are left alone; -inf: none
    most: jax.Array  #: [B] int32 most frames of an episode that are attacked


@fixed_settings()
def threat(
    objectives: Sequence[str],
    eps: Sequence[float],
    strength: float = 0.0,
    *,
    region: np.ndarray | None = None,
    delta: np.ndarray | None = None,
    threshold: float = -np.inf,
    most: int = np.iinfo(np.int32).max,
) -> Threat:
    """Return the threat of `objectives` and budgets `eps`, one an example, in image units: 8 grey levels are 8 / 255.

    `region` in [0, 1] is where the image may change, from `wmjax.attacks.region`, or any other; `delta` is where
    attacks start, and without steps end: a universal perturbation; both are [H, W, C], or [B, H, W, C], one an example.
    All examples share the rest: `strength` is that of the agent's defense, from `defense_strength`; `threshold` and
    `most` are those of a `Timing`. Raises InputError for an unknown objective, a budget outside [0, 1], and whatever
    else is not as said.
    """
    given = _numbers("eps", eps, np.float64)
    if given.shape != (len(objectives),) or not ((given >= 0) & (given <= 1)).all():
        raise InputError(f"eps is {eps!r:.80}; expected {len(objectives)} budgets in [0, 1], one an objective")
    if np.isnan(strength) or np.isnan(threshold):
        raise InputError(f"strength is {strength} and threshold {threshold}; expected numbers")
    if most != int(most) or most < 0:
        raise InputError(f"most is {most!r:.80}; expected a whole number from 0")
    budget = given.astype(np.float32)
    above = budget > given  # rounded up; never attack with more than was asked for
    budget = np.where(above, np.nextafter(budget, np.float32(0)), budget)
    batch = len(objectives)
    return Threat(
        eps=jnp.asarray(budget),
        weights=jnp.asarray(objective_weights(objectives)),
        strength=jnp.full(batch, strength, jnp.float32),
        target=jnp.asarray(objective_targets(objectives))[:, None],
        region=_picture("region", region, 1.0, (0.0, 1.0), batch),
        delta=_picture("delta", delta, 0.0, (-1.0, 1.0), batch),
        threshold=jnp.full(batch, threshold, jnp.float32),
        most=jnp.full(batch, min(int(most), np.iinfo(np.int32).max), jnp.int32),
    )


def _picture(name: str, given: Any, default: float, span: tuple[float, float], batch: int) -> jax.Array:
    """Return what is given for all pixels [H, W, C] or [B, H, W, C], or the default, for every example."""
    values = _numbers(name, [[[default]]] if given is None else given, np.float32)
    fits = values.ndim == 3 or (values.ndim == 4 and len(values) == batch)
    if not fits or not ((values >= span[0]) & (values <= span[1])).all():
        least, largest = np.min(values, initial=np.inf), np.max(values, initial=-np.inf)
        raise InputError(
            f"{name} has shape {values.shape} and values from {least:g} to {largest:g}; "
            f"expected [H, W, C] or [{batch}, H, W, C] with values from {span[0]:g} to {span[1]:g}"
        )
    return jnp.asarray(np.broadcast_to(values, (batch, *values.shape[-3:])))


def _numbers(name: str, given: Any, dtype: Any) -> np.ndarray:
    try:
        return np.asarray(given, dtype)
    except (TypeError, ValueError):
        raise InputError(f"{name} is {given!r:.80}; expected numbers") from None
