"""Rows as arrays of seeds × tasks (or steps), with a reason where rows are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nap.lab.claims.claim import NotEnough
from nap.lab.rows import Row, Rows

UNFINISHED = "unfinished"  # a key of rows: the status of their run, if it is not finished
RESUMABLE = "is not finished; run it again to resume"
BROKEN = "broke down: its loss or gradient was not finite; a smaller --learning-rate may help"
DAMAGED = "is damaged: its files are not those that it wrote"
MIN_POINTS = 4  # tasks or measurements: with fewer, "first" and "last" say nothing about a trend


@dataclass(frozen=True)
class Series:
    """A metric of one arm: a line for each seed, a column for each task or step."""

    values: np.ndarray  # (seeds, points)
    seeds: list[int]
    points: list[int]

    def start(self) -> np.ndarray:
        """Per seed, the value at initialisation; the mean of the first tasks if it was not measured there."""
        return self.values[:, 0] if self.points[0] == 0 else self.first()

    def first(self) -> np.ndarray:
        """Per seed, the mean of the first tenth of the tasks (at least one)."""
        return self.values[:, : self._window].mean(1)

    def last(self) -> np.ndarray:
        """Per seed, the mean of the last tenth of the tasks (at least one)."""
        return self.values[:, -self._window :].mean(1)

    def mean(self) -> np.ndarray:
        """Per seed, the mean of all tasks."""
        return self.values.mean(1)

    def peak(self) -> np.ndarray:
        """Per seed, the highest mean of a tenth of the tasks, so that one outlier is no peak."""
        windows = np.lib.stride_tricks.sliding_window_view(self.values, self._window, axis=1)
        return windows.mean(-1).max(1)

    def trend(self) -> np.ndarray:
        """Per seed, the change of the least-squares line from the first task to the last."""
        t = np.linspace(-0.5, 0.5, len(self.points))
        return (self.values - self.values.mean(1, keepdims=True)) @ t / (t @ t)

    def trained(self) -> Series:
        """The series without what was measured before the first update."""
        return self._at([i for i, point in enumerate(self.points) if point > 0])

    def _at(self, columns: list[int]) -> Series:
        return Series(self.values[:, columns], self.seeds, [self.points[i] for i in columns])

    @property
    def _window(self) -> int:
        return max(1, len(self.points) // 10)


class Samples:
    """The rows of one experiment (of one network and stream), to take series from."""

    def __init__(self, rows: Rows):
        self._rows = [row for row in rows if row.get("kind") != "trajectory"]
        self._index: dict[tuple[str, ...], dict[tuple[Any, ...], list[Row]]] = {}

    def select(self, **where: Any) -> Rows:
        """The rows with these values, found through an index: every claim asks for the same few arms."""
        keys = tuple(where)
        if keys not in self._index:
            index = self._index[keys] = {}
            for row in self._rows:
                index.setdefault(tuple(row.get(key) for key in keys), []).append(row)
        return Rows(self._index[keys].get(tuple(where.values()), []))

    def series(
        self, metric: str, *, along: str = "task", min_points: int = MIN_POINTS, **where: Any
    ) -> Series:
        """`metric` of the rows with these values; `NotEnough` if some are absent or a run is unfinished."""
        name = _describe(where)
        rows = self.select(**where)
        if not rows:
            raise NotEnough(f"there are no rows of {name}")
        for status in (DAMAGED, BROKEN, RESUMABLE):  # the worst first
            if runs := {str(row.get("run")) for row in rows if row.get(UNFINISHED) == status}:
                raise NotEnough(f"the run {', '.join(sorted(runs))} {status}")
        values, seeds, points = rows.matrix(metric, by=("seed", along))
        peers = self.select(**{key: where[key] for key in ("network", "stream") if key in where})
        end = max((row[along] for row in peers if row.get(along) is not None), default=None)
        if end is None:
            raise NotEnough(f"the rows of {name} have no column {along!r}")
        if not points or points[-1] < end:
            raise NotEnough(f"{name} stops at {along} {points[-1] if points else 0} of {end}")
        if len(points) < min_points:
            raise NotEnough(
                f"{name} has too few {along.removesuffix('s')}s for a trend: "
                f"{len(points)} of at least {min_points}"
            )
        if not np.isfinite(values).all():
            line, column = np.argwhere(~np.isfinite(values))[0]
            raise NotEnough(f"{name} has no {metric} at seed {seeds[line]}, {along} {points[column]}")
        return Series(values, seeds, points)


def run_status(manifest: Mapping[str, Any]) -> str:
    """Why a run is not finished, in words; empty if it is.

    >>> run_status({"finished": None, "exit": "killed"})
    'is not finished; run it again to resume'
    """
    if manifest.get("finished"):
        return ""
    return BROKEN if str(manifest.get("exit")).startswith("not finite") else RESUMABLE


def _describe(where: dict[str, Any]) -> str:
    """A selection of rows in words.

    >>> _describe({"method": "none", "nap": True})
    'method “none” with NaP'
    """
    with_nap = {True: " with NaP", False: " without NaP", None: ""}[where.get("nap")]
    named = (f"{key} “{value}”" for key, value in where.items() if key not in ("nap", "kind"))
    return ", ".join(named) + with_nap


def paired(*series: Series) -> list[Series]:
    """The series on the seeds that all of them have, so that arms are compared in pairs."""
    shared = sorted(set.intersection(*(set(s.seeds) for s in series)))
    if not shared:
        raise NotEnough("the arms that it compares share no seed")
    return [Series(s.values[[s.seeds.index(seed) for seed in shared]], shared, s.points) for s in series]


def at_shared_points(*series: Series) -> list[Series]:
    """The series at the tasks that all of them have: before the first update there are norms, no accuracy."""
    shared = sorted(set.intersection(*(set(s.points) for s in series)))
    return [s._at([s.points.index(point) for point in shared]) for s in series]


def stacked(series: Sequence[Series]) -> np.ndarray:
    """Series of equal length as one array (seeds, series, points), on the seeds that all have."""
    shared = paired(*series)
    if len({len(s.points) for s in shared}) != 1:
        raise NotEnough(f"arms have different numbers of points: {sorted({len(s.points) for s in shared})}")
    return np.stack([s.values for s in shared], axis=1)
