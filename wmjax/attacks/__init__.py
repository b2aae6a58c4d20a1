"""What hurts an agent (objectives), how it is sought (optimizers), when (timing), and what defends it (defenses)."""

from wmjax.attacks.attack import Attack, Frame, Perturbed, Threat, draw, maximise, perturb, threat
from wmjax.attacks.defenses import DEFENSES, Defense, defense, defense_strength, through
from wmjax.attacks.objectives import OBJECTIVES, drift, losses, objective_weights
from wmjax.attacks.optimizers import NO_STEPS, OPTIMIZERS, Method, Optimizer, optimizer
from wmjax.attacks.problem import Ball, Best, Problem, ball, project
from wmjax.attacks.timing import MODES, mask

__all__ = [
    "DEFENSES",
    "MODES",
    "NO_STEPS",
    "OBJECTIVES",
    "OPTIMIZERS",
    "Attack",
    "Ball",
    "Best",
    "Defense",
    "Frame",
    "Method",
    "Optimizer",
    "Perturbed",
    "Problem",
    "Threat",
    "ball",
    "defense",
    "defense_strength",
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
    "through",
]
