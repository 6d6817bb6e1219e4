"""A trial copy that holds no large weights: planning a model of billions takes seconds, and little memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from nap.conversion.trial import Watching, detached_copy, wake_
from nap.norms.norm import Norm
from nap.tracing.special import is_opaque
from nap.tracing.stand_ins import ShapeRecorder, StandIns

LARGE = 4_000_000  # numbers in the weights of a model; below it, planning on real values takes a blink
_GLANCE = 4096


def is_large(model: nn.Module) -> bool:
    """Whether leaving the weights' values out is worth it, or needed: on the meta device there are none."""
    return any(p.is_meta for p in model.parameters()) or sum(p.numel() for p in _liftable(model)) > LARGE


@dataclass(frozen=True)
class Light:
    """A trial copy with its matrices on the meta device, and what records it nevertheless."""

    twin: nn.Module
    watching: Watching
    device: torch.device  # where its forward runs

    def ground_norms_(self) -> None:
        """Norms that were inserted into the copy get values."""
        for module in self.twin.modules():
            if isinstance(module, Norm):
                for name, parameter in module.named_parameters(recurse=False):
                    if parameter.is_meta:
                        fill = torch.full(parameter.shape, float(name == "weight"), device=self.device)
                        setattr(module, name, nn.Parameter(fill))


def light_copy(model: nn.Module) -> Light:
    """The light copy of a model."""
    memo, real = {}, {}
    for parameter in _liftable(model):
        if parameter.is_meta or not is_zero(parameter):
            dtype = torch.promote_types(parameter.dtype, torch.float32)
            stand_in = nn.Parameter(parameter.detach().to("meta", dtype))
            memo[id(parameter)], real[id(stand_in)] = stand_in, parameter
    keep = {id(stand_in): stand_in for stand_in in memo.values()}
    stand_ins = StandIns(real, keep)
    twin = detached_copy(model, memo)
    _ground_(twin, stand_ins.device, set(keep))
    return Light(wake_(twin), partial(ShapeRecorder, stand_ins=stand_ins), stand_ins.device)


def is_zero(weight: Tensor) -> bool:
    """Whether it is all zeros; mostly a glance tells."""
    return not (bool(weight.detach()[0].flatten()[:_GLANCE].any()) or bool(weight.any()))


def _ground_(twin: nn.Module, device: torch.device, left: Collection[int]) -> None:
    """What else has no values in a model on the meta device gets some: ones, or zeros for indices."""
    for module in twin.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta and id(parameter) not in left:
                module._parameters[name] = nn.Parameter(torch.ones_like(parameter, device=device))
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                ones = buffer.dtype is torch.bool or buffer.is_floating_point()
                module._buffers[name] = torch.full_like(buffer, float(ones), device=device)


def _liftable(model: nn.Module) -> Iterator[nn.Parameter]:
    """The matrices that take part in products and the like; torch's fused modules read theirs themselves."""
    kept = {id(p) for m in model.modules() if is_opaque(m) for p in m.parameters()}
    for parameter in model.parameters():
        plain = type(parameter) is nn.Parameter and parameter.layout is torch.strided
        matrix = parameter.ndim >= 2 and parameter.numel() > 0 and parameter.is_floating_point()
        if plain and matrix and id(parameter) not in kept:
            yield parameter
