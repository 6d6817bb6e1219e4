"""Writes rows for TensorBoard: a run for each arm, a chart for each metric and seed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from torch.utils.tensorboard import SummaryWriter

NO_METRICS = {"seed", "task", "step", "step_in_task", "index"}


class Board:
    """Event files in `folder`, with the tags `metric/seed k`, so that arms share a chart.

    A resumed run writes all rows of earlier sessions again, so each point is there once.
    """

    def __init__(self, folder: Path, earlier: Iterable[Mapping[str, Any]] = ()):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise ValueError(f"{folder} is no folder of event files; remove it, or leave out --tensorboard")
        shutil.rmtree(folder, ignore_errors=True)
        self._folder = folder
        self._writers: dict[str, SummaryWriter] = {}
        self.add(earlier)

    def __enter__(self) -> Board:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self._writers.values():
            writer.close()

    def add(self, new: Iterable[Mapping[str, Any]]) -> None:
        """Log rows; those with a `kind` are for figures, and left out."""
        for row in new:
            if "kind" in row:
                continue
            writer = self._writer(str(row.get("arm", "all")))
            for name, value in metrics(row).items():
                writer.add_scalar(
                    f"{name}/seed {row.get('seed', 0)}", value, row.get("step", row.get("task"))
                )

    def _writer(self, arm: str) -> SummaryWriter:
        if arm not in self._writers:
            self._writers[arm] = SummaryWriter(str(self._folder / arm.replace("/", "-")))
        return self._writers[arm]


def metrics(row: Mapping[str, Any]) -> dict[str, float]:
    """The measured numbers of a row.

    >>> metrics({"arm": "NaP", "seed": 0, "task": 3, "nap": True, "loss": 0.5, "rank": None})
    {'loss': 0.5}
    """
    return {
        name: value
        for name, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in NO_METRICS
    }
