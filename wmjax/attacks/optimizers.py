"""Optimizers by name. Each is a method, how many steps it takes, where it starts, and how often it starts anew."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax

from wmjax.attacks import initial_points
from wmjax.attacks.apgd import APGD
from wmjax.attacks.black_box import RandomSearch, Square
from wmjax.attacks.fab import FAB
from wmjax.attacks.initial_points import Start
from wmjax.attacks.linf_ball import Incumbent, Loss, Problem
from wmjax.attacks.pgd import MOMENTUM, NESTEROV, SIGN, SMOOTH, IteratedGradient, diverse
from wmjax.core.errors import InputError, unknown_name
from wmjax.core.numbers import is_whole


class Method(Protocol):
    """How a loss is maximised in a ball: pure functions of a state that is the method's own affair.

    Its fields are static and comparable: they choose the compiled program.
    """

    def init(self, problem: Problem, start: jax.Array) -> Any:
        """Return the state at `start`, [B, H, W, C] in the ball."""

    def step(
        self, loss: Loss, problem: Problem, state: Any, t: jax.Array, steps: int
    ) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        """Return the state after step `t` of `steps`, the loss [B] and whether its gradient was exactly zero, [B]."""

    def best(self, loss: Loss, problem: Problem, state: Any) -> Incumbent:
        """Return the result and its loss."""


@dataclass(frozen=True)
class Optimizer:
    """A static choice: `steps` steps of `method` from `start`, `restarts` times. With 0 steps the start is the result.

    Parts combine freely: `Optimizer(10, IteratedGradient((SMOOTH, MOMENTUM, SIGN), diverse))` is the TI-DI-MI-FGSM.
    """

    steps: int
    method: Method = field(default_factory=IteratedGradient)
    start: Start = initial_points.given
    restarts: int = 1


def fgsm(steps: int | None = None) -> Optimizer:
    """Return the single-step attack."""
    if steps is not None and (not is_whole(steps) or steps != 1):
        raise InputError(f"steps is {steps!r:.80}; fgsm takes exactly 1")
    return Optimizer(1)


def pgd(steps: int | None = None) -> Optimizer:
    """Return the multi-step attack, of 10 steps if not given."""
    return Optimizer(_steps("pgd", steps, 10))


def pgd_random_start(steps: int | None = None) -> Optimizer:
    """Return PGD from a random point of the ball."""
    return Optimizer(_steps("pgd_random_start", steps, 10), start=initial_points.uniform)


def pgd_restarts(steps: int | None = None) -> Optimizer:
    """Return PGD, then PGD from four random points of the ball, `steps` each; the one that ends highest is kept."""
    return Optimizer(_steps("pgd_restarts", steps, 10), start=initial_points.given_first, restarts=5)


def mi_fgsm(steps: int | None = None) -> Optimizer:
    """Return PGD with momentum."""
    return Optimizer(_steps("mi_fgsm", steps, 10), IteratedGradient((MOMENTUM, SIGN)))


def ni_fgsm(steps: int | None = None) -> Optimizer:
    """Return PGD with Nesterov's momentum: its gradient is taken ahead, at times outside of the ball and of [0, 1]."""
    return Optimizer(_steps("ni_fgsm", steps, 10), IteratedGradient((NESTEROV, SIGN)))


def di_fgsm(steps: int | None = None) -> Optimizer:
    """Return PGD whose gradient is taken, half of the time, on a smaller copy."""
    return Optimizer(_steps("di_fgsm", steps, 10), IteratedGradient(transform=diverse))


def ti_fgsm(steps: int | None = None) -> Optimizer:
    """Return PGD on the smoothed gradient."""
    return Optimizer(_steps("ti_fgsm", steps, 10), IteratedGradient((SMOOTH, SIGN)))


def apgd(steps: int | None = None) -> Optimizer:
    """Return APGD, of 100 steps if not given, from its own random start."""
    return Optimizer(_steps("apgd", steps, 100), APGD(), initial_points.surface)


def fab(steps: int | None = None) -> Optimizer:
    """Return FAB, of 100 steps if not given; it needs one of the objectives of HAS_BOUNDARY."""
    return Optimizer(_steps("fab", steps, 100), FAB())


def square(steps: int | None = None) -> Optimizer:
    """Return Square, from its own random start; `steps` counts evaluations, and is 1000 if not given."""
    return Optimizer(_steps("square", steps, 1000), Square(), initial_points.stripes)


def random_uniform(steps: int | None = None) -> Optimizer:
    """Return the best of `steps` (1) draws of uniform noise."""
    return Optimizer(_steps("random_uniform", steps, 1), RandomSearch(initial_points.uniform_noise))


def random_sign(steps: int | None = None) -> Optimizer:
    """Return the best of `steps` (1) draws of sign noise."""
    return Optimizer(_steps("random_sign", steps, 1), RandomSearch(initial_points.sign_noise))


def random_gaussian(steps: int | None = None) -> Optimizer:
    """Return the best of `steps` (1) draws of clipped normal noise."""
    return Optimizer(_steps("random_gaussian", steps, 1), RandomSearch(initial_points.gaussian_noise))


OPTIMIZERS: dict[str, Callable[[int | None], Optimizer]] = {
    make.__name__: make
    for make in (
        fgsm,
        pgd,
        pgd_random_start,
        pgd_restarts,
        mi_fgsm,
        ni_fgsm,
        di_fgsm,
        ti_fgsm,
        apgd,
        fab,
        square,
        random_uniform,
        random_sign,
        random_gaussian,
    )
}
"""By name, from the number of steps (None: the benchmark's, or the publication's).

What a frame costs, for K steps: K forward and backward passes; `apgd` one forward pass more, `fab` K more, and
`pgd_restarts` five times K with a forward pass each; `square` and the `random_` ones K forward passes.
"""

NO_STEPS = Optimizer(0)
"""No gradient at all: what the clean and the random baseline use."""


def optimizer(name: str, steps: int | None = None) -> Optimizer:
    """Return the named optimizer; raises InputError for an unknown name or a wrong number of steps."""
    if not isinstance(name, str) or name not in OPTIMIZERS:
        raise unknown_name("optimizer", name, OPTIMIZERS)
    return OPTIMIZERS[name](steps)


def _steps(name: str, steps: int | None, default: int) -> int:
    if steps is None:
        return default
    if not is_whole(steps) or steps < 1:
        raise InputError(f"steps is {steps!r:.80}; {name} needs at least 1, a whole number")
    return int(steps)
