"""What hurts an agent (objectives), how hard it is sought (optimizers), and when (timing), put together in `attack`."""

from wmjax.attacks.attack import Attack, Frame, Perturbed, Threat, draw, maximise, perturb, threat
from wmjax.attacks.objectives import OBJECTIVES, drift, losses, objective_weights
from wmjax.attacks.optimizers import NO_STEPS, OPTIMIZERS, Method, Optimizer, optimizer
from wmjax.attacks.problem import Ball, Best, Problem, ball, project
from wmjax.attacks.timing import MODES, mask

__all__ = [
    "MODES",
    "NO_STEPS",
    "OBJECTIVES",
    "OPTIMIZERS",
    "Attack",
    "Ball",
    "Best",
    "Frame",
    "Method",
    "Optimizer",
    "Perturbed",
    "Problem",
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
