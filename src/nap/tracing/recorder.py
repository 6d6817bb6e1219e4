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

from nap.norms.norm import CHILD, FusedNorm
from nap.norms.products import norm_on_product
from nap.tracing import before_batch_norm, effects, homogeneity, scripted, special, told
from nap.tracing.call import Call
from nap.tracing.curves import AGAIN, ESCAPES, Place, note_escape, note_products
from nap.tracing.homogeneity import MIXED, NONE
from nap.tracing.layout import keeps_features
from nap.tracing.meetings import meet_curves
from nap.tracing.operations import Kind, is_in_place, operation_name
from nap.tracing.record import Flow, Frame, Use
from nap.tracing.scale import without_scales
from nap.tracing.streams import SUMS, Streams
from nap.tracing.told import NOTHING, Told
from nap.tracing.values import CONSTANT, NO_CARRY, Carry, Value, held_tensors, merge, tensors_in
from nap.tracing.vmapped import unrolled


def record(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    told: Told = NOTHING,
    watching: Callable[[nn.Module, Told], Recorder] | None = None,
) -> Flow:
    """The record of `model(*args, **kwargs)`. The model is left as it was, but for RNG-free state."""
    with (watching or Recorder)(model, told) as recorder:
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
        self.weights = dict(model.named_parameters())
        self.ndims = {name: p.ndim for name, p in model.named_parameters()}
        self.shapes = {name: p.shape for name, p in model.named_parameters()}
        self.matrices = {n for n, p in model.named_parameters() if sum(size > 1 for size in p.shape) > 1}
        self.values: dict[int, Value] = {}
        self.streams = Streams()
        self.lineage = self.flow.lineage
        self.paths: dict[tuple[str, int, int], frozenset[str]] = {}  # the same, through parts of results, too
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
        self.made: Use | None = None  # by the present operation
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
        self._hooks.enter_context(unrolled(self))
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
        tensors = list(tensors_in(output))
        kind = self.kind_told(module)
        if kind is not None or special.is_opaque(module):
            self.streams.begin(tensors_in((args, kwargs)))
            if kind is not None:
                told.follow(self, kind, module, frame, args, kwargs, output)
            else:
                special.follow(self, module, frame, args, kwargs, output)
            self.streams.end(tensors)
        if isinstance(module, nn.Identity) and isinstance(output, Tensor):
            output = output.clone()
            self.put(output, self.value(args[0]).relabel(slot=frame.site))
            self.streams.same(args[0], output)
            return output
        if isinstance(output, Tensor):
            return self._leave(frame, output)
        for tensor in tensors:
            if any(c.call == frame.call for c in self.value(tensor).carry):
                self.flow.tupled.add(frame.site)
        return None

    def _leave(self, frame: Frame, output: Tensor) -> Tensor | None:
        value = self.value(output)
        sites = {c for c in value.carry if frame.call in (c.call, *self.ancestors[c.call])}
        plain = self.nonlinear == frame.nonlinear_before
        if plain and len({c.site for c in sites}) > 1 and sites == value.carry and frame.site:
            kept = all(self.feature_axis(c, output) is not None for c in sites)
            joined = {call for c in sites for _, call, _ in self.flow.uses[c.key].joined}
            if kept or any(frame.call in (call, *self.ancestors[call]) for call in joined):
                value = self._unite(frame, output, value, kept)
        mine = [c for c in value.carry if c.call == frame.call]
        if not mine:
            return None
        for c in mine:
            if self.feature_axis(c, output) is not None:
                self.flow.uses[c.key].output = output
        clone = output.clone()  # later in-place operations must not touch what gradients are taken of
        self.put(clone, value)
        self.streams.same(output, clone)
        return clone

    def feature_axis(self, carry: Carry, result: Tensor) -> int | None:
        """The axis of a product's features in what came of it, if they are where they were."""
        use = self.flow.uses[carry.key]
        converted = CHILD in self.modules[carry.site]._modules
        if converted or (carry.moved is None and not carry.batch_norm):
            return use.axis
        if use.made is None or (use.spatial and use.made.ndim != result.ndim):
            return None
        return use.axis if keeps_features(use.made, use.copy, result, use.axis) else None

    def _unite(self, frame: Frame, output: Tensor, value: Value, kept: bool) -> Value:
        """A module that is linear in its producers (noisy layers, LoRA) counts as one producer."""
        inner = [self.flow.uses[c.key] for c in sorted(value.carry, key=lambda c: c.key)]
        self.operations += 1
        times = any(c.times for c in value.carry)
        united = Carry(frame.site, frame.call, self.operations, moved=None if kept else "", times=times)
        self.flow.uses[united.key] = Use(
            frozenset().union(*(u.sources for u in inner)),
            "sum",
            inner[0].axis,
            inner[0].spatial,
            members=inner[0].members,
            apart=next((u.apart for u in inner if u.apart), ""),
            tapped=any(u.tapped for u in inner),
        )
        for known in (self.lineage, self.paths):
            known[united.key] = frozenset().union(*(known[c.key] for c in value.carry))
        self.streams.united(united, value.carry, output)
        for c in value.carry:
            self.flow.sinks[c.key].add("sum")
        self.put(output, value := replace(value, carry=frozenset([united])))
        return value

    # -- the core: values flow -----------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.call(operation_name(func), func, args, kwargs or {})

    def call(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Calls a function, and gives its results their values."""
        tensors = list(tensors_in((args, kwargs)))
        if self.muted:
            return self.run(func, name, args, kwargs, tensors)
        if torch._C._functorch.maybe_current_level() is not None:  # not of vmap, which is a loop here
            raise RuntimeError(f"a transform of torch.func takes derivatives in {self.site or 'the model'}")
        operands = [self.value(t) for t in tensors]
        self.flow.seen.update(name for v in operands if not v.data for name in v.sources)
        self.cut, self.made = False, None
        self.streams.begin(tensors)
        if name in SUMS:
            self.flow.branches |= self.streams.branches(tensors, operands)
        call = Call(self, name, args, kwargs, tensors, operands)
        outcome = effects.follow(call)
        if self.cut and not is_in_place(func, args, kwargs):
            args, kwargs = self._cut((args, kwargs))
        out = self.run(func, name, args, kwargs, tensors)
        results = list(tensors_in(out))
        if name in ("setitem", "copy", "set_data") and not results:
            results = [args[0]]
        self.streams.end(results)
        if results and any(v.carry for v in operands):
            before_batch_norm.note_use(call, effects.kind_of(call))
        if not results and name in ESCAPES:
            note_escape(self, name, operands)
        for i, result in enumerate(results):
            self.put(result, outcome(i, result) if callable(outcome) else outcome)
            if args and result is args[0] and result._is_view() and id(result._base) in self.values:
                self.put(result._base, merge([self.value(result._base), self.value(result)]))
        if self.open_product is not None:
            self.products[self.open_product] = (results[0], *self.products[self.open_product][1:])
            self.open_product = None
        if self.made is not None and isinstance(out, Tensor) and not is_in_place(func, args, kwargs):
            return self._kept(self.made, out)
        return out

    def _kept(self, use: Use, product: Tensor) -> Tensor:
        """A copy of a product to go on with: what gradients are taken of must not change in place."""
        if type(self.modules.get(self.site)) in _PLAIN:  # its result is what the module returns
            return product
        use.product, use.copy = product, product.clone()
        self.put(use.copy, self.value(product))
        return use.copy

    def run(self, func: Any, name: str, args: Any, kwargs: Any, tensors: Sequence[Tensor]) -> Any:
        """What the function returns; `tensors` are those that it was given, before any was cut."""
        return func(*args, **kwargs)

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
            unseen = tensor.grad_fn is not None
            if unseen:
                self.flow.unseen.append(self.site)
            # whatever made it may depend on every weight so far, in any way
            degrees = dict.fromkeys(sorted(self.flow.seen), MIXED) if unseen else NONE
            found = Value(data=unseen, degrees=degrees, index=not _floating(tensor), foreign=True)
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
            self.streams.input(tensor)

    def outputs(self, tree: Any) -> None:
        found = list(held_tensors(tree))
        if not found:
            raise ValueError("the model returns no tensor, so what reaches its output cannot be told")
        for tensor in found:
            value = self.value(tensor)
            self.flow.beside_batch_norm.update(c.site for c in value.carry if not c.batch_norm)
            self.flow.returned_keys.update(c.key for c in value.carry)
            self.flow.returned.update(c.site for c in value.carry if not c.sliced and not c.mixed)
            self.flow.degrees.update(
                {n: max(abs(d), self.flow.degrees.get(n, 0.0)) for n, d in value.degrees.items()}
            )
            for c in value.carry:
                self.flow.sinks[c.key].add("output")

    # -- what the effects of operations report -------------------------------------------------

    def parametric(self, use: Use, operands: Sequence[Value]) -> frozenset[Carry]:
        """A parametric function ran here: what its output carries."""
        frame = self.frames[-1] if self.frames else Frame("", 0, 0)
        self.operations += 1
        carry = Carry(frame.site, frame.call, self.operations)
        self.flow.uses[carry.key] = use
        self.streams.made(carry)
        use.joined = frozenset(c.key for value in operands for c in value.carry)
        whole = {c.key for value in operands for c in value.carry if not c.chunk}
        self.lineage[carry.key] = use.sources.union(*(self.lineage[key] for key in whole))
        self.paths[carry.key] = use.sources.union(*(self.paths[key] for key in use.joined))
        if any(use.sources & self.paths[key] for key in use.joined):
            self.flow.multiplied.update(dict.fromkeys(use.names(frame.site), AGAIN))
        self.made = use
        for value in operands:
            meet_curves(self, value)
            note_products(self, value.carry)
            self.sink(value.carry, "linear")
            for pending in value.pending:
                self.flow.meetings[pending].hidden = True
                self.flow.meetings[pending].followed = True
        self.ancestors.setdefault(frame.call, frozenset())
        self.cut = not any(c.product for v in operands for c in v.carry)
        mixed = (c for v in operands for c in v.carry if c.product and not c.mixed and not v.probability)
        return frozenset([carry, *(replace(c, mixed=True) for c in mixed)])

    def layer(self, value: Value, use: Use, operands: Sequence[Value], *, alone: bool) -> Value:
        """What a layer makes of its operands, merged in `value`; `alone`: its matrices have no bias."""
        mine = dict.fromkeys(use.sources, 1.0 if alone and len(use.sources) == 1 else MIXED)
        degrees = homogeneity.of_product([without_scales(value.degrees), mine])
        return replace(value, data=True, carry=self.parametric(use, operands), degrees=degrees)

    def has_parts(self, carry: Carry) -> bool:
        """Whether parts of this result have norms of their own."""
        weights = [self.weights[name] for name in self.flow.uses[carry.key].sources]
        around = [name for name in self.modules if f"{carry.site}.".startswith(f"{name}.") or not name]
        part = self.flow.uses[carry.key].part
        on_product = [norm_on_product(self.modules[n], weights, part) for n in around] if weights else []
        return any(
            isinstance(n, FusedNorm) for n in (getattr(self.modules[carry.site], CHILD, None), *on_product)
        )

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
        note_products(self, value.carry)
        self.sink(value.carry, "norm")

    def sink(self, carry: Iterable[Carry], sink: str) -> None:
        for c in carry:
            self.flow.sinks[c.key].add(sink)


_PLAIN = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding)


def _constants(model: nn.Module) -> Iterator[Tensor]:
    yield from model.buffers()
    for module in model.modules():
        yield from (t for t in tensors_in(list(vars(module).values())) if not isinstance(t, nn.Parameter))


def _floating(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
