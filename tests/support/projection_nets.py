"""Small nets, a training step and a measure that the tests of projection share."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from nap.conversion.placement import Plan
from nap.projection.project import Projector
from nap.weights import PLAN_ATTRIBUTE, Role, Weight, WeightTable

F64 = torch.float64


def net(norm: Any = nn.LayerNorm, act: type[nn.Module] = nn.ReLU, **kw: Any) -> Any:
    """Two hidden layers, normalised outputs: every weight but none of the affine is scale-invariant."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 8, bias=False),
        norm(8, **kw),
        act(),
        nn.Linear(8, 7, bias=False),
        norm(7, **kw),
        act(),
        nn.Linear(7, 5, bias=False),
        norm(5, **kw),
    )
    for parameter in model.parameters():  # norms drift from (1, 0), as they do in training
        parameter.data += 0.1 * torch.randn(parameter.shape)
    return model


def traced(model: Any, *, homogeneous: bool = True) -> Any:
    """`model` as if it came from nap.normalize_: roles by name, the last matrix being the output."""
    rows = {}
    matrices = [name for name, p in model.named_parameters() if p.ndim >= 2]
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            role = Role.OUTPUT if name == matrices[-1] else Role.SCALE_INVARIANT
            rows[name] = Weight(name, role)
        else:
            part: Any = "offset" if name.endswith("bias") else "scale"
            rows[name] = Weight(name, Role.AFFINE, part=part, homogeneous=homogeneous)
    setattr(model, PLAN_ATTRIBUTE, Plan(weights=WeightTable(rows)))
    return model


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int = 0) -> None:
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(seed))
    x = x.to(next(model.parameters()).dtype)
    optimizer.zero_grad()
    (model(x) - 1).square().mean().backward()
    optimizer.step()


def worst(projector: Projector) -> float:
    """How far the worst weight is from its radius; what may grow, how far beyond."""
    growing = projector.plan.names("grow")
    off = ((name in growing, ratio - 1) for name, ratio in projector.norm_ratios().items())
    return max(gap if grows else abs(gap) for grows, gap in off)


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.5)


class Zoo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = nn.Conv1d(2, 3, 3), nn.Conv2d(2, 3, 3), nn.Conv3d(2, 3, 3)
        self.up = nn.ConvTranspose2d(2, 3, 2)
        self.table = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5)
        self.head.weight = self.table.weight
        self.experts = nn.Parameter(torch.randn(3, 4, 2) * torch.tensor([1.0, 10.0, 0.1]).view(3, 1, 1))
        self.batch = nn.BatchNorm1d(3)

    def rows(self) -> dict[str, Weight]:
        return {"experts": Weight("experts", Role.SCALE_INVARIANT, stacked=1, out_axis=2)}


def zoo() -> Zoo:
    torch.manual_seed(0)
    model = Zoo()
    setattr(model, PLAN_ATTRIBUTE, Plan(weights=WeightTable(model.rows())))
    return model
