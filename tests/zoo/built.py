"""Builders of parts, and inputs, for networks that are written as a function of their parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .entry import Family
from .written import Written, mlp

Part = Callable[[], Any]
_GENERATOR = torch.Generator().manual_seed(3)
ROWS = torch.randn(4, 6, generator=_GENERATOR)
SERIES = torch.randn(2, 5, 8, generator=_GENERATOR)
IMAGES = torch.randn(2, 8, 6, 6, generator=_GENERATOR)


def entries(family: Family) -> Callable[..., Any]:
    """A decorator that adds a forward to a family; parts are functions, so that each build has its own.

    >>> family = Family("example")
    >>> @entries(family)("one layer", ROWS, layer=linear(6, 2))
    ... def forward(n, x):
    ...     return n.layer(x)
    >>> family[0].build()[0](ROWS).shape
    torch.Size([4, 2])
    """

    def net(name: str, x: Any = ROWS, refusal: str | None = None, rnn: str = "error", **parts: Part) -> Any:
        inputs = x if isinstance(x, tuple) else (x,)

        def add(forward: Callable[..., Any]) -> Callable[..., Any]:
            def build() -> tuple[nn.Module, tuple[Any, ...]]:
                return Written(forward, **{name: part() for name, part in parts.items()}), inputs

            family.add(name, build, refusal=refusal, options={"rnn": rnn})
            return forward

        return add

    return net


def linear(inputs: int, outputs: int, bias: bool = True) -> Part:
    return lambda: nn.Linear(inputs, outputs, bias)


def conv(inputs: int, outputs: int, size: int = 1, groups: int = 1) -> Part:
    return lambda: nn.Conv2d(inputs, outputs, size, padding=size // 2, groups=groups)


def conv1d(inputs: int, outputs: int, size: int = 3, groups: int = 1) -> Part:
    return lambda: nn.Conv1d(inputs, outputs, size, padding=size // 2, groups=groups)


def matrix(*shape: int) -> Part:
    return lambda: nn.Parameter(torch.randn(*shape) / shape[-1] ** 0.5)


def vector(*shape: int) -> Part:
    return lambda: nn.Parameter(torch.randn(*shape) * 0.3)


def perceptron(inputs: int, hidden: int, outputs: int) -> Part:
    return lambda: mlp(inputs, hidden, outputs)
