"""What reaches what: one real forward, recorded.

The model runs once, as it is, on example inputs. A `TorchFunctionMode` sees every torch function,
module hooks see which module is running, and each tensor gets a `Value`. Recorded is where
un-normalised results of parametric functions meet a nonlinearity (`Meeting`), what becomes of each
producer, and how every output scales with every weight. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from nap.flow import effects, homogeneity, scripted, special, told
from nap.flow.call import Call
from nap.flow.curves import ESCAPES, Place, note_escape
from nap.flow.homogeneity import MIXED
from nap.flow.meetings import meet_curves
from nap.flow.operations import Kind, operation_name
from nap.flow.record import Flow, Frame, Use
from nap.flow.scale import without_scales
from nap.flow.told import NOTHING, Told
from nap.flow.values import CONSTANT, NO_CARRY, Carry, Value, held_tensors, merge, tensors_in
from nap.norms.norm import CHILD, FusedNorm


def record(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], told: Told = NOTHING) -> Flow:
    """The record of `model(*args, **kwargs)`. The model is left as it was, but for RNG-free state."""
    with Recorder(model, told) as recorder:
        with torch._C.DisableTorchFunction():
            recorder.inputs((args, kwargs))
        output = model(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            recorder.outputs(output)
    return recorder.flow


class Recorder(TorchFunctionMode):
    """Follows values through the functions that a model calls."""

    def __init__(self, model: nn.Module, told: Told = NOTHING):
        super().__init__()
        self.flow = Flow()
        self.told = told
        self.names = {id(module): name for name, module in model.named_modules()}
        self.modules = dict(model.named_modules())
        self.ndims = {name: p.ndim for name, p in model.named_parameters()}
        self.matrices = {n for n, p in model.named_parameters() if sum(size > 1 for size in p.shape) > 1}
        self.values: dict[int, Value] = {}
        self.alive: list[Tensor] = []  # ids stay unique only while their tensors live
        self.frames: list[Frame] = []
        self.ancestors: dict[int, frozenset[int]] = {}
        self.products: list[tuple[Tensor, tuple[Tensor, int], tuple[Tensor, int]]] = []
        self.open_product: int | None = None  # its result is not known yet
        self.places: list[Place] = []  # calls of operations that bend what they are given
        self.scales: dict[str, frozenset[Carry]] = {}  # values whose own scale is followed, by pseudo-weight
        self.calls = 0
        self.operations = 0
        self.nonlinear = 0
        self.cut = False  # whether the present operation ends what its operands carry
        self.muted = 0
        self._hooks = ExitStack()
        for name, parameter in model.named_parameters():
            zero = not parameter.requires_grad and not parameter.any()  # a bias that was taken out of use
            degrees = {} if zero else {name: 1.0}
            self.put(parameter, Value(sources=frozenset([name]), degrees=degrees, zero=zero, raw=True))
        for constant in _constants(model):
            self.put(constant, CONSTANT)

    # -- the shell: modules come and go --------------------------------------------------------

    def __enter__(self) -> Recorder:
        for module in self.modules.values():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            for handle in (
                module.register_forward_pre_hook(self._enter, with_kwargs=True, prepend=True),
                module.register_forward_hook(self._exit, with_kwargs=True),
            ):
                self._hooks.callback(handle.remove)
        self._hooks.enter_context(scripted.watched(self))
        self._hooks.enter_context(torch.enable_grad())
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._hooks.close()

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.calls += 1
        frame = Frame(self.names[id(module)], self.calls, self.nonlinear, self._given(args, kwargs))
        self.flow.calls[frame.site] += 1
        if args and isinstance(args[0], Tensor):
            self.flow.given[frame.site] = args[0].shape
        self.ancestors[self.calls] = frozenset(f.call for f in self.frames)
        self.frames.append(frame)
        self.muted += self.is_whole(module)

    def _given(self, args: Any, kwargs: Any) -> frozenset[Carry] | None:
        """What the first argument carries; None where another one carries some of the same."""
        trees = (*args, *kwargs.values())
        known = [[self.values.get(id(t), CONSTANT).carry for t in tensors_in(tree)] for tree in trees]
        first, *others = [NO_CARRY.union(*carries) for carries in known] or [NO_CARRY]
        keys = {c.key for carry in others for c in carry}
        return None if any(c.key in keys for c in first) else first

    def _exit(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        with torch._C.DisableTorchFunction():  # what the hook itself computes is no part of the model
            return self._left(module, args, kwargs, output)

    def _left(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        frame = self.frames.pop()
        self.muted -= self.is_whole(module)
        if self.muted:
            return None
        kind = self.kind_told(module)
        if kind is not None:
            told.follow(self, kind, module, frame, args, kwargs, output)
        elif special.is_opaque(module):
            special.follow(self, module, frame, args, kwargs, output)
        tensors = list(tensors_in(output))
        if isinstance(module, nn.Identity) and isinstance(output, Tensor):
            output = output.clone()
            self.put(output, self.value(args[0]).relabel(slot=frame.site))
            return output
        if isinstance(output, Tensor):
            return self._leave(frame, output)
        for tensor in tensors:
            if any(c.call == frame.call for c in self.value(tensor).carry):
                self.flow.tupled.add(frame.site)
        return None

    def _leave(self, frame: Frame, output: Tensor) -> Tensor | None:
        value = self.value(output)
        sites = {c for c in value.carry if frame.call in self.ancestors[c.call]}
        plain = self.nonlinear == frame.nonlinear_before
        if plain and len({c.site for c in sites}) > 1 and sites == value.carry and frame.site:
            value = self._unite(frame, output, value)
        mine = [c for c in value.carry if c.call == frame.call]
        if not mine:
            return None
        for c in mine:
            self.flow.uses[c.key].output = output
        clone = output.clone()  # later in-place operations must not touch what gradients are taken of
        self.put(clone, value)
        return clone

    def _unite(self, frame: Frame, output: Tensor, value: Value) -> Value:
        """A module that is linear in its producers (noisy layers, LoRA) counts as one producer."""
        inner = [self.flow.uses[c.key] for c in sorted(value.carry, key=lambda c: c.key)]
        self.operations += 1
        united = Carry(frame.site, frame.call, self.operations)
        self.flow.uses[united.key] = Use(
            frozenset().union(*(u.sources for u in inner)),
            "sum",
            inner[0].axis,
            inner[0].spatial,
        )
        for c in value.carry:
            self.flow.sinks[c.site].add("sum")
        value = replace(value, carry=frozenset([united]))
        self.put(output, value)
        return value

    # -- the core: values flow -----------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.call(operation_name(func), func, args, kwargs or {})

    def call(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Calls a function, and gives its results their values."""
        if self.muted:
            return func(*args, **kwargs)
        tensors = list(tensors_in((args, kwargs)))
        operands = [self.value(t) for t in tensors]
        self.flow.seen.update(name for v in operands if not v.data for name in v.sources)
        self.cut = False
        outcome = effects.follow(Call(self, name, args, kwargs, tensors, operands))
        if self.cut and not _in_place(func, args, kwargs):
            args, kwargs = self._cut((args, kwargs))
        out = func(*args, **kwargs)
        results = list(tensors_in(out))
        if name in ("setitem", "copy", "set_data") and not results:
            results = [args[0]]
        if not results and name in ESCAPES:
            note_escape(self, name, operands)
        for i, result in enumerate(results):
            self.put(result, outcome(i, result) if callable(outcome) else outcome)
            if args and result is args[0] and result._is_view() and id(result._base) in self.values:
                self.put(result._base, merge([self.value(result._base), self.value(result)]))
        if self.open_product is not None:
            self.products[self.open_product] = (results[0], *self.products[self.open_product][1:])
            self.open_product = None
        return out

    def _cut(self, tree: Any) -> Any:
        """Data ends here for gradients, so that they run along what is carried and nothing else."""
        return tree_map(lambda x: x.detach() if isinstance(x, Tensor) and self.value(x).data else x, tree)

    def is_whole(self, module: nn.Module) -> bool:
        """Whether a module is followed as a whole, not by what it calls."""
        return self.kind_told(module) is not None or special.is_opaque(module)

    def kind_told(self, module: nn.Module) -> Kind | None:
        names = told.names_of(module, self.names[id(module)]) if self.told.names else set()
        self.flow.told |= names & self.told.names
        return self.told.kind(names)

    @property
    def site(self) -> str:
        """The module that is running."""
        return self.frames[-1].site if self.frames else ""

    def value(self, tensor: Tensor) -> Value:
        found = self.values.get(id(tensor))
        if found is None:
            if tensor.grad_fn is not None:
                self.flow.unseen.append(self.site)
            found = Value(data=tensor.grad_fn is not None, index=not _floating(tensor), foreign=True)
            self.put(tensor, found)
        return found

    def put(self, tensor: Tensor, value: Value) -> None:
        self.values[id(tensor)] = replace(value, index=not _floating(tensor))
        self.alive.append(tensor)

    def inputs(self, tree: Any) -> None:
        found = list(held_tensors(tree, deep=True))
        if not found:
            raise ValueError("the example inputs hold no tensor, so nothing can be followed")
        for tensor in found:
            self.put(tensor, Value(data=True))

    def outputs(self, tree: Any) -> None:
        found = list(held_tensors(tree))
        if not found:
            raise ValueError("the model returns no tensor, so what reaches its output cannot be told")
        for tensor in found:
            value = self.value(tensor)
            self.flow.returned.update(c.site for c in value.carry if not c.sliced and not c.mixed)
            self.flow.degrees.update(
                {n: max(abs(d), self.flow.degrees.get(n, 0.0)) for n, d in value.degrees.items()}
            )
            for c in value.carry:
                self.flow.sinks[c.site].add("output")

    # -- what the effects of operations report -------------------------------------------------

    def parametric(self, use: Use, operands: Sequence[Value]) -> frozenset[Carry]:
        """A parametric function ran here: what its output carries."""
        frame = self.frames[-1] if self.frames else Frame("", 0, 0)
        self.operations += 1
        carry = Carry(frame.site, frame.call, self.operations)
        self.flow.uses[carry.key] = use
        for value in operands:
            meet_curves(self, value)
            self.sink(value.carry, "linear")
            for pending in value.pending:
                self.flow.meetings[pending].hidden = True
        self.ancestors.setdefault(frame.call, frozenset())
        self.cut = not any(c.product for v in operands for c in v.carry)
        mixed = (c for v in operands for c in v.carry if c.product and not c.mixed and not v.probability)
        return frozenset([carry, *(replace(c, mixed=True) for c in mixed)])

    def layer(self, value: Value, use: Use, operands: Sequence[Value], *, alone: bool) -> Value:
        """What a layer makes of its operands, merged in `value`; `alone`: its matrices have no bias."""
        mine = dict.fromkeys(use.sources, 1.0 if alone and len(use.sources) == 1 else MIXED)
        degrees = homogeneity.of_product([without_scales(value.degrees), mine])
        return replace(value, data=True, carry=self.parametric(use, operands), degrees=degrees)

    def has_parts(self, site: str) -> bool:
        """Whether parts of what this module returns have norms of their own."""
        return isinstance(getattr(self.modules[site], CHILD, None), FusedNorm)

    def produced_here(self, value: Value) -> bool:
        """Whether a product of the running module, or of one inside it, is part of the value."""
        call = self.frames[-1].call if self.frames else 0
        return any(call == c.call or call in self.ancestors[c.call] for c in value.carry)

    def given(self, value: Value) -> str | None:
        """The running module, if its first argument, and no other, carries what the value does."""
        return self.frames[-1].site if self.frames and self.frames[-1].given == value.carry else None

    def normalised(self, value: Value) -> None:
        """A norm ran on this value."""
        self.nonlinear += 1
        self.sink(value.carry, "norm")

    def sink(self, carry: Iterable[Carry], sink: str) -> None:
        for c in carry:
            self.flow.sinks[c.site].add(sink)


def _constants(model: nn.Module) -> Iterator[Tensor]:
    yield from model.buffers()
    for module in model.modules():
        yield from (t for t in tensors_in(list(vars(module).values())) if not isinstance(t, nn.Parameter))


def _in_place(func: Any, args: Any, kwargs: Any) -> bool:
    name = getattr(func, "__name__", "")
    marked = name.endswith("_") and not name.endswith("__")
    return (
        marked
        or name == "__setitem__"
        or name.startswith("__i")
        or bool(kwargs.get("inplace"))
        or any(a is True for a in args[1:])
    )


def _floating(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
