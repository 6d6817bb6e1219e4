"""Norms of parameters and gradients: the 2-norm of everything, as if it were one vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, overload

import torch
from torch import Tensor, nn

from nap.projection.sphere import norms_of

Tensors = nn.Module | Mapping[str, Tensor]


@overload
def parameter_norm(model: Tensors, per_layer: Literal[False] = False) -> Tensor: ...
@overload
def parameter_norm(model: Tensors, per_layer: Literal[True]) -> dict[str, Tensor]: ...
def parameter_norm(model: Tensors, per_layer: bool = False) -> Tensor | dict[str, Tensor]:
    """‖θ‖ of a model or of a mapping of named tensors; a tied weight counts once.

    Args:
        per_layer: one norm for each module that owns parameters, by the module's name.

    >>> layer = nn.Linear(4, 1, bias=False)
    >>> _ = nn.init.ones_(layer.weight)
    >>> parameter_norm(layer)
    tensor(2.)
    >>> list(parameter_norm(nn.Sequential(layer, nn.ReLU(), layer), per_layer=True))
    ['0']
    """
    tensors = dict(model.named_parameters()) if isinstance(model, nn.Module) else dict(model)
    if not tensors:
        raise ValueError(f"{_title(model)} has no parameters, so it has no parameter norm")
    return _norms(tensors, per_layer)


@overload
def gradient_norm(model: Tensors, per_layer: Literal[False] = False) -> Tensor: ...
@overload
def gradient_norm(model: Tensors, per_layer: Literal[True]) -> dict[str, Tensor]: ...
def gradient_norm(model: Tensors, per_layer: bool = False) -> Tensor | dict[str, Tensor]:
    """‖∇θ‖ from the `.grad` of a model's parameters, or of a mapping of named gradients.

    Parameters without a gradient (frozen, unused) add nothing; a model where none has one is an error.

    >>> layer = nn.Linear(3, 1, bias=False)
    >>> layer(torch.ones(1, 3)).sum().backward()
    >>> gradient_norm(layer)
    tensor(1.7321)
    """
    if isinstance(model, nn.Module):
        tensors = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    else:
        tensors = dict(model)
    if not tensors:
        raise ValueError(f"no parameter of {_title(model)} has a gradient; call loss.backward() first")
    return _norms(tensors, per_layer)


def _norms(tensors: Mapping[str, Tensor], per_layer: bool) -> Tensor | dict[str, Tensor]:
    norms = {name: norms_of(tensor).reshape(()) for name, tensor in tensors.items()}
    if not per_layer:
        return _combine(list(norms.values()))
    layers: dict[str, list[Tensor]] = {}
    for name, norm in norms.items():
        layers.setdefault(name.rpartition(".")[0], []).append(norm)
    return {layer: _combine(of_layer) for layer, of_layer in layers.items()}


def _combine(norms: list[Tensor]) -> Tensor:
    return norms_of(torch.stack([n.to(norms[0].device) for n in norms])).reshape(())


def _title(model: Tensors) -> str:
    return type(model).__name__ if isinstance(model, nn.Module) else "an empty mapping"
