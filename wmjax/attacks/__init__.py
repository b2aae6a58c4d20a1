"""What hurts an agent (objectives), how hard it is sought (optimizers), and when (timing), put together in `attack`."""

from wmjax.attacks.attack import Attack, Frame, Perturbed, Threat, draw, maximise, perturb, threat
from wmjax.attacks.objectives import OBJECTIVES, drift, losses, objective_weights
from wmjax.attacks.optimizers import NO_STEPS, OPTIMIZERS, Ball, Optimizer, ball, optimizer, project
from wmjax.attacks.timing import MODES, mask

__all__ = [
    "MODES",
    "NO_STEPS",
    "OBJECTIVES",
    "OPTIMIZERS",
    "Attack",
    "Ball",
    "Frame",
    "Optimizer",
    "Perturbed",
    "Threat",
    "ball",
    "draw",
    "drift",
    "losses",
    "mask",
    "maximise",
    "objective_weights",
    "optimizer",
    "perturb",
    "project",
    "threat",
]
