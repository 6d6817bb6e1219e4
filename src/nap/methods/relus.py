"""Leaky ReLU in place of ReLU: a unit that keeps a gradient cannot die (§5.1); and what CReLU shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from nap.diagnostics.probing import as_arguments, evaluating
from nap.methods.contract import Method
from nap.methods.draws import Generators
from nap.validation import check_range


def exchange_relus_(model: nn.Module, make: Callable[[nn.ReLU], nn.Module]) -> None:
    """Puts `make(relu)` in the place of each `nn.ReLU`; one that is used in two places stays one."""
    relus = {name: m for name, m in model.named_modules() if type(m) is nn.ReLU}
    if not relus:
        raise ValueError(f"{type(model).__name__} has no nn.ReLU module to exchange")
    for name, relu in relus.items():
        if not name:
            raise ValueError("the model is itself an nn.ReLU; wrap it in nn.Sequential")
        if relu._forward_hooks or relu._forward_pre_hooks:
            raise ValueError(
                f"{name} carries hooks that would be lost with it; exchange activations before nap.normalize_"
            )
    new = {relu: make(relu).train(relu.training) for relu in relus.values()}
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.ReLU:
                setattr(parent, name, new[child])


_RELUS = {torch.relu, torch.relu_, torch.Tensor.relu, torch.Tensor.relu_, nn.functional.relu}


class _FunctionalReLUs(TorchFunctionMode):
    """Notes the modules that call ReLU as a function, other than `nn.ReLU` itself."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[tuple[str, nn.Module]] = []
        self.callers: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _RELUS and self.running and not isinstance(self.running[-1][1], nn.ReLU):
            self.callers.append(self.running[-1][0])
        return func(*args, **(kwargs or {}))


def refuse_functional_relu(model: nn.Module, inputs: Any) -> None:
    """Raises if the model calls ReLU as a function on these inputs, naming the modules that do."""
    mode = _FunctionalReLUs()
    handles = []
    try:
        for name, module in model.named_modules():
            title = name or type(model).__name__
            enter = lambda module, args, title=title: mode.running.append((title, module))  # noqa: E731
            leave = lambda module, args, output: mode.running.pop() and None  # noqa: E731
            handles.append(module.register_forward_pre_hook(enter))
            handles.append(module.register_forward_hook(leave))
        with evaluating(model), torch.no_grad(), mode:
            model(*as_arguments(inputs))
    finally:
        for handle in handles:
            handle.remove()
    if mode.callers:
        raise ValueError(
            f"ReLU is called as a function in {sorted(set(mode.callers))}, where it cannot be exchanged; "
            "make it an nn.ReLU module"
        )


@dataclass
class LeakyReLU(Method):
    """Each `nn.ReLU` becomes an `nn.LeakyReLU(slope)`, before training and before `nap.normalize_`.

    A ReLU written as a function (`F.relu`) cannot be exchanged: that is an error, found by running
    the model on the example inputs.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> LeakyReLU(0.1).prepare_(model, torch.ones(1, 2))
    >>> model[1]
    LeakyReLU(negative_slope=0.1)
    """

    slope: float = 0.01

    def __post_init__(self) -> None:
        check_range(self, "slope", self.slope, 0, 1)

    def prepare_(self, model: nn.Module, inputs: Any = (), *, generator: Generators | None = None) -> None:
        refuse_functional_relu(model, inputs)
        exchange_relus_(model, lambda old: nn.LeakyReLU(self.slope, inplace=old.inplace))
