"""One architecture of the zoo: how to build it, and what may be asked of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Entry:
    """An architecture with tiny random weights and example inputs.

    >>> small = Entry("linear", "mlp", lambda: (nn.Linear(2, 1), (torch.ones(2, 2),), {}))
    >>> small.build()[0]
    Linear(in_features=2, out_features=1, bias=True)
    """

    name: str
    family: str
    builder: Callable[[], Built]
    options: Mapping[str, Any] = field(default_factory=dict)  # for nap.normalize_
    refusal: str | None = None  # a regular expression: normalize_ must raise ValueError matching it
    batched: bool = True  # axis 0 of every example tensor that has two rows lists samples
    squared: str | None = None  # layers whose results are multiplied with themselves, which the oracle misses
    causal: int | None = None  # the time axis of the first input and the first output

    def build(self, device: str = "cpu") -> Built:
        """The model in eval mode with its arguments; the same numbers each time."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model, args, kwargs = self.builder()
        move = partial(tree_map_only, torch.Tensor, lambda tensor: tensor.to(device))
        return model.eval().to(device), move(args), move(kwargs)


class Family(list[Entry]):
    """Entries of one family; decorate a builder with `family.entry(name)` to add it."""

    def __init__(self, name: str):
        super().__init__()
        self.name = name

    def entry(self, name: str, **about: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
        def add(builder: Callable[[], Any]) -> Callable[[], Any]:
            self.append(Entry(name, self.name, lambda: _complete(builder()), **about))
            return builder

        return add

    def add(self, name: str, builder: Callable[[], Any], **about: Any) -> None:
        self.entry(name, **about)(builder)


def _complete(built: Any) -> Built:
    """(model, args) or (model, args, kwargs), where a lone tensor stands for its tuple."""
    model, args, *rest = built
    args = (args,) if isinstance(args, torch.Tensor) else tuple(args)
    return model, args, dict(*rest)
