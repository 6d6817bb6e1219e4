"""Arms × learning rates × seeds: rates are chosen for each arm on seeds 100 and above, results are on others.

Each finished trial is a line of JSON, and trials whose line is there are not run again: a script that was
stopped goes on where it was. `language_start.py` and `language_probe.py` are run with it.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Train = Callable[[str, float, int], float]  # arm, learning rate, seed → validation loss
FIRST_TUNING_SEED = 100


class Trials:
    """Rows on disk, and the runs that they lack."""

    def __init__(self, train: Train, path: Path | None, common: Row):
        self._train, self._path, self._common = train, path, common
        lines = path.read_text("utf-8").splitlines() if path and path.exists() else []
        self.rows: list[Row] = [row for line in lines if common.items() <= (row := json.loads(line)).items()]

    def losses(self, arm: str, rate: float, seeds: Iterable[int]) -> list[float]:
        """Validation losses of an arm at a rate, one a seed; run now where there is no row yet."""
        return [self._row(arm, rate, seed)["loss"] for seed in seeds]

    def _row(self, arm: str, rate: float, seed: int) -> Row:
        known = {"arm": arm, "learning_rate": rate, "seed": seed}
        for row in self.rows:
            if known.items() <= row.items():
                return row
        began = time.perf_counter()
        loss = self._train(arm, rate, seed)
        loss = loss if math.isfinite(loss) else math.inf  # it broke: the worst of all
        row = {**self._common, **known, "loss": loss, "seconds": round(time.perf_counter() - began, 1)}
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        if self._path:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        return row

    def best_rate(self, arm: str, rates: Sequence[float], seeds: int) -> float:
        """The rate of the lowest mean loss on tuning seeds; one rate needs no tuning."""
        tuning = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + seeds)
        if len(rates) == 1:
            return rates[0]
        return min(rates, key=lambda rate: statistics.mean(self.losses(arm, rate, tuning)))


def compare(
    trials: Trials, arms: Sequence[str], rates: Sequence[float], *, seeds: int, tuning_seeds: int
) -> dict[str, float]:
    """Mean loss of each arm at its best rate on seeds 0, 1, …; prints them as a table."""
    means = {}
    lines = [f"{'arm':28}  {'rate':>7}  {'loss':>7}  {'sd':>6}  each seed"]
    for arm in arms:
        rate = trials.best_rate(arm, rates, tuning_seeds)
        losses = trials.losses(arm, rate, range(seeds))
        means[arm] = statistics.mean(losses)
        std = statistics.stdev(losses) if len(losses) > 1 and math.isfinite(means[arm]) else 0.0
        edge = " at the edge of the grid" if len(rates) > 1 and rate in (min(rates), max(rates)) else ""
        each = " ".join(f"{loss:.3f}" for loss in losses)
        lines.append(f"{arm:28}  {rate:7.2g}  {means[arm]:7.3f}  {std:6.3f}  {each}{edge}")
    print("\n".join(lines))
    return means


def bar(means: dict[str, float], arm: str, against: str, margin: float) -> None:
    """Say whether an arm is at most so much above another one."""
    if arm in means and against in means:
        gap = means[arm] - means[against]
        print(f"{arm} − {against} = {gap:+.3f}, bar {margin:+.2f}: {'met' if gap <= margin else 'NOT met'}")
