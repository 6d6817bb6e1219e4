"""What the caller says of functions and modules that cannot be looked into: activations, or linear maps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nap.norms.norm import CHILD, Norm
from nap.tracing import special
from nap.tracing.call import Call
from nap.tracing.meetings import follow_nonlinearity
from nap.tracing.operations import Kind, operation_name
from nap.tracing.record import Frame, Use
from nap.tracing.values import merge, tensors_in

if TYPE_CHECKING:
    from nap.tracing.recorder import Recorder

Part = str | type | nn.Module | Callable[..., Any]


@dataclass(frozen=True)
class Told:
    """Names of functions, classes and modules, by what the caller says they are."""

    activations: frozenset[str] = frozenset()
    linear: frozenset[str] = frozenset()

    def kind(self, names: Iterable[str]) -> Kind | None:
        names = set(names)
        if names & self.activations:
            return Kind.ACTIVATION
        return Kind.SUM if names & self.linear else None

    @property
    def names(self) -> frozenset[str]:
        return self.activations | self.linear


NOTHING = Told()


def name_of(part: Part, model: nn.Module) -> str:
    """The name by which a part is told: of a module its path, of a class or a function its own.

    >>> name_of(nn.GELU, nn.Identity()), name_of(torch.special.erfcx, nn.Identity())
    ('torch.nn.modules.activation.GELU', 'erfcx')
    """
    if isinstance(part, str):
        return part
    if isinstance(part, nn.Module):
        path = next((path for path, module in model.named_modules() if module is part), None)
        if path is None:
            raise ValueError(f"this {type(part).__name__} is no part of the model; name its class instead")
        return path
    if isinstance(part, type):
        return f"{part.__module__}.{part.__qualname__}"
    return operation_name(part)


def names_of(module: nn.Module, path: str) -> set[str]:
    """All names that a module goes by."""
    kind = type(module)
    names = {path, kind.__name__, f"{kind.__module__}.{kind.__qualname__}"} - {""}
    return names | {str(module.original_name)} if isinstance(module, torch.jit.ScriptModule) else names


def follow(
    rec: Recorder,
    kind: Kind,
    module: nn.Module,
    frame: Frame,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    output: Any,
) -> None:
    """Gives the outputs of such a module their values."""
    tensors = list(tensors_in((args, kwargs)))
    operands = [rec.value(t) for t in tensors]
    parameters = {n: p for n, p in module.named_parameters() if not n.startswith(f"{CHILD}.")}
    names = {leaf: f"{frame.site}.{leaf}".lstrip(".") for leaf in parameters}
    rec.flow.seen.update(names.values())
    matrices = frozenset(names[n] for n, p in parameters.items() if p.ndim > 1)
    rec.frames.append(frame)
    if kind is Kind.ACTIVATION:
        value = follow_nonlinearity(kind)(Call(rec, type(module).__name__, args, kwargs, tensors, operands))
        assert not callable(value)
        rec.flow.closed.update(dict.fromkeys(matrices, frame.site))
    else:
        value = merge(operands)
        if matrices:
            spatial = max(p.ndim for p in parameters.values()) - 2
            use = Use(matrices, "linear", -1 - spatial, spatial)
            value = rec.layer(value, use, operands, alone=all(p.ndim > 1 for p in parameters.values()))
    rec.frames.pop()
    for tensor in tensors_in(output):
        rec.put(tensor, value)
    norm = getattr(module, CHILD, None)
    if isinstance(norm, Norm) and isinstance(output, Tensor):  # its hook ran before this one
        given = output.clone()
        rec.put(given, value)
        weights = [attrgetter(path)(module) for path in module.__dict__[f"{CHILD}_source"].weights]
        inside = replace(frame, site=f"{frame.site}.{CHILD}")
        special.follow(rec, norm, inside, (given, *weights), {}, output)
