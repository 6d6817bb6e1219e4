"""Plans do not depend on the type that a model computes in, whatever its casts do there."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nap

X = torch.linspace(-2, 2, 24).sin().reshape(3, 8)

BY_HAND: dict[str, Callable[[Tensor], Tensor]] = {
    "RMSNorm by a cast copy": lambda h: (
        h * torch.rsqrt(h.float().square().mean(-1, keepdim=True) + 1e-6).to(h)
    ),
    "RMSNorm in float": lambda h: (h.float() * torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True))).type_as(
        h
    ),
    "by its norm": lambda h: h / h.to(torch.float32).norm(dim=-1, keepdim=True).to(h.dtype),
    "by a detached norm": lambda h: h / h.detach().clone().norm(dim=-1, keepdim=True),
    "LayerNorm by hand": lambda h: (
        (h - h.mean(-1, keepdim=True)) / h.float().std(-1, keepdim=True).to(h.dtype)
    ),
    "no norm": lambda h: h * 2 + h.float().square().mean(-1, keepdim=True).to(h.dtype),
}


class Model(nn.Module):
    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.head, self.between = nn.Linear(8, 16, bias=False), nn.Linear(16, 3), between

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.between(self.first(x))))


@pytest.mark.parametrize("between", BY_HAND.values(), ids=BY_HAND.keys())
def test_what_is_planned_is_the_same_in_every_type(between: Any) -> None:
    plans = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        plan = nap.plan(Model(between).to(dtype), X.to(dtype))
        plans.append(([p.module for p in plan.placements], [row.role for row in plan.weights.values()]))
    assert plans[1:] == plans[:-1]
    assert bool(plans[0][0]) == (between is BY_HAND["no norm"])
