"""The runs of a comparison: the user's function, called once for each arm, learning rate and seed."""

from __future__ import annotations

import hashlib
import inspect
import math
import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from nap.inspection import imported
from nap.lab.experiments.common.runs import seeded_runs
from nap.lab.experiments.compare.config import Arm, ArmName, CompareConfig, Settings
from nap.lab.experiments.experiment import Run
from nap.lab.loops.common.work import NetworkRun
from nap.presets import Name, named, prepare, prepare_baseline

DIGITS = 16  # of a checksum


@dataclass(frozen=True)
class Trial:
    """One training run, passed to the function of `nap compare`."""

    arm: ArmName
    lr: float
    seed: int
    device: torch.device

    def prepare(
        self, model: nn.Module, batch: Any, *, preset: Name | None = None, **options: Any
    ) -> Optimizer:
        """The optimizer of `model` at this trial's rate; before that, what the arm does to the model.

        Takes a preset and the options of `nap.prepare`, and does in the arm "NaP" what that does. In "norm
        only" the model gets the same norms and nothing else; in "plain" it stays as it is.

        >>> trial = Trial("norm only", 0.1, 0, torch.device("cpu"))
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> optimizer = trial.prepare(model, torch.randn(2, 4), preset="rl")
        >>> type(optimizer).__name__, optimizer.param_groups[0]["lr"], model[0].bias
        ('Adam', 0.1, None)
        """
        if self.arm == "NaP":
            return prepare(model, batch, preset=named(preset), lr=self.lr, **options).optimizer
        norms = self.arm == "norm only"
        return prepare_baseline(model, batch, norms=norms, preset=named(preset), lr=self.lr, **options)


Function = Callable[[Trial], "float | Iterable[float]"]


class Training:
    """The `Work` that calls the function: one unit, whose rows are the numbers that it returns."""

    unit, total, steps_per_unit = "training", 1, 1

    def __init__(self, function: Function, network: NetworkRun, device: torch.device):
        self._function, self._network, self.done = function, network, 0
        self._device = device

    def step(self) -> list[dict[str, Any]]:
        self.done, network = 1, self._network
        random.seed(network.seed)
        np.random.seed(network.seed)
        torch.manual_seed(network.seed)
        rate = network.settings.learning_rate
        trial = Trial(network.arm.name, rate, network.seed, self._device)
        common = {**network.row(), "goal": network.settings.goal, "learning_rate": rate}
        try:
            results = numbers(self._function(trial))
        except SystemExit as error:  # it would end nap compare
            raise RuntimeError(f"the function called sys.exit({error.code}); return its result") from error
        return [{**common, "step": n, "result": value} for n, value in enumerate(results, 1)]

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]


def numbers(returned: Any) -> list[float]:
    """The numbers that a function returned or yielded, up to the first that is not finite.

    >>> numbers(0.5), numbers(torch.tensor(0.5)), numbers(x for x in (1, math.nan, 2))
    ([0.5], [0.5], [1.0, nan])
    """
    values: Iterable[Any] = (
        returned if inspect.isgenerator(returned) or isinstance(returned, (list, tuple)) else [returned]
    )
    results = []
    for value in values:
        try:
            results.append(float(value))
        except (TypeError, ValueError, OverflowError):
            raise ValueError(
                f"the function gave a {type(value).__name__}; return its result, a number, or yield numbers "
                "whose mean is the result"
            ) from None
        if not math.isfinite(results[-1]):
            break
    if not results:
        raise ValueError("the function yielded nothing; return its result, a number, or yield numbers")
    return results


def runs(config: CompareConfig, function: Function | None = None) -> list[Run]:
    """A run for each arm and seed; `function` replaces the one that `config.target` names."""
    function = function or load(config.target)
    shared = {field.name: getattr(config, field.name) for field in fields(Settings)}
    settings = replace(Settings(**shared), sha256_of_target=sha256(config.target, function))
    arms = [Arm(name) for name in config.arms]
    return seeded_runs(config, arms, settings, partial(Training, function), {"experiment": "compare"})


@cache
def load(target: str) -> Function:
    """The function named FILE.py:FUNCTION. Files in its folder can be imported, also later."""
    folder = str(Path(target.rpartition(":")[0]).resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return imported(target, takes=("trial",))


def sha256(target: str, function: Function) -> str:
    """The checksum of the target file or of the function's source; "" for one typed at a prompt."""
    if target:
        return hashlib.sha256(Path(target.rpartition(":")[0]).read_bytes()).hexdigest()[:DIGITS]
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:DIGITS]
    except (OSError, TypeError):
        return ""
