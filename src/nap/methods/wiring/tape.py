"""Record one forward pass: the inputs of each layer, activation and norm.

The pass runs on a copy of the model. The output of each Linear, convolution and activation is replaced by a
new leaf of positive random values. So a later tensor depends only on the leaves that no other layer separates
from it, and the Jacobians between them are cheap. Norms count as the identity: they do not permute features.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map

from nap.diagnostics.activations import ACTIVATIONS
from nap.diagnostics.probing import as_arguments, forked_random_state
from nap.norms.norm import Norm, has_parts

PRODUCERS = (nn.Linear, nn.modules.conv._ConvNd)
_NORMS = (Norm, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)

Kind = Literal["producer", "activation", "norm", "other"]  # other: embeddings and the model's inputs


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer, activation or norm: its input, and a leaf tensor in place of its output."""

    kind: Kind
    name: str
    module: nn.Module
    index: int  # among the calls of this module
    read: Tensor
    leaf: Tensor | None = None  # norms have none


@dataclass
class Tape:
    """The recorded calls of one forward in order, and the tensors that the model returned."""

    calls: list[Call] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    def input(self, value: Any) -> Any:
        """Record a float input of the model and return it with a gradient; return anything else as it is."""
        if not _is_float(value):
            return value
        leaf = value.detach().clone().requires_grad_()
        self.calls.append(Call("other", "the model's input", nn.Identity(), 0, leaf.detach(), leaf))
        return leaf.clone()

    def count(self, name: str) -> int:
        return sum(call.name == name for call in self.calls)


def record(model: nn.Module, inputs: Any, activations: tuple[type[nn.Module], ...] = ACTIVATIONS) -> Tape:
    """The tape of one forward in eval mode on a copy of `model`."""
    twin = copy.deepcopy(model).eval().requires_grad_(False)
    if any(p.dtype in (torch.float16, torch.bfloat16) for p in twin.parameters()):
        twin = twin.float()
        inputs = tree_map(lambda t: t.float() if _is_float(t) else t, inputs)
    generator = torch.Generator().manual_seed(0)
    for parameter in twin.parameters():
        if parameter.ndim < 2 or not parameter.any():  # a gate of zero would hide what it gates
            parameter.copy_(_positive(parameter, generator))
    for module in twin.modules():
        if isinstance(getattr(module, "inplace", None), bool):
            module.inplace = False  # type: ignore[assignment]
    tape = Tape()
    with ExitStack() as stack:
        stack.enter_context(forked_random_state(twin))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # the fused ones have no second derivative
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_recording(twin, tape, activations, generator))
        result = twin(*as_arguments(tree_map(tape.input, inputs)))
    tape.outputs = [t for t in tree_leaves(result) if _is_float(t)]
    return tape


@contextmanager
def _recording(
    model: nn.Module, tape: Tape, activations: tuple[type[nn.Module], ...], generator: torch.Generator
) -> Iterator[None]:
    def cut(kind: Kind, name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            read = _first(args, kwargs)
            if not isinstance(output, Tensor) or not isinstance(read, Tensor):
                return None
            leaf = _positive(output, generator).requires_grad_()
            # Cloned, because the model may go on to change either of them in place.
            tape.calls.append(Call(kind, name, module, tape.count(name), read.clone(), leaf))
            return leaf.clone()

        return hook

    def pass_norm(name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            read = _first(args, kwargs)
            if not isinstance(read, Tensor) or not _normalises(module, args, read, output):
                return None
            tape.calls.append(Call("norm", name, module, tape.count(name), read.clone()))
            return read

        return hook

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
                hook, first = cut("other", name), True
            elif isinstance(module, PRODUCERS):
                # In front of the hook of nap.normalize_, so that the norm it applies is seen as one.
                hook, first = cut("producer", name), True
            elif isinstance(module, activations):
                hook, first = cut("activation", name), False
            elif "norm" in type(module).__name__.lower() and not has_parts(module):
                hook, first = pass_norm(name), False
            else:
                continue
            handle = module.register_forward_hook(hook, prepend=first, with_kwargs=True)
            stack.callback(handle.remove)
        yield


def _normalises(module: nn.Module, args: Any, read: Tensor, output: Any) -> bool:
    if not isinstance(output, Tensor) or output.shape != read.shape:
        return False
    if isinstance(module, _NORMS):
        return True
    tripled = module.forward(3 * read, *args[1:])
    return torch.allclose(tripled, output, rtol=1e-2, atol=1e-3)


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else next(iter(kwargs.values()), None)


def _positive(like: Tensor, generator: torch.Generator) -> Tensor:
    return (torch.rand(like.shape, generator=generator) + 0.5).to(like)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
