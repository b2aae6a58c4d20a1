"""How an agent is trained: every number of the reference configuration that training reads, under its name there.

The defaults are the reference's for agents of 12M and more; SMALL is for those that train on a laptop.
"""

from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from wmjax.core.errors import InputError

_MOST, _SMALL, _LARGE = 2**31 - 1, 1e-30, 1e6


def _number(default: float, least: float, most: float) -> Any:
    """Return a field and its range; where a zero would be divided by, the least is above it."""
    return field(default=default, metadata={"range": (least, most)})


SCALES = MappingProxyType(
    dict(
        recon=1.0, barlow=0.05, infonce=1.0, swav=1.0, temp=1.0, norm=1.0,
        rew=1.0, con=1.0, dyn=1.0, rep=0.1, policy=1.0, value=1.0, repval=0.3,
    )
)  # fmt: skip
"""The weight of every loss term in the sum that is minimised."""


@dataclass(frozen=True)
class Recipe:
    """Static choices of a training run."""

    batch_size: int = _number(16, 1, _MOST)  #: B, sequences of an update
    batch_length: int = _number(64, 2, _MOST)  #: T, frames of a sequence
    train_ratio: int = _number(512, 1, 4096)  #: replayed frames for every frame that is played
    env_num: int = _number(16, 1, _MOST)  #: episodes played side by side
    max_size: int = _number(500_000, 1, _MOST)  #: frames that the replay keeps
    lr: float = _number(4e-5, _SMALL, 1.0)
    warmup: int = _number(1000, 0, _MOST)  #: updates in which the learning rate grows to `lr`
    agc: float = _number(0.3, _SMALL, _LARGE)  #: largest norm of a gradient, in norms of its weight
    pmin: float = _number(1e-3, _SMALL, _LARGE)  #: smallest norm of a weight that counts there
    beta1: float = _number(0.9, 0.0, 0.99999)
    beta2: float = _number(0.999, 0.0, 0.99999)
    eps: float = _number(1e-20, _SMALL, 1.0)
    imag_horizon: int = _number(15, 1, _MOST)  #: imagined steps
    horizon: int = _number(333, 2, _MOST)  #: 1 / (1 - discount), in agent steps
    lamb: float = _number(0.95, 0.0, 1.0)  #: of the lambda returns
    act_entropy: float = _number(3e-4, 0.0, _LARGE)
    kl_free: float = _number(1.0, 0.0, _LARGE)  #: nats
    slow_target_fraction: float = _number(0.02, 0.0, 1.0)
    lambd: float = _number(5e-4, 0.0, _LARGE)  #: weight of redundancy against invariance (r2dreamer)
    num_prototypes: int = _number(2500, 1, _MOST)  #: (dreamerpro, as all that follow)
    proto_dim: int = _number(32, 1, _MOST)
    temperature: float = _number(0.1, 1e-6, _LARGE)
    sinkhorn_eps: float = _number(0.05, 1e-6, _LARGE)
    sinkhorn_iters: int = _number(3, 0, 100)
    warm_up: int = _number(1, 0, _MOST)  #: first frames of a sequence that the prototypes leave out
    ema_update_fraction: float = _number(0.05, 0.0, 1.0)
    freeze_prototypes_iters: int = _number(10_000, 0, _MOST)  #: updates before the prototypes learn
    max_delta: int = _number(3, 0, 64)  #: pixels that the augmentation shifts, at most

    def __post_init__(self) -> None:
        """Raise InputError for a value that is out of its range."""
        for number in fields(self):
            value, (least, most) = getattr(self, number.name), number.metadata["range"]
            kind = "a whole number" if number.type is int else "a number"
            if type(value) is not number.type or not least <= value <= most:
                raise InputError(f"{number.name} is {value!r:.80}; allowed: {kind} from {least} to {most}")
        if self.warm_up >= self.batch_length:
            raise InputError(f"warm_up is {self.warm_up}; allowed: less than batch_length, {self.batch_length}")

    @property
    def discount(self) -> float:
        """Of an agent step."""
        return 1 - 1 / self.horizon


SMALL = Recipe(
    batch_size=8, batch_length=32, train_ratio=32, env_num=8, max_size=50_000,
    lr=1e-3, warmup=200, num_prototypes=600, freeze_prototypes_iters=1000,
)  # fmt: skip
"""Smaller batches, of more and younger frames, and a rate that small networks bear; as many prototypes to a frame."""
