"""Networks written as their parts and a function of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn


class Written(nn.Module):
    """`forward(net, *inputs)` on parts that are modules, parameters or, where they are tensors, buffers.

    >>> net = Written(lambda net, x: net.b(net.a(x).relu()), a=nn.Linear(4, 8), b=nn.Linear(8, 2))
    >>> [name for name, _ in net.named_children()]
    ['a', 'b']
    """

    def __init__(self, forward: Callable[..., Any], **parts: Any):
        super().__init__()
        self._written = forward
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._written(self, *args, **kwargs)


def mlp(inputs: int, hidden: int, outputs: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), activation(), nn.Linear(hidden, outputs))
