"""What tests ask of models whose norms are computed together with their BatchNorms."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def compared(model: nn.Module, other: nn.Module, x: Tensor) -> None:
    """Outputs, gradients and buffers of both are the same."""
    for net in (model, other):
        net.zero_grad()
    found, expected = model(x), other(x)
    torch.testing.assert_close(found, expected)
    for out in (found, expected):
        out.square().mean().backward()
    ours, theirs = dict(model.named_parameters()), dict(other.named_parameters())
    for name, parameter in ours.items():
        torch.testing.assert_close(parameter.grad, theirs[name.removeprefix("_orig_mod.")].grad)
    torch.testing.assert_close(list(model.buffers()), list(other.buffers()))


def batch_norms(model: nn.Module, x: Tensor) -> int:
    """How often the compiler sees one."""
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compile(model, backend=keep)(x)
    return sum(node.target is F.batch_norm for graph in graphs for node in graph.graph.nodes)
