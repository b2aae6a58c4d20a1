"""What hurts an agent (objectives), how it is sought (optimizers), when, where, and what defends it (defenses)."""

from wmjax.attacks.attack import Perturbed, maximise, perturb
from wmjax.attacks.attack_loss import Draw, Frame, attacker_aim, attacker_loss, attacker_noise, draw
from wmjax.attacks.defenses import DEFENSES, Defense, defense, defense_strength, named, through
from wmjax.attacks.linf_ball import Ball, Incumbent, Problem, ball, project
from wmjax.attacks.objectives import NAMES, OBJECTIVES, drift, losses, objective_targets, objective_weights
from wmjax.attacks.optimizers import NO_STEPS, OPTIMIZERS, Method, Optimizer, optimizer
from wmjax.attacks.regions import REGIONS, region
from wmjax.attacks.threat import NOISES, Attack, Threat, threat
from wmjax.attacks.timing import GAPS, MODES, Timing, timing
from wmjax.attacks.universal import universal

__all__ = [
    "DEFENSES",
    "GAPS",
    "MODES",
    "NAMES",
    "NOISES",
    "NO_STEPS",
    "OBJECTIVES",
    "OPTIMIZERS",
    "REGIONS",
    "Attack",
    "Ball",
    "Defense",
    "Draw",
    "Frame",
    "Incumbent",
    "Method",
    "Optimizer",
    "Perturbed",
    "Problem",
    "Threat",
    "Timing",
    "attacker_aim",
    "attacker_loss",
    "attacker_noise",
    "ball",
    "defense",
    "defense_strength",
    "draw",
    "drift",
    "losses",
    "maximise",
    "named",
    "objective_targets",
    "objective_weights",
    "optimizer",
    "perturb",
    "project",
    "region",
    "threat",
    "through",
    "timing",
    "universal",
]
