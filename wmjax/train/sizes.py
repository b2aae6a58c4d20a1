"""The sizes of agents that are trained here, by the names of the reference configurations."""

from dataclasses import replace

from wmjax.agents.dreamer import AGENTS, Dreamer
from wmjax.core.errors import unknown_name
from wmjax.train.recipe import SMALL, Recipe

_MULTIPLES = (2, 3, 4, 4)
"""Channels of the encoder's stages, in units of `depth`."""

SIZES: dict[str, dict[str, int]] = {
    "tiny": dict(deter=256, hidden=64, discrete=8, depth=4, units=64),
    "1m": dict(deter=512, hidden=64, discrete=8, depth=8, units=64),
    "12m": dict(deter=2048, hidden=256, discrete=16, depth=16, units=256),
    "25m": dict(deter=3072, hidden=384, discrete=24, depth=24, units=384),
}
"""What differs between the sizes; "12m" and "25m" are the reference's."""

RECIPES = {"tiny": SMALL, "1m": replace(SMALL, lr=4e-4), "12m": Recipe(), "25m": Recipe()}
"""How each size is trained, unless said otherwise."""

STEPS = {"tiny": 200_000, "1m": 400_000, "12m": 1_000_000, "25m": 1_000_000}
"""For how many environment steps."""


def victim(agent: str, size: str, action_size: int) -> Dreamer:
    """Return the agent of a size; raises InputError, listing the known ones, for an unknown agent or size."""
    if agent not in AGENTS:
        raise unknown_name("agent", agent, AGENTS)
    if size not in SIZES:
        raise unknown_name("size", size, SIZES)
    sizes = dict(SIZES[size])
    depth, units = sizes.pop("depth"), sizes["units"]
    decoder = dict(decoder_units=2 * units, decoder_blocks=8) if agent == "dreamer" else {}
    return Dreamer(
        agent=agent,
        action_size=action_size,
        stoch=32,
        blocks=8,
        depths=tuple(depth * multiple for multiple in _MULTIPLES),
        kernel_size=5,
        minres=4,
        dyn_layers=1,
        img_layers=2,
        obs_layers=1,
        actor_layers=3,
        critic_layers=3,
        reward_layers=1,
        cont_layers=1,
        bins=255,
        **sizes,
        **decoder,
    )
