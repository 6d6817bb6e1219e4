"""Mixtures of experts: as modules, as stacked parameters, with top-k routing."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .entry import Family

FAMILY = Family("experts")
WIDTH, EXPERTS = 32, 3


class DenseMixture(nn.Module):
    """Every expert runs; a softmax weighs them."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.norm = nn.Linear(WIDTH, EXPERTS), nn.LayerNorm(WIDTH)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 48), nn.ReLU(), nn.Linear(48, WIDTH)) for _ in range(EXPERTS)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        weights = self.router(x).softmax(-1)
        return sum(
            (weights[..., i : i + 1] * e(x) for i, e in enumerate(self.experts)), start=torch.zeros_like(x)
        )


class TopKMixture(DenseMixture):
    """Tokens go to their two best experts, in a loop as Mixtral wrote it."""

    def forward(self, x: Tensor) -> Tensor:
        flat = self.norm(x).flatten(0, -2)
        weights, chosen = self.router(flat).softmax(-1).topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            token, place = torch.where(chosen == i)
            out.index_add_(0, token, expert(flat[token]) * weights[token, place, None])
        return out.view_as(x)


class StackedExperts(nn.Module):
    """The expert matrices as modules of their own: x (expert, token, in) times weight (expert, in, out)."""

    def __init__(self, inside: int, outside: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, inside, outside) / inside**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.bmm(x, self.weight)


class EinsumExperts(StackedExperts):
    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("eti,eio->eto", x, self.weight)


class StackedMixture(nn.Module):
    def __init__(self, kind: type[StackedExperts]):
        super().__init__()
        self.router, self.norm = nn.Linear(WIDTH, EXPERTS, bias=False), nn.LayerNorm(WIDTH)
        self.up, self.down = kind(WIDTH, 48), kind(48, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        flat = self.norm(x).flatten(0, -2)
        weights = self.router(flat).softmax(-1)
        each = self.down(F.gelu(self.up(flat.expand(EXPERTS, -1, -1))))
        return torch.einsum("eto,te->to", each, weights).view_as(x)


class Residual(nn.Module):
    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def _net(first: nn.Module, second: nn.Module) -> tuple[nn.Module, Tensor]:
    net = nn.Sequential(
        nn.Linear(8, WIDTH), Residual(first), Residual(second), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)
    )
    return net, torch.randn(2, 6, 8)


FAMILY.add("mixture of experts, dense", lambda: _net(DenseMixture(), DenseMixture()))
FAMILY.add("mixture of experts, top-k loop", lambda: _net(TopKMixture(), TopKMixture()))
FAMILY.add(
    "mixture of experts, stacked bmm",
    lambda: _net(StackedMixture(StackedExperts), StackedMixture(StackedExperts)),
)
FAMILY.add(
    "mixture of experts, stacked einsum",
    lambda: _net(StackedMixture(EinsumExperts), StackedMixture(EinsumExperts)),
)
