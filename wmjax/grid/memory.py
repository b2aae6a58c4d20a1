"""How many episodes share a compiled call: a customary number, or as many as the device's memory holds."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from wmjax.attacks.defenses import named
from wmjax.grid.spec import Study
from wmjax.victims.dreamer import Dreamer

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
    room = memory(devices)
    if room is None:
        return most
    each = copies(study) * max(map(example_bytes, agents))
    fitting = min(most, max(1, int(_SHARE * room / each)))
    return 1 << (fitting.bit_length() - 1)


def example_bytes(agent: Dreamer) -> int:
    """Return what an image under attack, with what its gradient needs, takes on a device at most."""
    pixels = [(agent.image_size >> stage) ** 2 for stage in range(len(agent.depths))]
    return 4 * _COPIES * sum(size * depth for size, depth in zip(pixels, agent.depths, strict=True))


def copies(study: Study) -> int:
    """Return how many images an attack of the study holds for one example: as many as it draws of a random defense."""
    random = any(named(text)[0].random for text in study.defenses)
    return study.draws if random and True in study.adaptive else 1


def memory(devices: Sequence[Any]) -> int | None:
    """Return the bytes that each of `devices` has, CPUs an equal share; None where that is not known."""
    if devices[0].platform != "cpu":
        stats = [device.memory_stats() or {} for device in devices]
        return min((found["bytes_limit"] for found in stats if "bytes_limit" in found), default=None)
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")  # of a container
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        whole = min(whole, int(text))
    return whole // len(devices)
