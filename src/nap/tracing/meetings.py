"""Effects of nonlinearities: what enters them un-normalised is a meeting, to be decided upon later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nap.tracing import homogeneity
from nap.tracing.call import Call, Follow
from nap.tracing.contraction import open_product
from nap.tracing.curves import Place, curves_of, place_of
from nap.tracing.layout import LayoutError, head_groups, pulled_back, reached_features
from nap.tracing.operations import Kind
from nap.tracing.record import Meeting
from nap.tracing.values import NO_CARRY, Carry, Value, merge, sum_degrees

if TYPE_CHECKING:
    from nap.tracing.recorder import Recorder


def follow_nonlinearity(kind: Kind) -> Follow:
    def follow(call: Call) -> Value:
        pending: frozenset[int] = frozenset()
        for value, tensor in zip(call.operands, call.tensors, strict=True):
            pending |= meet(call.rec, call.name, kind, value, tensor)
            meet_curves(call.rec, replace(value, carry=NO_CARRY))  # what its mask was made of
            if not value.data:
                call.rec.flow.bent.update(dict.fromkeys(value.sources & call.rec.matrices, call.name))
            if kind is not Kind.HOMOGENEOUS and not value.data:
                call.rec.flow.warped |= value.sources
        merged = merge(call.operands)
        data = merged.data or any(v.carry for v in call.operands)
        degrees = homogeneity.of_nonlinearity(sum_degrees(call.operands))
        if kind is Kind.HOMOGENEOUS:
            degrees = call.operands[0].degrees
        probability = kind is Kind.SOFTMAX
        sources = frozenset() if data else merged.sources
        return Value(data, sources, degrees=degrees, pending=pending, probability=probability)

    return follow


def follow_glu(call: Call) -> Value:
    """a·σ(b) for the halves a and b: only the gate b enters the nonlinearity, a goes on as it is."""
    value, tensor, dim = call.operands[0], call.tensors[0], call.argument(1, "dim", -1)
    half = tensor.shape[dim] // 2
    value = value.relabel(sliced=True)
    pending = meet(call.rec, call.name, Kind.ACTIVATION, value, tensor.narrow(dim, half, half))
    degrees = homogeneity.of_product([value.degrees, homogeneity.of_nonlinearity(value.degrees)])
    return replace(value, pending=pending, degrees=degrees, affine=frozenset())


def follow_attention(call: Call) -> Value:
    rec = call.rec
    query, key, value = (call.argument(i, name) for i, name in enumerate(("query", "key", "value")))
    mask, scale = call.argument(3, "attn_mask"), call.kwargs.get("scale")
    q, k, v = (rec.value(t) for t in (query, key, value))
    rec.flow.compared |= {n for operand in (q, k, v) if not operand.data for n in operand.sources}
    bias = [rec.value(mask)] if isinstance(mask, Tensor) else []
    carry = open_product(rec, (q, k), (query, key), (-1, -1)).union(*(b.carry for b in bias))
    rec.open_product = None  # the product itself is never seen
    logits = replace(merge([q, k, *bias]), carry=carry)
    temperature = query.shape[-1] ** -0.5 if scale is None else float(scale)
    pending = meet(rec, call.name, Kind.ATTENTION, logits, query, temperature) | v.pending
    degrees = homogeneity.of_product([homogeneity.of_nonlinearity(logits.degrees), v.degrees])
    return Value(data=True, carry=v.carry, degrees=degrees, pending=pending, affine=v.affine)


def masked(call: Call, value: Value, tensor: Tensor) -> Value:
    """(x > 0)·x and its like are nonlinearities of x."""
    carried = {c.key for c in value.carry if c.product is None}
    compared = frozenset(c for c in value.mask if c.key in carried)
    if not compared:
        return value
    name = f"{call.name} with a mask"
    pending = meet(call.rec, name, Kind.ACTIVATION, replace(value, carry=compared), tensor)
    degrees = homogeneity.of_nonlinearity(value.degrees)
    met = {c.key for c in compared if not c.sliced or _is_among(call, place_of(call.rec, c))}
    carry = frozenset(c for c in value.carry if c.key not in met or c.product is not None)
    return replace(value, carry=carry, mask=value.mask - compared, pending=pending, degrees=degrees)


def _is_among(call: Call, place: Place | None) -> bool:
    """Whether what was compared is what is masked, and not another part of the same layer's result."""
    return place is not None and any(a is b for a in place.tensors for b in call.tensors)


def meet_curves(rec: Recorder, value: Value) -> None:
    """A layer or a norm is given `value`: what was bent on the way here has passed a nonlinearity."""
    for (name, number), carry in curves_of(value).items():
        place = rec.places[number]
        meet(rec, name, place.kind, replace(value, carry=carry, data=True), place.tensors[0], place=place)


def meet(
    rec: Recorder,
    name: str,
    kind: Kind,
    value: Value,
    tensor: Tensor,
    temperature: float | None = None,
    place: Place | None = None,
) -> frozenset[int]:
    """Records that `value` enters a nonlinearity; returns the meetings that the result depends on."""
    rec.nonlinear += 1
    rec.cut = True
    for norm in value.affine:
        rec.flow.followers[norm].add(name)
        if kind is not Kind.HOMOGENEOUS:
            rec.flow.curved.add(norm)
    softmax = kind in (Kind.SOFTMAX, Kind.ATTENTION)
    for parameter in value.beside & (rec.matrices if softmax else rec.flow.tables):
        rec.flow.bent.setdefault(parameter, name)
    carried = frozenset(c for c in value.carry if softmax or not c.mixed)
    if not carried:
        return value.pending
    sites, calls = tuple(f.site for f in rec.frames), frozenset(f.call for f in rec.frames)
    given = rec.given(value)
    if place is not None:
        sites, calls, given = place.modules, place.active, None
    hidden = kind in (Kind.ACTIVATION, Kind.HOMOGENEOUS)
    meeting = Meeting(name, kind, carried, sites, calls, tensor.shape, hidden, given)
    for carry in carried:
        bent_at = place_of(rec, carry) if carry.bent else None
        if bent_at is not None and carry.call in bent_at.active:
            meeting.early.add(carry)
        if not softmax and (carry.call in calls or rec.flow.uses[carry.key].output is None):
            meeting.axes[carry] = rec.feature_axis(carry, tensor)
        try:
            with torch.enable_grad():  # the forward of a torch.autograd.Function runs without
                _locate(rec, meeting, carry, tensor, temperature)
        except LayoutError as fault:
            meeting.faults[carry] = str(fault)
    rec.sink(value.carry, "nonlinearity")
    rec.flow.meetings.append(meeting)
    return value.pending | {len(rec.flow.meetings) - 1}


def _locate(rec: Recorder, meeting: Meeting, carry: Carry, tensor: Tensor, temperature: float | None) -> None:
    """Which features of its producer reach the meeting, and as what."""
    use = rec.flow.uses[carry.key]
    softmax = meeting.kind in (Kind.SOFTMAX, Kind.ATTENTION)
    if softmax and carry.product is not None:
        product, *sides = rec.products[carry.product[0]]
        operand, contracted = sides[carry.product[1]]
        meeting.contracted[carry] = operand.shape[contracted]
        meeting.temperature = _temperature(product, tensor) if temperature is None else temperature
        if use.place is not None and rec.has_parts(carry):  # converted: only what is reached matters
            meeting.features[carry] = reached_features(operand, use.place, use.axis)
        elif use.place is not None:
            meeting.heads[carry] = head_groups(operand, contracted, use.place, use.axis)
    elif not softmax and carry.sliced and use.place is not None:
        bent_at = place_of(rec, carry)
        try:
            tensors = (tensor,) if bent_at is None else bent_at.tensors
            meeting.features[carry] = _reached(tensors, use.place, use.axis)
        except LayoutError:  # exp(x - max(x.detach())): of what was bent no gradient comes back
            meeting.features[carry] = _reached((tensor,), use.place, use.axis)


def _reached(tensors: Sequence[Tensor], output: Tensor, axis: int) -> frozenset[int]:
    """The features that any of some tensors depends on; one of them must."""
    found, faults = [], []
    for tensor in tensors:
        try:
            found.append(reached_features(tensor, output, axis))
        except LayoutError as fault:  # another operand may be made of it
            faults.append(fault)
    if not found:
        raise faults[0]
    return frozenset().union(*found)


def _temperature(product: Tensor, logits: Tensor) -> float:
    """The factor that the logits have on top of the bare q·k product, from one gradient.

    1 where none comes back, as from the forward of a torch.autograd.Function.
    """
    if not (product.requires_grad and logits.requires_grad):
        return 1.0
    gradient = pulled_back(logits, product, torch.ones_like(logits))
    touched = product.new_empty(0) if gradient is None else gradient[gradient != 0].abs()
    return float(touched.median()) if len(touched) else 1.0
