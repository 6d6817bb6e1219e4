"""What passes through norms, feature by feature, while a model runs on batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nap.conversion.trial import Example, explained, fixed_randomness
from nap.norms.members import MemberNorm
from nap.norms.norm import Norm
from nap.tracing.values import held_tensors

Outputs = list[list[Tensor]]  # of each batch, the tensors that the model returned
See = Callable[[str, Tensor], None]


@dataclass
class Statistics:
    """Mean, variance and mean square of each feature, over all that was seen."""

    count: int = 0
    total: Tensor | None = None
    squares: Tensor | None = None

    def add(self, features: Tensor) -> None:
        """Samples of shape (n, features)."""
        wide = features.double()
        total, squares = wide.sum(0), wide.square().sum(0)
        self.total = total if self.total is None else self.total + total
        self.squares = squares if self.squares is None else self.squares + squares
        self.count += len(features)

    @property
    def mean(self) -> Tensor:
        assert self.total is not None
        return self.total / self.count

    @property
    def square(self) -> Tensor:
        assert self.squares is not None
        return self.squares / self.count

    @property
    def variance(self) -> Tensor:
        return (self.square - self.mean.square()).clamp(min=0)


@dataclass
class Followed:
    """The statistics of each place by name, in the order of execution, and what the model returned."""

    statistics: dict[str, Statistics] = field(default_factory=dict)
    outputs: Outputs = field(default_factory=list)

    @property
    def order(self) -> list[str]:
        return list(self.statistics)


def pairs(outputs: Outputs, others: Outputs) -> list[tuple[Tensor, Tensor]]:
    """Floating outputs of two runs, side by side."""
    return [
        (a, b)
        for mine, theirs in zip(outputs, others, strict=True)
        for a, b in zip(mine, theirs, strict=True)
        if a.is_floating_point()
    ]


def follow(
    model: nn.Module,
    places: Collection[str],
    examples: Sequence[Example],
    idle: Mapping[str, Tensor | None] | None = None,
) -> Followed:
    """Runs the model on all batches, in eval mode, and notes what comes out of norms and enters BatchNorms.

    `places` names these. `idle` norms do nothing but add a tensor, if there is one.
    """
    found = Followed()

    def note(name: str, features: Tensor) -> None:
        found.statistics.setdefault(name, Statistics()).add(features)

    with watched(model, places, note, idle):
        found.outputs = run(model, examples)
    return found


def run(model: nn.Module, examples: Sequence[Example]) -> Outputs:
    """What the model returns for each batch."""
    outputs = []
    for args, kwargs in examples:
        with torch.no_grad(), fixed_randomness(model), explained(model):
            outputs.append([t.clone() for t in held_tensors(model(*args, **kwargs))])
    return outputs


@contextmanager
def watched(
    model: nn.Module,
    places: Collection[str],
    see: See,
    idle: Mapping[str, Tensor | None] | None = None,
    *,
    behind: bool = False,
) -> Iterator[None]:
    """While inside, `see` gets name and features, (samples, features), of each place that is passed.

    Of a BatchNorm it is what enters it, or, with `behind`, what it makes of that.
    """
    handles = []
    for name in places:
        module = model.get_submodule(name)
        if isinstance(module, Norm):
            handles.append(module.register_forward_hook(_on_norm(name, idle, see)))
        else:
            handles.append(module.register_forward_hook(_on_batch_norm(name, behind, see)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _on_norm(name: str, idle: Mapping[str, Tensor | None] | None, see: See) -> Any:
    def hook(norm: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        assert isinstance(norm, Norm)
        if idle is None or name not in idle:
            see(name, by_features(norm, output))
            return None
        added = idle[name]
        value: Tensor = args[0] if added is None else args[0] + added
        see(name, by_features(norm, value))
        return value

    return hook


def _on_batch_norm(name: str, behind: bool, see: See) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        values = output if behind else args[0]
        see(name, values.movedim(1, -1).flatten(0, -2))

    return hook


def by_features(norm: Norm, values: Tensor) -> Tensor:
    """(samples, features) of what goes through a norm; members of a stack count as features."""
    last = -1 if norm.layout == "features" else -1 - norm.spatial
    kept = (*norm.axes, last) if isinstance(norm, MemberNorm) else (last,)
    moved = values.movedim(kept, tuple(range(-len(kept), 0)))
    return moved.flatten(-len(kept)).reshape(-1, moved.shape[-len(kept) :].numel())
