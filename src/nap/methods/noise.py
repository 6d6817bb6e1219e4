"""Gaussian noise on each update: a heuristic form of Langevin dynamics (§5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nap.methods.contract import Elementwise, Training
from nap.methods.draws import normal_like
from nap.validation import check_range


def langevin_std(lr: float | Tensor, temperature: float) -> float | Tensor:
    """√(2 · lr · temperature): with SGD steps, θ then samples from exp(−loss/temperature) as lr → 0.

    >>> langevin_std(0.02, 1.0)
    0.2
    """
    return (2 * lr * temperature) ** 0.5


@dataclass
class Langevin(Elementwise):
    """θ ← θ + std · ξ after each optimizer step, ξ standard normal, fresh for each entry.

    Args:
        std: standard deviation of the noise on each entry, whatever the learning rate.
        temperature: in place of `std`: noise of √(2 · lr · temperature), which follows the rate.
    """

    std: float | None = None
    temperature: float | None = None

    def __post_init__(self) -> None:
        if (self.std is None) == (self.temperature is None):
            raise ValueError("Langevin takes either std= or temperature=, exactly one of them")
        name = "std" if self.temperature is None else "temperature"
        check_range(self, name, getattr(self, name), 0)

    @torch.no_grad()
    def after_step_(self, training: Training, inputs: Any = None) -> None:
        for name, theta in self.mine(training.parameters).items():
            theta.add_(normal_like(theta, training.generator) * self._std(training.learning_rate(name)))

    def _std(self, lr: float | Tensor) -> float | Tensor:
        if self.std is not None:
            return self.std
        assert self.temperature is not None
        return langevin_std(lr, self.temperature)
