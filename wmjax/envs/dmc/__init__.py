"""The benchmark's ten dm_control tasks on MJX: whole episodes as pure functions on any device."""

import contextlib

from wmjax.envs import base

with contextlib.redirect_stdout(None):  # MJX prints that it found no `warp`, which is not used
    from wmjax.envs.dmc import ball_in_cup, cartpole, finger, hopper, reacher, walker
from wmjax.envs.dmc.env import Data, DmcEnv, EnvState, Params
from wmjax.envs.dmc.physics import Geometry

__all__ = ["Data", "DmcEnv", "EnvState", "Geometry", "Params", "load"]

_DOMAINS = {module.ENV.domain: module for module in (ball_in_cup, cartpole, finger, hopper, reacher, walker)}


def load(task: str) -> tuple[DmcEnv, Params]:
    """Return the environment of a task and the task's parameters.

    Sibling tasks have the same environment: a program that takes it as static and the parameters as arrays serves
    them all. Raises InputError, listing the known tasks, for an unknown name.
    """
    spec = base.spec(task)
    module = _DOMAINS[spec.domain]
    return module.ENV, module.TASKS[spec.name]
