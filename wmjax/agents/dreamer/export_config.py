"""The configuration of an exported agent, from which the public R2-Dreamer code builds it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wmjax.agents.dreamer.hydra import FILE, LARGEST
from wmjax.agents.dreamer.reference_config import ATARI, identity, inference, joined, spelled, training
from wmjax.agents.weights import Card
from wmjax.core.errors import InputError
from wmjax.core.files import check_file, make_folder

_TOP: dict[str, Any] = {
    "logdir": "logdir",
    "seed": 0,
    "deterministic_run": False,
    "device": "cpu",
    "batch_size": 16,
    "batch_length": 64,
    "buffer": {"batch_size": 16, "batch_length": 64, "max_size": 500000, "device": "cpu", "storage_device": "cpu"},
    "trainer": {
        "steps": 1010000,
        "pretrain": 0,
        "eval_every": 10000,
        "eval_episode_num": 10,
        "batch_size": 16,
        "batch_length": 64,
        "train_ratio": 512,
        "video_pred_log": False,
        "params_hist_log": False,
        "update_log_every": 5000,
        "memory_history_snapshot": False,
        "memory_history_steps": 100,
    },
}
"""What the code reads beside `env` and `model`, with its own values; all on a CPU, which every machine has."""


def configuration(card: Card, flat: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the whole configuration of an agent with the weights `flat`: plain values, no references.

    Raises InputError for an agent that the code cannot build.
    """
    victim, task = card.victim, None if card.task is None else spelled(card.task)
    if victim.agent == "dreamer" and victim.decoder_units % 2:
        raise InputError(f"decoder_units is {victim.decoder_units}; the R2-Dreamer code only builds even ones")
    tree = joined(_TOP, *training(victim).values(), inference(victim), identity(victim, task, card.action_repeat))
    tree["trainer"]["action_repeat"] = card.action_repeat
    for name in ("gray", "sim_dt", *ATARI):  # which the code reads for other environments than these
        del tree["env"][name]
    if task is None:
        del tree["env"]["task"]
    elif task.startswith("metaworld_"):
        tree["env"]["time_limit"] = 500
    if task is None or not task.startswith("metaworld_"):
        del tree["env"]["camera"]
    if victim.agent == "dreamerpro":
        size, number = flat["prototypes/kernel"].shape
        tree["model"]["dreamer_pro"] |= {"num_prototypes": number, "proto_dim": size}
    return tree


def text(tree: Mapping[str, Any]) -> str:
    """Return a configuration as YAML; raises InputError where PyYAML is not installed."""
    try:
        import yaml
    except ImportError:
        raise InputError("exporting needs PyYAML: pip install 'wmjax[convert]'") from None

    class Dumper(yaml.SafeDumper):
        """Writes lists that two entries share twice: a reader need not know of anchors."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    return yaml.dump(tree, Dumper=Dumper, sort_keys=False)


def check_folder(folder: Path, content: str) -> None:
    """Raise InputError where the folder holds another configuration than `content`, which would be lost."""
    path = folder / FILE
    try:
        check_file(path, LARGEST)
        same = path.read_bytes() == content.encode()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if not same:
        raise InputError(f"{path}: is another configuration than the one of this export; export to another folder")


def make_folders(folder: Path) -> None:
    """Make a folder and that of its configuration; raises InputError where the latter is a link."""
    if not folder.is_dir():
        make_folder(folder)
    make_folder((folder / FILE).parent)
