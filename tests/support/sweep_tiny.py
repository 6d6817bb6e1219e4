"""The command `nap` with an experiment of one's own, `counting`: real runs that last seconds.

`python tests/support/sweep_tiny.py sweep counting` is the driver. In its workers checkpoints are written
ten times a second, so that a kill leaves something to go on from.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from nap.lab.experiments import MODULES
from nap.lab.experiments.experiment import Experiment, Run
from nap.lab.runner import run


@dataclass(frozen=True)
class Counting:
    """Settings of the experiment."""

    seeds: int = 1
    """How many seeds."""
    runs: int = 4
    """How many runs."""
    steps: int = 30
    """Steps of each run."""
    seconds_per_step: float = 0.02
    """How slow it is."""
    broken: tuple[int, ...] = ()
    """Runs that fail at step 5, whenever they come there."""


class Fit:
    """A linear model that learns, a step a unit; what a step draws depends on (run, step) alone."""

    unit = "steps"
    steps_per_unit = 1

    def __init__(self, config: Counting, number: int):
        self.config, self.number, self.total, self.done = config, number, config.steps, 0
        self.weight = torch.zeros(8)

    def step(self) -> list[dict[str, Any]]:
        time.sleep(self.config.seconds_per_step)
        if self.done == 5 and self.number in self.config.broken:
            raise RuntimeError(f"run {self.number} is broken")
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1000 * self.number + self.done))
        error = x @ self.weight - x.sum(1)
        self.weight = self.weight - 0.01 * error @ x / 16
        self.done += 1
        row = {"experiment": "counting", "run": f"run-{self.number}", "arm": "fit", "seed": 0}
        return [row | {"step": self.done, "loss": error.square().mean().item()}]

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "weight": self.weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done, self.weight = state["done"], state["weight"]


def runs(config: Counting) -> list[Run]:
    def run(number: int) -> Run:
        def start(device: torch.device) -> Fit:
            return Fit(config, number)

        # what does not change its rows is not part of a run's config: it may differ between sessions
        return Run(f"run-{number}", replace(config, runs=0, broken=(), seconds_per_step=0.0), start)

    return [run(number) for number in range(config.runs)]


EXPERIMENT = Experiment(
    name="counting",
    title="counting",
    shows="One can count.",
    scales={scale: Counting() for scale in ("demo", "small", "paper")},
    runs=runs,
    datasets={"demo": "", "small": "", "paper": ""},
    folder="counting",
)

started = sys.modules["__main__"].__spec__  # by `python -m`; None for a script
if started is not None and started.name == "nap.lab.cli.worker":
    assert run.run_work.__kwdefaults__ is not None
    run.run_work.__kwdefaults__ |= {"checkpoint_every_seconds": 0.1, "save_share": 1e6}

if __name__ == "__main__":
    from nap.lab.cli.main import main

    if "RAY_LOSES_CANCELS" in os.environ:
        import ray

        ray.cancel = lambda *_, **__: None
    MODULES["counting"] = "sweep_tiny"
    sys.exit(main())
