"""What is wrong with the arguments of a rollout, in one clear message."""

from collections.abc import Sequence

import jax
import numpy as np

from wmjax.agents.base import Params, Victim
from wmjax.attacks.defenses import defense_strength
from wmjax.attacks.fab import FAB
from wmjax.attacks.objectives import HAS_BOUNDARY, NAMES
from wmjax.attacks.threat import Attack, Threat
from wmjax.core.errors import InputError
from wmjax.core.jax_settings import check_keys
from wmjax.envs.device import DeviceEnv
from wmjax.envs.host import HostEnv


def check(
    victim: Victim,
    env: HostEnv | DeviceEnv,
    attack: Attack,
    source: Params | None,
    threat: Threat,
    mask: np.ndarray,
    batch: int,
    keys: jax.Array,
    attack_keys: jax.Array,
    record: Sequence[int],
) -> None:
    """Raise InputError where the arguments of a driver, for `batch` seeds, do not fit together."""
    if not batch:
        raise InputError("seeds is empty; expected one an episode")
    _check_shapes(victim, threat, batch, keys, attack_keys)
    if (attack.source is None) != (source is None):
        missing = "source" if source is None else "attack.source"
        raise InputError(f"{missing} is None; give both, an agent as attack.source and its weights, or neither")
    for name in ("action_size", "image_size") if attack.source is not None else ():
        if getattr(attack.source, name) != getattr(victim, name):
            own, other = getattr(victim, name), getattr(attack.source, name)
            raise InputError(f"attack.source has {name} {other}, the agent it is to attack {own}")
    if attack.defense.strength is not None:
        for strength in np.asarray(threat.strength).tolist():
            defense_strength(attack.defense, strength)
    others = [name not in HAS_BOUNDARY for name in NAMES]
    if isinstance(attack.optimizer.method, FAB) and np.any(np.asarray(threat.weights)[:, others]):
        raise InputError(f"optimizer fab needs an objective with a boundary: {', '.join(sorted(HAS_BOUNDARY))}")
    if not isinstance(mask, np.ndarray) or mask.dtype != bool or mask.ndim != 1 or not mask.size:
        raise InputError(
            f"mask is {mask!r:.80}; expected a bool array, one entry an agent step: "
            "wmjax.attacks.timing(mode, steps).mask"
        )
    if len(mask) > env.spec.episode_steps:
        raise InputError(f"mask has {len(mask)} entries; an episode has {env.spec.episode_steps} agent steps")
    ruled = np.asarray(threat.threshold).max() > -np.inf or np.asarray(threat.most).min() < len(mask)
    if attack.gap == "none" and ruled:
        raise InputError("threat has a threshold or a budget of frames, but attack.gap is 'none': see Timing.gap")
    if any(isinstance(i, bool | float) or i not in range(batch) for i in record):
        raise InputError(f"record is {list(record)!r:.80}; positions in the batch are 0 to {batch - 1}")


def _check_shapes(victim: Victim, threat: Threat, batch: int, keys: jax.Array, attack_keys: jax.Array) -> None:
    for name, given in (("keys", keys), ("attack_keys", attack_keys)):
        check_keys(name, given)
        if given.shape != (batch,):
            raise InputError(f"{name} has shape {given.shape}; expected ({batch},), one for each of the {batch} seeds")
    picture = (batch, victim.image_size, victim.image_size, 3)
    expected = dict.fromkeys(("eps", "strength", "threshold", "most"), (batch,)) | {
        "weights": (batch, len(NAMES)),
        "target": (batch, victim.action_size),
        "region": picture,
        "delta": picture,
    }
    for name, full in expected.items():
        shape = getattr(threat, name).shape
        wide = name in ("target", "region", "delta")  # all alike may be given once
        if (
            len(shape) != len(full)
            or shape[0] != batch
            or any(size not in ((want, 1) if wide else (want,)) for size, want in zip(shape[1:], full[1:], strict=True))
        ):
            raise InputError(f"threat.{name} has shape {shape}; expected {full}, for {batch} seeds")
