"""Counts the floating-point operations of an agent step without compiling it: two for each product of its matrices.

Physics, pixels, and what is done number by number are not counted; beside an agent's products they are few.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.interpreters.partial_eval import dce_jaxpr

from wmjax.agents.dreamer import Dreamer
from wmjax.attacks.threat import Attack, threat
from wmjax.rollout import agent_step, initial_state


def step_flops(
    victim: Dreamer, attack: Attack, batch: int, *, attacked: bool, platform: str = "cpu", critic: bool = False
) -> float:
    """Return the operations of one agent step of `batch` episodes, all of them attacked or none.

    `platform` is JAX's name for the kind of device: on CPUs wide convolutions are others. `critic` is whether an
    objective asks for the values of actions. What an online rule of timing costs is left out.
    """
    weights = lambda agent: jax.eval_shape(agent.init, jax.random.key(0))  # noqa: E731
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), batch))
    frame = victim.image_size, victim.image_size, 3
    goals = jax.eval_shape(lambda: threat(["pda"] * batch, [0.1] * batch, region=np.ones(frame)))
    state = jax.eval_shape(lambda: initial_state(victim, batch, 1, attack.source))
    attack = replace(attack, gap="none")

    def step(params: Any, source: Any, *args: Any) -> Any:
        return agent_step(victim, attack, params, *args, attacked=attacked, source=source)

    source = None if attack.source is None else weights(attack.source)
    image, t = jax.ShapeDtypeStruct((batch, *frame), jnp.uint8), jax.ShapeDtypeStruct((), jnp.int32)
    traced = jax.make_jaxpr(step)(weights(victim), source, state, image, keys, keys, goals, t)
    # Compilers leave out what nothing reads: the loss of PGD's last point, for one.
    used, _ = dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))
    return flops(used, platform, asked=critic)


def flops(jaxpr: Jaxpr, platform: str = "cpu", *, asked: bool = True) -> float:
    """Return the operations of a traced program's products on `platform`.

    A scan counts as often as it goes round; of a branch, that which is taken where what it looks at is true, or with
    `asked` False, false. A loop that only ends when the program runs counts as one round.
    """
    total = 0.0
    for equation in jaxpr.eqns:
        shapes = [getattr(v.aval, "shape", ()) for v in (*equation.outvars[:1], *equation.invars)]
        match equation.primitive.name:
            case "dot_general":
                (summed, _), _ = equation.params["dimension_numbers"]
                total += 2.0 * math.prod(shapes[0]) * math.prod(shapes[1][axis] for axis in summed)
            case "conv_general_dilated":
                outputs = shapes[2][equation.params["dimension_numbers"].rhs_spec[0]]
                total += 2.0 * math.prod(shapes[0]) * math.prod(shapes[2]) / outputs
            case "cond":
                taken = _taken(equation.params, platform, asked)
                total += flops(equation.params["branches"][taken].jaxpr, platform, asked=asked)
            case name:
                rounds = equation.params["length"] if name == "scan" else 1
                total += rounds * sum(flops(inner, platform, asked=asked) for inner in _inside(equation.params))
    return total


def _taken(params: dict[str, Any], platform: str, asked: bool) -> int:
    """Return the number of the branch that is taken: of platforms that of ours, or else the default."""
    if (platforms := params.get("branches_platforms")) is not None:
        return next(i for i, names in enumerate(platforms) if names is None or platform in names)
    return int(asked)


def _inside(params: dict[str, Any]) -> Iterator[Jaxpr]:
    """Yield the programs that an equation runs."""
    for value in params.values():
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, ClosedJaxpr):
                yield part.jaxpr
            elif isinstance(part, Jaxpr):
                yield part
