"""Short runs with limited updates, for the tests of limits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nap.projection.project import Projector
from optimizers import KINDS
from projection_nets import net, step

LR = 0.02
Optimizers = list[torch.optim.Optimizer]


def limited_run(
    kind: str, seeds: range, *, louder: float = 1.0, **options: Any
) -> tuple[nn.Module, Optimizers, Projector]:
    """A net in float64, trained with these limits; `louder` multiplies all updates of its matrices."""
    model = net().double()
    optimizers = KINDS[kind](model, LR)
    if louder != 1:
        for optimizer in optimizers:
            _make_louder(optimizer, louder)
    projector = Projector(model, **options).attach(*optimizers)
    learn(model, optimizers, seeds)
    return model, optimizers, projector


def learn(model: nn.Module, optimizers: Optimizers, seeds: range) -> None:
    """An update on the batch of each seed."""
    for seed in seeds:
        model.zero_grad()
        step(model, optimizers[0], seed)
        for other in optimizers[1:]:
            other.step()


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def _make_louder(optimizer: torch.optim.Optimizer, factor: float) -> None:
    matrices = [p for group in optimizer.param_groups for p in group["params"] if p.ndim == 2]
    before: list[Tensor] = []

    def note(*_: Any) -> None:
        before[:] = [matrix.detach().clone() for matrix in matrices]

    def multiply(*_: Any) -> None:
        for matrix, start in zip(matrices, before, strict=True):
            matrix.data.copy_(start + factor * (matrix.data - start))

    optimizer.register_step_pre_hook(note)
    optimizer.register_step_post_hook(multiply)
