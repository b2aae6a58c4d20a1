"""The closed loop: one agent step under attack, and the loop around it, on the host or on the device."""

from wmjax.rollout.drivers import Loop, Past, device, host, scan, start
from wmjax.rollout.outcome import Rollout, Trace
from wmjax.rollout.step import MEANS, AgentState, Step, agent_step, initial_state

__all__ = [
    "MEANS",
    "AgentState",
    "Loop",
    "Past",
    "Rollout",
    "Step",
    "Trace",
    "agent_step",
    "device",
    "host",
    "initial_state",
    "scan",
    "start",
]
