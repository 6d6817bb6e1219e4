"""Running a model to look at it, without leaving a trace in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; each module's mode and the global random state are restored.

    >>> model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2).eval())
    >>> with evaluating(model):
    ...     _ = model(torch.ones(1, 2))
    >>> [module.training for module in model]
    [True, False]
    """
    modes = {module: module.training for module in model.modules()}
    with forked_random_state(model):
        try:
            model.eval()
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode


def forked_random_state(model: nn.Module) -> AbstractContextManager[None]:
    """Restore the global random state, of the CPU and of the model's devices, on exit."""
    cuda = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    return torch.random.fork_rng(devices=sorted(cuda))


def as_arguments(inputs: Any) -> tuple[Any, ...]:
    """The arguments of a model: a tuple lists them, anything else is the only one."""
    return inputs if isinstance(inputs, tuple) else (inputs,)


def outputs_of(model: nn.Module, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """The model's output under these parameters: one tensor with the batch axis first, or an error."""
    outputs = torch.func.functional_call(model, dict(parameters), (inputs,))
    if not isinstance(outputs, Tensor) or outputs.ndim < 1 or outputs.shape[0] != inputs.shape[0]:
        raise ValueError(
            f"{type(model).__name__} must return one tensor with a row for each input, but it returned "
            f"{tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__}; "
            "wrap it in a module that selects the output to differentiate"
        )
    return outputs


def detached(model: nn.Module, parameters: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """The parameters to differentiate: the model's own unless given; without a graph of their own."""
    own = parameters if parameters is not None else dict(model.named_parameters())
    return {name: tensor.detach() for name, tensor in own.items()}
