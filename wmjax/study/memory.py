"""How many episodes share a compiled call: a customary number, or as many as the device's memory holds."""

from collections.abc import Iterable, Sequence
from typing import Any

from wmjax import runtime
from wmjax.agents.dreamer import Dreamer
from wmjax.attacks.defenses import named
from wmjax.study.spec import Study

_CUSTOMARY = {"cpu": 4}
_ELSEWHERE = 64
_COPIES = 8
"""Bytes of an attack's program over those of the encoder's activations: what was measured, 3 to 6, and some room."""

_SHARE = 0.5
"""Of the memory, how much batches may fill: weights, compiled programs and recorded frames want the rest."""


def batch_size(study: Study, agents: Iterable[Dreamer], devices: Sequence[Any]) -> int:
    """Return how many episodes of the study share a call: 4 on CPUs and 64 elsewhere, or a smaller power of two.

    It is the same whenever it is asked on one machine: results depend on it in their last bits.
    """
    most = _CUSTOMARY.get(devices[0].platform, _ELSEWHERE)
    room = runtime.memory(devices)
    if room is None:
        return most
    each = copies(study) * max(map(example_bytes, agents))
    fitting = min(most, max(1, int(_SHARE * room / each)))
    return 1 << (fitting.bit_length() - 1)


def example_bytes(agent: Dreamer) -> int:
    """Return what an image under attack, with what its gradient needs, takes on a device at most."""
    return 4 * _COPIES * agent.stage_size


def copies(study: Study) -> int:
    """Return how many images an attack of the study holds for one example: as many as it draws of a random defense."""
    random = any(named(text)[0].random for text in study.defenses)
    return study.draws if random and True in study.adaptive else 1
