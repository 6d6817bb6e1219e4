"""Build the wiring from a recorded forward pass: which layer reads which, and with which entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nap.diagnostics.activations import ACTIVATIONS
from nap.methods.wiring.entries import Entries, column_units, features_of, norm_units, row_units
from nap.methods.wiring.sparsity import MIXED, NONE, along_axis, depends, unit_of_entries
from nap.methods.wiring.tape import Call, Tape, record
from nap.methods.wiring.units import Units, Wiring


@dataclass(eq=False)
class HiddenLayer:
    """A hidden layer while its entries are collected.

    It has several producers if its activation reads their sum, as the mean and the noise of a noisy layer.
    """

    producers: list[Call]
    activation: Call
    axis: int
    unit: Tensor
    incoming: dict[str, Entries] = field(default_factory=dict)
    outgoing: list[Entries] = field(default_factory=list)
    norms_after: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return "+".join(call.name for call in self.producers)

    @property
    def size(self) -> int:
        return features_of(self.producers[0].module)

    def finished(self) -> Units:
        return Units(
            name=self.name,
            size=self.size,
            activation=self.activation.name,
            call=self.activation.index,
            axis=self.axis,
            unit=self.unit.cpu(),
            incoming=tuple(self.incoming.values()),
            outgoing=tuple(self.outgoing),
            norms_after=tuple(self.norms_after),
        )


class _Unwired(Exception):
    """A reason why units cannot be told apart."""


def find_wiring(
    model: nn.Module, inputs: Any, *, activations: tuple[type[nn.Module], ...] = ACTIVATIONS
) -> Wiring:
    """The hidden units of `model` with their incoming and outgoing entries, from one example forward.

    Args:
        inputs: a batch as the model takes it: a tensor, or a tuple of arguments.
        activations: module classes that count as activations; add your own to `ACTIVATIONS`.

    >>> print(find_wiring(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.ones(1, 4)))
    0  3 units, seen at 1  in: 0.weight, 0.bias  out: 2.weight
    2  left alone: output
    """
    return _Assembly(model, record(model, inputs, activations)).wiring()


class _Assembly:
    def __init__(self, model: nn.Module, tape: Tape):
        self.tape = tape
        self.leaves = [call for call in tape.calls if call.leaf is not None]
        tensors = Counter(id(p) for m in model.modules() for _, p in m.named_parameters(recurse=False))
        self.parameters = {name: tensors[id(p)] for name, p in model.named_parameters()}
        self.problems: dict[str, str] = {}
        self.layer_of: dict[Call, HiddenLayer] = {}  # by activation call, and by producer call

    def wiring(self) -> Wiring:
        producers = [call for call in self.leaves if call.kind == "producer"]
        for call in self.leaves:
            if call.kind == "activation":
                self._attempt(self._activation, call)
        for call in self.tape.calls:
            if call.kind in ("norm", "producer"):
                self._attempt(self._norm if call.kind == "norm" else self._consumer, call)
        reaching = {call for output in self.tape.outputs for call in self._sources(output)}
        layers: dict[str, Units] = {}
        for layer in dict.fromkeys(self.layer_of.values()):
            returned = [call.name for call in (*layer.producers, layer.activation) if call in reaching]
            if returned:
                self._blame([layer.activation], f"{returned[0]} is also part of the model's output")
            elif not layer.outgoing:
                self._blame([layer.activation], f"no Linear or convolution reads {layer.activation.name}")
            elif not any(call.name in self.problems for call in layer.producers):
                layers[layer.name] = layer.finished()
        wired = {call.name for layer in self.layer_of.values() for call in layer.producers}
        rest = [c for c in producers if c.name not in wired and c.name not in self.problems]
        for call in rest:
            if call not in reaching:
                self.problems[call.name] = "nothing was seen to read it"
        return Wiring(layers, self.problems, tuple(dict.fromkeys(c.name for c in rest if c in reaching)))

    def _attempt(self, part: Callable[[Call, list[Call]], None], call: Call) -> None:
        sources = self._sources(call.read)
        try:
            part(call, sources)
        except _Unwired as reason:
            self._blame(sources, str(reason))
        except RuntimeError as error:  # an operation without a second derivative
            self._blame(sources, f"the way to {call.name} cannot be differentiated twice ({error})")

    def _blame(self, sources: list[Call], reason: str) -> None:
        for source in sources:
            layer = self.layer_of.get(source)
            for call in layer.producers if layer is not None else [source]:
                if call.kind == "producer":
                    self.problems.setdefault(call.name, reason)

    def _sources(self, target: Tensor) -> list[Call]:
        """The calls whose results `target` depends on without another layer in between."""
        leaves = [call.leaf for call in self.leaves if call.leaf is not None]
        if not target.requires_grad or not leaves:
            return []
        grads = torch.autograd.grad(target.sum(), leaves, retain_graph=True, allow_unused=True)
        return [call for call, grad in zip(self.leaves, grads, strict=True) if grad is not None]

    def _activation(self, call: Call, sources: list[Call]) -> None:
        if all(source.kind == "other" for source in sources):
            return  # it acts on the model's own input
        for source in sources:
            if source.kind != "producer":
                raise _Unwired(f"{call.name} also reads {source.name}")
        if call.leaf is None or call.leaf.shape != call.read.shape:
            raise _Unwired(f"{call.name} changes the shape of its input")
        maps = [self._map(call, source) for source in sources]
        if any(not torch.equal(unit, maps[0]) for unit in maps[1:]):
            raise _Unwired(f"{call.name} reads several layers at once")
        for axis in range(1, call.read.ndim):
            unit = along_axis(maps[0], axis)
            if unit is not None:
                break
        else:
            raise _Unwired(f"the units have no axis of their own at {call.name}")
        layer = HiddenLayer(sources, call, axis, unit)
        if set(unit.tolist()) - {NONE} != set(range(layer.size)):
            raise _Unwired(f"{call.name} does not show all of them")
        for source in sources:
            if source in self.layer_of:
                raise _Unwired(f"{call.name} and {self.layer_of[source].activation.name} both read it")
            rows = row_units(source.module)
            for leaf, parameter in source.module.named_parameters(recurse=False):
                entries = rows if parameter.ndim > 1 else torch.arange(layer.size)
                name = self._own(source, leaf)
                layer.incoming[name] = Entries(name, entries)
            self._own(source, "weight")
        self.layer_of.update(dict.fromkeys([*sources, call], layer))

    def _consumer(self, call: Call, sources: list[Call]) -> None:
        for source in sources:
            if source.kind == "producer":
                raise _Unwired(
                    f"{call.name} reads it with no activation module in between "
                    "(activations written as functions cannot be seen)"
                )
        maps = {source: self._map(call, source) for source in sources if source in self.layer_of}
        touched = [unit != NONE for unit in maps.values()]
        touched += [depends(call.read, s.leaf) for s in sources if s not in maps and s.leaf is not None]
        if maps and torch.stack(touched).sum(0).gt(1).any():
            raise _Unwired(
                f"{call.name} reads it in a sum or product with {' and '.join(s.name for s in sources)}"
            )
        axis = call.read.ndim - 1 if isinstance(call.module, nn.Linear) else 1
        for source, unit in maps.items():
            columns = along_axis(unit, axis)
            if columns is None:
                raise _Unwired(f"{call.name} reads several of its units in one column")
            entries = Entries(self._own(call, "weight"), column_units(call.module, columns.cpu()))
            self.layer_of[source].outgoing.append(entries)

    def _norm(self, call: Call, sources: list[Call]) -> None:
        for source in sources:
            layer = self.layer_of.get(source)
            if layer is None:
                continue
            if source.kind == "activation":
                layer.norms_after.append(call.name)
            unit = self._map(call, source)
            for leaf, parameter in call.module.named_parameters(recurse=False):
                of_entries = norm_units(unit, parameter)
                if of_entries is not None:
                    name = self._own(call, leaf)
                    layer.incoming[name] = Entries(name, of_entries.cpu())

    def _map(self, call: Call, source: Call) -> Tensor:
        assert source.leaf is not None
        if source.kind == "activation":
            layer = self.layer_of[source]
            axis, unit, size = layer.axis, layer.unit, layer.size
        else:
            size = features_of(source.module)
            axis = source.leaf.ndim - 1 if isinstance(source.module, nn.Linear) else 1
            unit = torch.arange(size)
        shape = [-1 if i == axis else 1 for i in range(source.leaf.ndim)]
        unit = unit.to(source.leaf.device).view(shape)
        found = unit_of_entries(call.read, source.leaf, unit, size)
        assert found is not None, "a source is connected"
        if (found == MIXED).any():
            raise _Unwired(f"{call.name} reads mixtures of its units")
        return found

    def _own(self, call: Call, leaf: str) -> str:
        name = f"{call.name}.{leaf}" if call.name else leaf
        if self.parameters.get(name, 0) != 1:
            raise _Unwired(f"{name} is tied to another parameter, or computed from others")
        if self.tape.count(call.name) > 1:
            raise _Unwired(f"{call.name} runs more than once in a forward")
        return name
