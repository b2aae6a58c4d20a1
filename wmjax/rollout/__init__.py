"""The closed loop: one agent step under attack, and the loop around it, on the host or on the device."""

from wmjax.rollout.diagnostics import MEANS
from wmjax.rollout.drivers import Loop, Past, device, host, scan, start
from wmjax.rollout.replay import replay
from wmjax.rollout.results import Rollout, Trace
from wmjax.rollout.step import AgentState, Step, Witness, agent_step, initial_state, loss_again

__all__ = [
    "MEANS",
    "AgentState",
    "Loop",
    "Past",
    "Rollout",
    "Step",
    "Trace",
    "Witness",
    "agent_step",
    "device",
    "host",
    "initial_state",
    "loss_again",
    "replay",
    "scan",
    "start",
]
