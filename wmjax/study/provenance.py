"""Where rows come from: the command, the code's commit and the machine; in the manifest, and no part of a result."""

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import wmjax
from wmjax.core.text import as_text

PROVENANCE = ("started", "command", "shard", "git", "python", "platform", "device")
"""The keys of a manifest that say where rows come from."""


def provenance(command: Sequence[str] | None, shard: str | None, device: str) -> dict[str, Any]:
    """Return what the manifest says of a run that begins now; the keys are those of PROVENANCE."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": None if command is None else list(map(as_text, command)),
        "shard": shard,
        "git": git_state(Path(wmjax.__file__).resolve().parents[1]),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device,
    }


def git_state(root: Path) -> dict[str, Any] | None:
    """Return the commit of the git checkout `root`, and whether a tracked file differs from it; None for no checkout.

    A package that was installed into a folder somewhere inside of another checkout has no commit of its own.
    """
    # A hook's variables would point git at another checkout.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
        done = subprocess.run(command, capture_output=True, check=True, timeout=10, env=environment)
        return os.fsdecode(done.stdout).removesuffix("\n")

    try:
        top, _, commit = git("rev-parse", "--show-toplevel", "HEAD").rpartition("\n")
        if Path(top) != root:
            return None
        return {"commit": commit, "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, ValueError, subprocess.SubprocessError):  # no git, no checkout, no commit, or a very slow disk
        return None
