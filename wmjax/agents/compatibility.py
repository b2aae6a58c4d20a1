"""Which agents can play which tasks: what an agent's card and a task's spec must have in common."""

from wmjax.agents.weights import Card
from wmjax.core.errors import InputError
from wmjax.envs.base import TASKS, EnvSpec, spec


def misfits(card: Card, task: EnvSpec) -> dict[str, int]:
    """Return the agent's sizes that are not the task's, by name; empty where the agent can play the task."""
    return {name: size for name, size in _sizes(card).items() if size != getattr(task, name)}


def unplayable(card: Card) -> list[str]:
    """Return why `wmjax run` cannot play the agent, a line a reason; empty where it can.

    An agent that does not say what it was trained on can play any task that it fits.
    """
    try:
        tasks = list(TASKS.values()) if card.task is None else [spec(card.task)]
    except InputError as error:
        reasons = [str(error)]
    else:
        reasons = []
        for name, size in _sizes(card).items():
            allowed = sorted({getattr(task, name) for task in tasks})
            if size not in allowed:
                where = card.task or "the known tasks"
                reasons.append(f"its {name} is {size}, that of {where} is {' or '.join(map(str, allowed))}")
    return [f"`wmjax run` cannot play it yet: {reason}" for reason in reasons]


def _sizes(card: Card) -> dict[str, int]:
    return {
        "action_size": card.victim.action_size,
        "image_size": card.victim.image_size,
        "action_repeat": card.action_repeat,
    }
