"""Shrinking the parameters outside the loss: decoupled weight decay, and shrink-and-perturb."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nap.methods.contract import Elementwise, Training
from nap.methods.draws import fresh_like
from nap.validation import check_range


def decayed(theta: Tensor, lr: float | Tensor, rate: float) -> Tensor:
    """(1 − lr · rate) · θ: the decay of AdamW (Loshchilov & Hutter, 2019).

    >>> decayed(torch.tensor([2.0]), lr=0.1, rate=0.5)
    tensor([1.9000])
    """
    return theta * (1 - lr * rate)


def shrunk_and_perturbed(theta: Tensor, fresh: Tensor, shrink: float, perturb: float) -> Tensor:
    """shrink · θ + perturb · θ', θ' a fresh initialisation (Ash & Adams, 2020).

    >>> shrunk_and_perturbed(torch.tensor([2.0]), torch.tensor([1.0]), shrink=0.5, perturb=0.1)
    tensor([1.1000])
    """
    return shrink * theta + perturb * fresh


@dataclass
class WeightDecay(Elementwise):
    """Decoupled weight decay at the present learning rate: on top of Adam it is AdamW exactly.

    It acts before the optimizer's step, as AdamW does, so the step itself is not decayed.
    """

    rate: float

    def __post_init__(self) -> None:
        check_range(self, "rate", self.rate, 0)

    @torch.no_grad()
    def before_step_(self, training: Training) -> None:
        for name, theta in self.mine(training.parameters).items():
            theta.copy_(decayed(theta, training.learning_rate(name), self.rate))


@dataclass
class ShrinkAndPerturb(Elementwise):
    """θ ← shrink · θ + perturb · fresh initialisation, at each task change or every so many updates.

    Ash & Adams (2020) add it between tasks. The fresh values are drawn from the initial ones
    (`fresh_like`), so scales of a norm move towards shrink + perturb. The optimizer's moments stay.

    Args:
        every: updates between two applications; None: at task changes only.
    """

    host_side = True

    shrink: float
    perturb: float
    every: int | None = None

    def __post_init__(self) -> None:
        check_range(self, "shrink", self.shrink, 0, 1)
        check_range(self, "perturb", self.perturb, 0)
        check_range(self, "every", 1 if self.every is None else self.every, 1)
        self._updates = 0

    def after_step_(self, training: Training, inputs: Any = None) -> None:
        self._updates += 1
        if self.every is not None and self._updates % self.every == 0:
            self._apply_(training)

    def at_task_change_(self, training: Training) -> None:
        if self.every is None:
            self._apply_(training)

    @torch.no_grad()
    def _apply_(self, training: Training) -> None:
        for name, theta in self.mine(training.parameters).items():
            fresh = fresh_like(training.initial[name], training.generator, stacked=training.stacked)
            theta.copy_(shrunk_and_perturbed(theta, fresh, self.shrink, self.perturb))

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self._updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._updates = state["updates"]
