"""What is logged, for TensorBoard."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tensorboardX import SummaryWriter


class Curves:
    """An event folder a seed: DIR/seed_0 and so on. Points after `first` that an earlier run wrote are forgotten."""

    def __init__(self, folder: Path, seeds: Sequence[int], first: int) -> None:
        """Open the folders for points from environment step `first` on."""
        purge = {"purge_step": first} if first else {}
        self._writers = [SummaryWriter(str(folder / f"seed_{seed}"), **purge) for seed in seeds]

    def add(self, row: Mapping[str, Any]) -> None:
        """Write the numbers of a row of the log, at its environment step."""
        for i, writer in enumerate(self._writers):
            for name, values in row.items():
                if isinstance(values, list) and values[i] is not None:
                    writer.add_scalar(name, values[i], row["steps"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for writer in self._writers:
            writer.close()
