"""What the public R2-Dreamer code reads of its configuration: which entries make an agent act as it does, which do not.

`inference` and `training` together name every entry of the sections `env` and `model` that the code has. Converting
compares a file with them, and exporting writes them.
"""

import math
import re
from dataclasses import replace
from typing import Any

from wmjax.agents.dreamer import Dreamer
from wmjax.core.errors import InputError
from wmjax.envs.base import task_name

ATARI = (
    *("actions", "aggregate", "autostart", "clip_reward", "length"),
    *("lives", "noops", "pooling", "resize", "sticky"),
)

_SUITES = {
    "dmc": "[a-z0-9_]+",
    "metaworld": "[a-z0-9-]+",
    **dict.fromkeys(("atari", "crafter", "isaaclab", "memorymaze"), "[A-Za-z0-9_.:-]+"),
}
"""The first word of a task's name, and how the rest is spelled."""


def inference(victim: Dreamer) -> dict[str, Any]:
    """Return the entries that inference reads, with the values of an agent of these sizes; wmjax computes no others."""
    shared = {"act": "SiLU", "norm": True}
    keys = {"mlp_keys": "$^", "cnn_keys": "image"}
    depth, mults = depths_as_entries(victim.depths)
    cnn = shared | {"kernel_size": victim.kernel_size, "minres": victim.minres, "depth": depth, "mults": mults}
    bins = {"shape": [victim.bins], "dist": {"name": "symexp_twohot", "bin_num": victim.bins}}
    normal = {"name": "bounded_normal", "min_std": 0.1, "max_std": 1.0}

    def head(name: str, layers: int) -> dict[str, Any]:
        return shared | {"name": name, "layers": layers, "units": victim.units, "symlog_inputs": False}

    tree: dict[str, Any] = {
        # Images are RGB; `camera` is read for MetaWorld, `gray` for Atari.
        "env": {"size": 2 * [victim.image_size], "camera": "corner2", "gray": False, "encoder": dict(keys)},
        "model": {
            "rssm": shared
            | {
                "deter": victim.deter,
                "hidden": victim.hidden,
                "discrete": victim.discrete,
                "blocks": victim.blocks,
                "dyn_layers": victim.dyn_layers,
                "img_layers": victim.img_layers,
                "obs_layers": victim.obs_layers,
                "unimix_ratio": 0.01,
            },
            "encoder": keys | {"cnn": dict(cnn)},
            "reward": head("reward", victim.reward_layers) | bins,
            "cont": head("cont", victim.cont_layers) | {"shape": [1], "dist": {"name": "binary"}},
            "actor": head("actor", victim.actor_layers) | {"dist": {"cont": normal}},
            "critic": head("value", victim.critic_layers) | bins,
        },
    }
    if victim.agent == "dreamer":
        tree["env"]["decoder"] = dict(keys)
        tree["model"]["decoder"] = keys | {
            "cnn": cnn | {"units": victim.decoder_units // 2, "bspace": victim.decoder_blocks},
            "cnn_dist": {"name": "mse"},
        }
    return tree


def identity(victim: Dreamer, task: str | None, action_repeat: int) -> dict[str, Any]:
    """Return the entries that say which agent it is, and those of `model` that its parts refer to."""
    played = {"task": task, "action_repeat": action_repeat}
    shared = {name: getattr(victim, name) for name in ("deter", "hidden", "discrete", "units")}
    shared |= {"depth": depths_as_entries(victim.depths)[0], "act": "SiLU", "norm": True}
    told = {"rep_loss": victim.agent, "horizon": victim.horizon, "rssm": {"stoch": victim.stoch}}
    return {"env": played, "model": told | shared}


def training(victim: Dreamer) -> dict[str, dict[str, Any]]:
    """Return the entries that may be anything, with the reference's values, by the reason why they may."""
    outscale, device = {"outscale": 1.0, "device": "cpu"}, {"device": "cpu"}
    perceptron = {"layers": 3, "units": victim.units, "act": "SiLU", "norm": True, "shape": None} | outscale
    found: dict[str, dict[str, Any]] = {
        "how it is trained, and on what": {
            "env": {
                "steps": 1010000,
                "env_num": 16,
                "eval_episode_num": 10,
                "train_ratio": 512,
                "seed": 0,
                "device": "cpu",
            },
            "model": {
                "act_entropy": 0.0003,
                "kl_free": 1.0,
                "imag_horizon": 15,
                "lamb": 0.95,
                "compile": False,
                "log_grads": False,
                "memory_peak_tracking": False,
                "device": "cpu",
                "lr": 4e-5,
                "agc": 0.3,
                "pmin": 0.001,
                "eps": 1e-20,
                "beta1": 0.9,
                "beta2": 0.999,
                "warmup": 1000,
                "slow_target_update": 1,
                "slow_target_fraction": 0.02,
                "loss_scales": {
                    **dict.fromkeys(("infonce", "recon", "rew", "con", "dyn", "policy", "value"), 1.0),
                    **dict.fromkeys(("swav", "temp", "norm"), 1.0),
                    **{"barlow": 0.05, "rep": 0.1, "repval": 0.3},
                },
                "r2dreamer": {"lambd": 0.0005},
                "dreamer_pro": {
                    "warm_up": 1,
                    "num_prototypes": 2500,
                    "proto_dim": 32,
                    "temperature": 0.1,
                    "sinkhorn_eps": 0.05,
                    "sinkhorn_iters": 3,
                    "ema_update_every": 1,
                    "ema_update_fraction": 0.05,
                    "freeze_prototypes_iters": 10000,
                    "aug": {"max_delta": 3.0, "same_across_time": True, "bilinear": True},
                },
            },
        },
        "how weights begin, and where they lie": {
            "model": {
                "rssm": device,
                "reward": outscale | {"outscale": 0.0},
                "cont": outscale,
                "actor": outscale | {"outscale": 0.01},
                "critic": outscale | {"outscale": 0.0},
            },
        },
        "when a training episode ends; a study says how long its own are": {"env": {"time_limit": 1000}},
        "the code reads it and begins with zeros whatever it says": {"model": {"rssm": {"initial": "learned"}}},
        "the code puts the task's number of actions there": {"model": {"actor": {"shape": None}}},
        "for observations that are no images, of which these agents have none": {
            "model": {"encoder": {"mlp": perceptron | {"outscale": None, "symlog_inputs": True, "name": "mlp_encoder"}}}
        },
        "for discrete actions, which no agent that converts has": {
            "env": dict.fromkeys(ATARI),
            "model": {
                "actor": {
                    "dist": {
                        "disc": {"name": "onehot", "unimix_ratio": 0.01},
                        "multi_disc": {"name": "multi_onehot", "unimix_ratio": 0.01},
                    }
                }
            },
        },
        "the physics of IsaacLab, where wmjax does not play": {"env": {"sim_dt": None}},
    }
    decoder = {
        "mlp_dist": {"name": "symlog_mse"},
        "mlp": perceptron | {"dist": {"name": "identity"}, "symlog_inputs": False, "name": "mlp_decoder"},
        "cnn": {"outscale": 1.0},
    }
    if victim.agent == "dreamer":
        return found | {"of the decoder, what images do not need": {"model": {"decoder": decoder}}}
    decoding = inference(replace(victim, agent="dreamer", decoder_units=2 * victim.units, decoder_blocks=8))
    parts = {part: {"decoder": decoding[part]["decoder"]} for part in ("env", "model")}
    return found | {"of the decoder, which only a dreamer agent has": joined(parts, {"model": {"decoder": decoder}})}


def joined(*trees: dict[str, Any]) -> dict[str, Any]:
    """Return one tree of sections with the entries of all."""
    whole: dict[str, Any] = {}
    for tree in trees:
        for name, value in tree.items():
            whole[name] = joined(whole.get(name, {}), value) if isinstance(value, dict) else value
    return whole


def depths_as_entries(depths: tuple[int, ...]) -> tuple[int, list[int]]:
    """Return `depth` and `mults`, whose products the depths are."""
    depth = math.gcd(*depths)
    return depth, [each // depth for each in depths]


def spelled(task: Any) -> str:
    """Return a task's name as the code spells it: Meta-World's names have hyphens, `metaworld_door-open`; others none.

    Raises InputError for what cannot be the name of a task.
    """
    suite, _, name = task_name(task).partition("_") if type(task) is str else ("", "", "")
    if suite not in _SUITES:
        raise InputError(f"task is {task!r:.80}; it must begin with {', '.join(f'{suite}_' for suite in _SUITES)}")
    if suite == "metaworld":
        name = name.replace("_", "-")
    if not re.fullmatch(f"(?=.{{1,80}}$){_SUITES[suite]}", name):
        raise InputError(f"task is {task!r:.80}; after {suite}_ come characters of {_SUITES[suite].rstrip('+')}")
    return f"{suite}_{name}"
