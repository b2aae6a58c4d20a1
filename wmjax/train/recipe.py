"""How an agent is trained: every number of the reference configuration that training reads, under its name there.

The defaults are the reference's for agents of 12M and more; SMALL is for those that train on a laptop.
"""

from dataclasses import dataclass, fields
from types import MappingProxyType

from wmjax.core.errors import InputError

_MOST, _SMALL, _LARGE = 2**31 - 1, 1e-30, 1e6
_RANGES = MappingProxyType(
    dict(
        batch_size=(1, _MOST), batch_length=(2, _MOST), train_ratio=(1, 4096), env_num=(1, _MOST),
        max_size=(1, _MOST), lr=(_SMALL, 1.0), warmup=(0, _MOST), agc=(_SMALL, _LARGE), pmin=(_SMALL, _LARGE),
        beta1=(0.0, 0.99999), beta2=(0.0, 0.99999), eps=(_SMALL, 1.0), imag_horizon=(1, _MOST), horizon=(2, _MOST),
        lamb=(0.0, 1.0), act_entropy=(0.0, _LARGE), kl_free=(0.0, _LARGE), slow_target_fraction=(0.0, 1.0),
        lambd=(0.0, _LARGE), num_prototypes=(1, _MOST), proto_dim=(1, _MOST), temperature=(1e-6, _LARGE),
        sinkhorn_eps=(1e-6, _LARGE), sinkhorn_iters=(0, 100), warm_up=(0, _MOST), ema_update_fraction=(0.0, 1.0),
        freeze_prototypes_iters=(0, _MOST), max_delta=(0, 64),
    )
)  # fmt: skip
"""Of every number; where a zero would be divided by, the least is above it."""

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

    batch_size: int = 16  #: B, sequences of an update
    batch_length: int = 64  #: T, frames of a sequence
    train_ratio: int = 512  #: replayed frames for every frame that is played
    env_num: int = 16  #: episodes played side by side
    max_size: int = 500_000  #: frames that the replay keeps
    lr: float = 4e-5
    warmup: int = 1000  #: updates in which the learning rate grows to `lr`
    agc: float = 0.3  #: largest norm of a gradient, in norms of its weight
    pmin: float = 1e-3  #: smallest norm of a weight that counts there
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-20
    imag_horizon: int = 15  #: imagined steps
    horizon: int = 333  #: 1 / (1 - discount), in agent steps
    lamb: float = 0.95  #: of the lambda returns
    act_entropy: float = 3e-4
    kl_free: float = 1.0  #: nats
    slow_target_fraction: float = 0.02
    lambd: float = 5e-4  #: weight of redundancy against invariance (r2dreamer)
    num_prototypes: int = 2500  #: (dreamerpro, as all that follow)
    proto_dim: int = 32
    temperature: float = 0.1
    sinkhorn_eps: float = 0.05
    sinkhorn_iters: int = 3
    warm_up: int = 1  #: first frames of a sequence that the prototypes leave out
    ema_update_fraction: float = 0.05
    freeze_prototypes_iters: int = 10_000  #: updates before the prototypes learn
    max_delta: int = 3  #: pixels that the augmentation shifts, at most

    def __post_init__(self) -> None:
        """Raise InputError for a value that is out of its range."""
        for field in fields(self):
            value, (least, most) = getattr(self, field.name), _RANGES[field.name]
            kind = "a whole number" if field.type is int else "a number"
            if type(value) is not field.type or not least <= value <= most:
                raise InputError(f"{field.name} is {value!r:.80}; allowed: {kind} from {least} to {most}")
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
