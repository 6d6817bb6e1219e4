"""One forward in float64 below autograd: which operations bend what they are given, and what that was.

No list says which operations are nonlinear. Each one is tried: an operation bends its input if it is not
affine in all that the model has computed and it is given. So sorting, comparing, picking a maximum or
rounding count as much as a ReLU. Powers and products stand apart, since norms are written out in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from .double import double_run

PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "convolution", "_grouped_mm", "addr"}
TIMES = {"mul", "addcmul", "mm", "bmm", "addmm", "baddbmm", "mv", "dot"}
ADDENDS = ("addmm", "baddbmm", "addmv", "addr", "addcmul")
NORMS = {
    "native_layer_norm",
    "native_group_norm",
    "_fused_rms_norm",
    "native_batch_norm",
    "_weight_norm_interface",
}
POWERS = {
    *PRODUCTS, "mul", "div", "pow", "sqrt", "rsqrt", "reciprocal", "addcmul", "addcdiv", "norm",
    "linalg_vector_norm", "var", "var_mean", "std", "std_mean", "_cdist_forward", "hypot", "square", "cross",
    "lerp",
}  # fmt: skip
QUIET = {
    "isnan",
    "isinf",
    "isfinite",
    "equal",
    "is_nonzero",
    "_local_scalar_dense",
    "empty_like",
    "zeros_like",
    "new_empty",
}
FILLS = {"exponential", "normal", "uniform", "bernoulli", "random", "geometric", "cauchy", "zero", "fill"}
GUARDS = {"clamp", "clamp_min", "clamp_max", "maximum", "minimum", "nan_to_num", "where", "threshold"}

Key = tuple[str, str]  # the module that was running, and the operation


@dataclass(frozen=True)
class Trace:
    """Where a tensor comes from."""

    data: bool = False  # from the example inputs
    weights: frozenset[str] = frozenset()  # from these parameters, and none of them has acted on anything
    computed: bool = False  # some weight has acted on something
    bends: frozenset[int] = frozenset()  # behind these calls that bend
    pairs: frozenset[int] = frozenset()  # behind these products

    def __or__(self, other: Trace) -> Trace:
        return Trace(
            self.data or other.data,
            self.weights | other.weights,
            self.computed or other.computed,
            self.bends | other.bends,
            self.pairs | other.pairs,
        )

    @property
    def is_weight(self) -> bool:
        return bool(self.weights) and not (self.data or self.computed)


NOTHING = Trace()


@dataclass
class Bend:
    """One call that bends what the model has computed."""

    key: Key
    inputs: list[Tensor]
    idle: bool  # it returned its input unchanged
    hidden: bool = False  # a weight, or something computed, multiplies what comes out of it


@dataclass
class Pair:
    """One product of two things that were computed."""

    key: Key
    inputs: list[Tensor]
    hidden: bool = False  # a weight multiplies what comes out of it


@dataclass
class Pass:
    """What one forward met."""

    pairs: list[Pair] = field(default_factory=list)

    bends: list[Bend] = field(default_factory=list)
    factors: list[tuple[Key, Tensor]] = field(default_factory=list)  # what weights or others multiply
    acting: set[str] = field(default_factory=set)  # parameters that multiply something, or are looked up
    direct: set[str] = field(default_factory=set)  # of these, the ones that are alone in a matrix product
    tables: set[str] = field(default_factory=set)  # matrices that multiply something entry by entry
    touched: set[str] = field(default_factory=set)  # parameters that any operation reads
    output: list[Tensor] = field(default_factory=list)


class Watch(TorchDispatchMode):
    """Follows one forward. `known` remembers which operations bend, from one forward to the next."""

    def __init__(self, known: dict[str, bool], eps: float | None = None):
        super().__init__()
        self.seen, self.known, self.eps = Pass(), known, eps
        self.path: list[str] = []
        self._traces: dict[int, Trace] = {}
        self._alive: list[Any] = []  # storages are told apart by address, so none may be freed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        base = name[:-1] if name.endswith("_") and not name.startswith("_") else name
        if self.eps is not None and base in NORMS:
            args, kwargs = _with_eps(func, args, kwargs, self.eps)
        leaves, spec = tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        traces = [self.trace(t) for t in tensors]
        made = [t for t, trace in zip(tensors, traces, strict=True) if trace.computed and _smooth(t)]
        fresh = base.endswith("_like") or base.startswith("new_") or (base in FILLS and len(tensors) == 1)
        bends = (
            bool(made)
            and not fresh
            and base not in POWERS | NORMS | QUIET
            and self._bends(func, leaves, spec)
        )
        before = [_bent_part(base, args, t) for t in made] if bends else []
        result = func(*args, **kwargs)
        trace = NOTHING if fresh else self._after(base, tensors, traces)
        if bends:
            main = result[0] if isinstance(result, (tuple, list)) else result
            idle = base in GUARDS and any(_same(main, t) for t in before)
            self.seen.bends.append(Bend((self.site, base), before, idle))
            trace = replace(trace, computed=True, bends=trace.bends | {len(self.seen.bends) - 1})
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.mark(leaf, trace)
        return result

    @property
    def site(self) -> str:
        return self.path[-1] if self.path else ""

    def trace(self, tensor: Tensor) -> Trace:
        return NOTHING if tensor.is_sparse else self._traces.get(tensor.untyped_storage()._cdata, NOTHING)

    def mark(self, tensor: Tensor, trace: Trace) -> None:
        if tensor.is_sparse:
            return
        storage = tensor.untyped_storage()
        self._alive.append(storage)
        self._traces[storage._cdata] = trace

    def _after(self, op: str, tensors: Sequence[Tensor], traces: Sequence[Trace]) -> Trace:
        """The trace of the result; notes on the way what multiplies what."""
        total = NOTHING
        for trace in traces:
            total |= trace
            if trace.is_weight and len(trace.weights) == 1:
                self.seen.touched |= trace.weights
        acts = False
        if op in ("embedding", "_embedding_bag", "_embedding_bag_forward_only"):
            acts = not traces[1].is_weight
            self.seen.acting |= traces[0].weights
        elif op in PRODUCTS:
            acts = self._multiply(op, tensors, traces)
        elif op == "mul" and (tables := _tables(tensors, traces)):
            acts = True
            self.seen.tables |= tables
        total = replace(total, computed=total.computed or acts)
        factors = list(zip(tensors, traces, strict=True))[op in ADDENDS :][:2]
        both = [t for t, trace in factors if trace.computed and _smooth(t)]
        if op in TIMES and len(both) == 2 and both[0] is not both[1]:
            self.seen.pairs.append(Pair((self.site, op), [t.detach().clone() for t in both]))
            total = replace(total, pairs=total.pairs | {len(self.seen.pairs) - 1})
        return total

    def _multiply(self, op: str, tensors: Sequence[Tensor], traces: Sequence[Trace]) -> bool:
        last = op in ADDENDS
        pairs = list(zip(tensors, traces, strict=True))
        left, right = pairs[-2:] if last else pairs[:2] if len(pairs) > 1 else (*pairs, (None, NOTHING))
        for (_, mine), (other, theirs) in ((left, right), (right, left)):
            if other is None or theirs.is_weight:
                continue
            self.seen.factors.append(((self.site, op), other.detach().clone()))
            if mine.is_weight:
                self.seen.acting |= mine.weights
                self.seen.direct |= mine.weights if len(mine.weights) == 1 else frozenset()
            if mine.weights or mine.computed:
                for index in theirs.bends:
                    self.seen.bends[index].hidden = True
            if mine.weights:
                for index in theirs.pairs:
                    self.seen.pairs[index].hidden = True
        return not (left[1].is_weight and right[1].is_weight) and bool(left[1].weights | right[1].weights)

    def _bends(self, func: Any, leaves: list[Any], spec: Any) -> bool:
        """Whether an operation is not affine in what was computed: tried once for each kind of call."""
        moves = [isinstance(x, Tensor) and self.trace(x).computed and _smooth(x) for x in leaves]
        signs = [
            "*" if m else tuple(x.shape) if isinstance(x, Tensor) else x
            for x, m in zip(leaves, moves, strict=True)
        ]
        key = f"{func} {signs}"
        if key not in self.known:
            state = torch.get_rng_state()
            self.known[key] = not _is_affine(func, leaves, spec, moves)
            torch.set_rng_state(state)
        return self.known[key]


def _tables(tensors: Sequence[Tensor], traces: Sequence[Trace]) -> frozenset[str]:
    """The matrices of parameters that multiply what was given or computed, entry by entry."""
    pairs = list(zip(tensors, traces, strict=True))
    wide = [a.weights for t, a in pairs if a.is_weight and sum(size > 1 for size in t.shape) > 1]
    given = any(b.data or b.computed for _, b in pairs)
    return frozenset().union(*wide) if given else frozenset()


def _bent_part(op: str, args: Any, tensor: Tensor) -> Tensor:
    """A copy of what an operation bends: all of its input, but of a GLU only the gate."""
    if op == "glu":
        tensor = tensor.chunk(2, (*args, -1)[1])[1]
    return tensor.detach().clone()


def _smooth(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _same(a: Any, b: Tensor) -> bool:
    return isinstance(a, Tensor) and a.shape == b.shape and torch.equal(a, b)


def _is_affine(func: Any, leaves: list[Any], spec: Any, moves: list[bool]) -> bool:
    generator = torch.Generator().manual_seed(0)
    steps = [
        2 * _size(x) * torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x) if m else None
        for x, m in zip(leaves, moves, strict=True)
    ]

    def at(t: float) -> list[Tensor]:
        moved = [
            x.detach().clone() + t * s
            if s is not None
            else x.detach().clone()
            if isinstance(x, Tensor)
            else x
            for x, s in zip(leaves, steps, strict=True)
        ]
        args, kwargs = tree_unflatten(moved, spec)
        return [y.detach().clone() for y in tree_leaves(func(*args, **kwargs)) if isinstance(y, Tensor)]

    try:
        low, middle, high = at(-1.0), at(0.0), at(1.0)
    except Exception:  # such as a product with a shape that depends on values: it is not affine
        return False
    for a, b, c in zip(low, middle, high, strict=True):
        if not a.shape == b.shape == c.shape:
            return False
        if not _smooth(b):
            if not (torch.equal(a, b) and torch.equal(b, c)):
                return False
            continue
        open_ = b.isfinite() & (b.abs() < 1e30)
        gap, size = (a - 2 * b + c)[open_].abs(), torch.stack([a[open_].abs(), c[open_].abs()])
        if gap.numel() and not float(gap.max()) <= 1e-9 * float(size.max()) + 1e-300:
            return False
    return True


def _size(x: Tensor) -> float:
    size = x.abs()
    size = size[size.isfinite() & (size < 1e30)]
    return float(size.max()) or 1.0 if size.numel() else 1.0


def _with_eps(func: Any, args: Any, kwargs: Any, eps: float) -> tuple[Any, Any]:
    names = [argument.name for argument in func._schema.arguments]
    place = names.index("eps") if "eps" in names else len(args)
    if place < len(args):
        return (*args[:place], eps, *args[place + 1 :]), kwargs
    return args, {**kwargs, "eps": eps} if "eps" in names else kwargs


@contextmanager
def _paths(model: nn.Module, path: list[str]) -> Iterator[None]:
    def push(name: str) -> Callable[..., None]:
        return lambda *_: path.append(name)

    def pop(*_: Any) -> None:
        path.pop()

    handles = []
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        handles.append(module.register_forward_pre_hook(push(name), prepend=True))
        handles.append(module.register_forward_hook(pop, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def watch(
    model: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any],
    known: dict[str, bool],
    *,
    eps: float | None = None,
) -> Pass:
    """One forward without gradients; `eps` replaces that of every norm that torch computes."""
    mode = Watch(known, eps)
    for name, parameter in model.named_parameters():
        mode.mark(parameter, Trace(weights=frozenset([name])))
    for leaf in tree_leaves((args, dict(kwargs))):
        if isinstance(leaf, Tensor):
            mode.mark(leaf, Trace(data=True))
    with _paths(model, mode.path), double_run(), torch.no_grad(), mode:
        output = model(*args, **kwargs)
    mode.seen.output = [t for t in tree_leaves(output) if isinstance(t, Tensor)]
    return mode.seen
