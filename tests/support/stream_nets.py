"""Networks with residual streams that the tests of policies and gains share."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap

WIDTH = 8


class Branch(nn.Module):
    """x + f(x), in the spelling that is asked for."""

    def __init__(self, width: int = WIDTH, *, form: str = "pre", bias: bool = False):
        super().__init__()
        self.norm, self.form = nn.LayerNorm(width), form
        self.one, self.two = nn.Linear(width, 16, bias=bias), nn.Linear(16, width, bias=bias)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "post":
            return self.norm(x + self.two(F.gelu(self.one(x))))
        y = self.two(F.gelu(self.one(self.norm(x))))
        if self.form == "swapped":
            return self.drop(y) + x
        if self.form == "in place":
            y += x
            return y
        return torch.add(x, 0.5 * y) if self.form == "scaled" else x + y


class Language(nn.Module):
    """Tokens (B, L) → logits, with names that say nothing."""

    def __init__(
        self, *, tied: bool = False, std: float = 0.02, share: float = 0.25, blocks: int = 2, **branch: Any
    ):
        super().__init__()
        self.a, self.b = nn.Embedding(11, WIDTH), nn.Embedding(6, WIDTH)
        self.c = nn.Sequential(*(Branch(**branch) for _ in range(blocks)))
        self.d, self.e = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 11, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                parameter.data.normal_(std=std).mul_(share if ".two." in name else 1.0)
        if tied:
            self.e.weight = self.a.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.a(tokens) + self.b(torch.arange(tokens.shape[1]))
        return self.e(self.d(self.c(x)))


TOKENS = torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(0))


def language(seed: int = 0, *, normalize: Any = None, **options: Any) -> Any:
    """A converted one."""
    torch.manual_seed(seed)
    net = Language(**options)
    nap.normalize_(net, TOKENS, **(normalize or {}))
    return net


def agent(gain: float = 1.0) -> Any:
    """Observations → logits, with a residual block; its head starts at `gain` times PyTorch's."""
    torch.manual_seed(0)
    net: Any = nn.Sequential(nn.Linear(5, WIDTH), Branch(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3))
    net[3].weight.data.mul_(gain)
    nap.normalize_(net, torch.randn(2, 5))
    return net


def learn(net: Any, optimizer: torch.optim.Optimizer, steps: int = 1, seed: int = 0) -> float:
    """So many updates of a language on random tokens; the loss before the last one."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        tokens = torch.randint(11, (8, 6), generator=generator)
        loss = F.cross_entropy(net(tokens).flatten(0, 1), (tokens + 1).flatten() % 11)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()
