"""Optimizers that torch does not have, each as its paper has it, for tests that any optimizer must pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class _Simple(torch.optim.Optimizer):
    """A step that visits each parameter with its group and state."""

    def __init__(self, params: Any, **options: Any):
        super().__init__(params, options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.move_(parameter, parameter.grad, group, self.state[parameter])

    def move_(self, weight: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        raise NotImplementedError


class Lion(_Simple):
    """The sign of an interpolated momentum (Chen et al., 2023)."""

    def move_(self, weight: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        momentum = state.setdefault("momentum", torch.zeros_like(weight))
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.sub_(group["lr"] * momentum.lerp(gradient, 1 - 0.9).sign())
        momentum.lerp_(gradient, 1 - 0.99)


class ScheduleFree(_Simple):
    """SGD without a schedule (Defazio et al., 2024): the model holds y, between z and its average."""

    def move_(self, weight: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        z = state.setdefault("z", weight.clone())
        share = 1 / (state.setdefault("steps", 0) + 1)
        state["steps"] += 1
        weight.lerp_(z, share)
        weight.add_(gradient, alpha=group["lr"] * (0.9 * (1 - share) - 1))
        z.sub_(gradient, alpha=group["lr"])


class Shampoo(_Simple):
    """L^(−1/4)·G·R^(−1/4) with the sums of GGᵀ and GᵀG (Gupta et al., 2018); Adagrad for vectors."""

    def move_(self, weight: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        if gradient.ndim != 2:
            total = state.setdefault("total", torch.full_like(weight, 1e-6)).add_(gradient.square())
            weight.sub_(group["lr"] * gradient / total.sqrt())
            return
        rows, columns = (torch.eye(size).to(gradient) * 1e-6 for size in gradient.shape)
        left = state.setdefault("left", rows).add_(gradient @ gradient.T)
        right = state.setdefault("right", columns).add_(gradient.T @ gradient)
        weight.sub_(group["lr"] * _root(left) @ gradient @ _root(right))


def _root(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values.clamp(min=1e-12) ** -0.25) @ vectors.T


Make = Callable[[nn.Module, float], list[torch.optim.Optimizer]]


def of_all(kind: Callable[..., torch.optim.Optimizer], **options: Any) -> Make:
    return lambda model, lr: [kind(model.parameters(), lr=lr, **options)]


def muon(model: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
    """Matrices with Muon, all else with AdamW."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    return [torch.optim.Muon(matrices, lr=lr), torch.optim.AdamW(others, lr=lr)]


KINDS: dict[str, Make] = {
    "SGD": of_all(torch.optim.SGD, momentum=0.9),
    "AdamW": of_all(torch.optim.AdamW),
    "Adafactor": of_all(torch.optim.Adafactor),
    "Lion": of_all(Lion, weight_decay=0.0),
    "ScheduleFree": of_all(ScheduleFree),
    "Shampoo": of_all(Shampoo),
    "Muon": muon,
}
KINDS = {kind: make for kind, make in KINDS.items() if kind != "Muon" or hasattr(torch.optim, "Muon")}
