"""An experiment that takes no time, for tests of the command `nap run`."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Any, Literal

import torch

from nap.lab.datasets.images import DataMissing
from nap.lab.experiments.experiment import Experiment, Run
from nap.lab.runner.work import NotFinite
from nap.validation import check_range


@dataclass(frozen=True)
class TinyConfig:
    """Settings of the tiny experiment."""

    seeds: int = 3
    """How many seeds."""
    steps: int = 4
    """Steps of each run."""
    rate: float = 0.5
    """Learning rate."""
    mode: Literal["calm", "wild", "buggy", "stopped", "no-data"] = "calm"
    """What happens in the run `first` at step 2, or before it."""
    hidden_layers: tuple[int, ...] = (8, 8)
    """Widths."""
    seconds_per_step: float = 0.0
    """How slow it is."""

    def __post_init__(self) -> None:
        check_range(self, "seeds", self.seeds, 1)
        check_range(self, "steps", self.steps, 1, 10_000)
        check_range(self, "rate", self.rate, 0, 1)


class TinyWork:
    """Counts, and rows say how far."""

    unit = "steps"

    def __init__(self, config: TinyConfig, name: str):
        self.config, self.name = config, name
        self.total, self.done, self.steps_per_unit = config.steps, 0, config.seeds
        if name == "first" and config.mode == "no-data":
            raise DataMissing("cifar10 is not complete; run: nap data fetch cifar10")

    def step(self) -> list[dict[str, Any]]:
        time.sleep(self.config.seconds_per_step)
        if self.name == "first" and self.done == 1:
            self.mishap()
        self.done += 1
        common = {"experiment": "tiny", "run": self.name, "arm": self.name, "task": self.done}
        return [common | {"seed": seed, "loss": 1 / self.done} for seed in range(self.config.seeds)]

    def mishap(self) -> None:
        if self.config.mode == "wild":
            raise NotFinite("step 2, member 0: the loss is nan")
        if self.config.mode == "buggy":
            raise RuntimeError("a mistake\nin two lines")
        if self.config.mode == "stopped":
            os.kill(os.getpid(), signal.SIGTERM)

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]


def run(config: TinyConfig, name: str) -> Run:
    def start(device: torch.device) -> TinyWork:
        return TinyWork(config, name)

    return Run(name, config, start)


EXPERIMENT = Experiment(
    name="tiny",
    title="counting",
    shows="One can count.",
    scales={"demo": TinyConfig(), "small": TinyConfig(seeds=7), "paper": TinyConfig(seeds=9, steps=9)},
    runs=lambda config: [run(config, name) for name in ("first", "second")],
    datasets={"demo": "", "small": "digits", "paper": "cifar10"},
    folder="tiny",
)
