"""One forward in float64, with what went into every nonlinearity written down.

The recording sits below autograd, at the level of ATen operations, so it sees inside
`nn.MultiheadAttention`, `nn.LSTM` and scaled-dot-product attention alike. It shares no code and no
idea with the library: no producers, no carrying, only tensors that were seen at an operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from .double import double_run

SOFTMAX = {"_softmax", "_safe_softmax", "_log_softmax"}
RECTIFYING = {
    "relu",
    "leaky_relu",
    "_prelu_kernel",
    "elu",
    "celu",
    "gelu",
    "silu",
    "mish",
    "hardswish",
    "threshold",
}
SQUASHING = {"sigmoid", "tanh", "hardsigmoid", "hardtanh", "clamp", "clamp_min", "clamp_max", "softplus"}
PERIODIC_OR_EXPONENTIAL = {"exp", "expm1", "exp2", "sin", "cos", "erf", "log_sigmoid_forward", "glu", "log1p"}
NONLINEAR = SOFTMAX | RECTIFYING | SQUASHING | PERIODIC_OR_EXPONENTIAL
MULTIPLYING = {"mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "convolution", "_grouped_mm"}
NORMS = {"native_layer_norm", "native_group_norm", "_fused_rms_norm"}


@dataclass(frozen=True)
class Trace:
    """Where a tensor comes from."""

    data: bool = False  # from the example inputs
    weights: frozenset[str] = frozenset()  # from these parameters and from no data
    computed: bool = False  # behind at least one matrix product
    product: bool = False  # a product of two computed tensors: query·key
    made_by: frozenset[str] = frozenset()  # weights of the last product, where they are parameters as such
    probability: bool = False  # a softmax
    calls: frozenset[int] = frozenset()  # behind these nonlinearities

    def __or__(self, other: Trace) -> Trace:
        data = self.data or other.data
        return Trace(
            data,
            frozenset() if data else self.weights | other.weights,
            self.computed or other.computed,
            self.product or other.product,
            self.made_by | other.made_by,
            self.probability or other.probability,
            self.calls | other.calls,
        )


@dataclass
class Call:
    """One call of a nonlinearity."""

    key: tuple[str, str]  # the module it ran in, and the operation
    input: Tensor
    identity: bool  # it returned its input unchanged
    trace: Trace
    hidden: bool = False  # a weight multiplies what comes out of it


@dataclass
class Recording(TorchDispatchMode):
    """Calls of nonlinearities, in order; with `tracing`, also what each is made of."""

    tracing: bool
    calls: list[Call] = field(default_factory=list)
    acting: set[str] = field(default_factory=set)  # weights that multiply data, or are looked up by data
    path: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._traces: dict[int, Trace] = {}
        self._alive: list[Any] = []  # storages are told apart by address, so none may be freed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        base = name.rstrip("_")  # in place or not
        before = _bent(base, args) if base in NONLINEAR else None
        traces = [self.trace(leaf) for leaf in self._tensors(args, kwargs)] if self.tracing else []
        result = func(*args, **(kwargs or {}))
        if before is None and not self.tracing:
            return result
        trace = self._after(base, traces)
        if before is not None:
            main = result[0] if isinstance(result, tuple) else result
            same = main.shape == before.shape and torch.equal(main, before)
            self.calls.append(Call((self.path[-1] if self.path else "", base), before, same, trace))
            trace = Trace(trace.data, probability=base in SOFTMAX, calls=trace.calls | {len(self.calls) - 1})
        if self.tracing:
            for leaf in self._tensors(result):
                self.mark(leaf, trace)
        return result

    def trace(self, tensor: Tensor) -> Trace:
        return self._traces.get(tensor.untyped_storage()._cdata, Trace())

    def mark(self, tensor: Tensor, trace: Trace) -> None:
        storage = tensor.untyped_storage()
        self._alive.append(storage)
        self._traces[storage._cdata] = trace

    def _tensors(self, *values: Any) -> Iterator[Tensor]:
        return (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))

    def _after(self, op: str, traces: list[Trace]) -> Trace:
        """The trace of the result; notes on the way which weights act on what."""
        total = Trace()
        for trace in traces:
            total |= trace
        if op == "embedding" and total.data:
            self.acting |= traces[0].weights
        alone = sum(trace.data for trace in traces) == 1  # a sum or product with other data is no probability
        if op not in MULTIPLYING:
            product = total.product and op not in NORMS
            return replace(total, product=product, probability=total.probability and alone)
        left, right = traces[-2:] if op in {"addmm", "baddbmm", "addmv"} else traces[:2]
        made_by: frozenset[str] = frozenset()
        for factor, other in ((left, right), (right, left)):
            if factor.weights:
                self._hide(other.calls)
            if factor.probability:
                self._hide(factor.calls)
            if factor.weights and not factor.computed and other.data:
                self.acting |= factor.weights
                made_by |= factor.weights
        computed = all(factor.data or factor.computed for factor in (left, right))
        product = not total.probability and (computed or total.product)
        probability = total.probability and alone
        return replace(total, computed=True, product=product, made_by=made_by, probability=probability)

    def _hide(self, calls: frozenset[int]) -> None:
        for index in calls:
            self.calls[index].hidden = True


def record(model: nn.Module, args: Any, kwargs: Mapping[str, Any], *, tracing: bool = False) -> Recording:
    """What one forward of `model` feeds to its nonlinearities."""
    recording = Recording(tracing)
    if tracing:
        for name, parameter in model.named_parameters():
            recording.mark(parameter, Trace(weights=frozenset({name})))
        tree_map(
            lambda leaf: recording.mark(leaf, Trace(data=True)) if isinstance(leaf, Tensor) else None,
            (args, dict(kwargs)),
        )
    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(_push(recording.path, name)))
        handles.append(module.register_forward_hook(_pop(recording.path), always_call=True))
    try:
        with double_run(), recording:
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return recording


def _bent(op: str, args: tuple[Any, ...]) -> Tensor:
    """A copy of what the operation bends: all of its input, but of a GLU only the gate."""
    if op == "glu":
        tensor, axis = (*args, -1)[:2]
        return tensor.chunk(2, axis)[1].detach().clone()
    return args[0].detach().clone()


def _push(path: list[str], name: str) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        path.append(name)

    return hook


def _pop(path: list[str]) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        path.pop()

    return hook
