"""Norms on sums (`residual="sum"`): one on what enters a module, instead of one on each result in the sum.

A result that is in no sum keeps the norm on its layer, and so do all results of a sum that enters nothing
that a norm can hang on. So each layer is either normalised where it is, or wherever its result enters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from nap.conversion.decision import Decision
from nap.conversion.extent import layout_of
from nap.conversion.needs import asked, is_plain_leaf
from nap.conversion.placement import Placement
from nap.norms.norm import CHILD, EPS, Layout, has_parts
from nap.tracing.operations import Kind
from nap.tracing.record import Flow, Meeting, Use
from nap.tracing.values import Carry

_BATCH_NORM = nn.modules.batchnorm._BatchNorm
_NAMED = 2  # layers of a sum that a reason names; the others are counted


@dataclass
class Place:
    """A module that un-normalised results enter, and how what enters it is laid out."""

    layout: Layout
    spatial: int
    shape: torch.Size
    like: str  # a parameter of a layer in front of it
    layers: dict[str, None] = field(default_factory=dict)

    @property
    def width(self) -> int:
        return self.shape[-1 - self.spatial]

    @property
    def numbers(self) -> int:
        """That are normalised together."""
        return self.shape[-1 - self.spatial :].numel() if self.layout == "sample" else self.width


def place_sums(decision: Decision, flows: Sequence[Flow]) -> None:
    """Enters into `decision` the norms on sums, the layers that they serve, and why others are not served."""
    places: dict[str, Place] = {}
    pooled: set[str] = set()
    clashes: set[str] = set()
    for flow, meeting, carry in _results(decision, flows):
        where, use = _entered(flow, meeting, carry), flow.uses[carry.key]
        obstacle = _obstacle(decision, flows, flow, meeting, carry, where)
        if obstacle is not None:
            _leave(decision, carry.site, obstacle if _in_sum(meeting, carry) else "")
            continue
        assert where is not None
        shape = flow.given[where]
        layout = layout_of(decision.options, use.axis, use.space)
        place = Place(layout, -1 - use.axis, shape, min(use.sources))
        first = places.setdefault(where, place)
        first.layers[carry.site] = None
        if (first.layout, first.spatial) != (place.layout, place.spatial):
            clashes.add(where)
        if carry.batch_norm and _is_pooled(use, shape):
            pooled.add(carry.site)
    for where in clashes:
        for layer in places[where].layers:
            _leave(decision, layer, _differently(where))
    _place(decision, places, pooled)


def _leave(decision: Decision, layer: str, why: str) -> None:
    """To a norm of its own."""
    decision.by_itself[layer] = decision.by_itself.get(layer) or why


def _results(decision: Decision, flows: Sequence[Flow]) -> Iterator[tuple[Flow, Meeting, Carry]]:
    """The results that are to be normalised before an activation, in the order in which they were made."""
    for flow in flows:
        for meeting in flow.meetings:
            if meeting.kind not in (Kind.SOFTMAX, Kind.ATTENTION):
                for carry in sorted(asked(decision, flow, meeting), key=lambda c: c.call):
                    yield flow, meeting, carry


def _entered(flow: Flow, meeting: Meeting, carry: Carry) -> str | None:
    """The module that the result enters: a BatchNorm in front of the activation, if any."""
    if carry.batch_norm:
        return carry.entry
    slots = {c.slot for c in meeting.carry}
    returned = any(c.site in flow.returned for c in meeting.carry)  # a norm in a slot is for all that follows
    slot = slots.pop() if len(slots) == 1 and not returned else None
    return meeting.place or slot


def _in_sum(meeting: Meeting, carry: Carry) -> bool:
    """Whether other layers' results enter the same module, or the same function."""
    same = (c for c in meeting.carry if (c.batch_norm, c.entry) == (carry.batch_norm, carry.entry))
    return len({c.site for c in same}) > 1


def _obstacle(
    decision: Decision,
    flows: Sequence[Flow],
    flow: Flow,
    meeting: Meeting,
    carry: Carry,
    where: str | None,
) -> str | None:
    """What stands against a norm there; empty where it is not worth telling, None where nothing does."""
    if carry.product or carry.moved == "":
        return ""  # no sum: a product, a choice, results side by side
    whole = not (carry.sliced or carry.bent or carry in meeting.faults)
    if not whole or carry.call in meeting.active or carry.site in flow.tupled:
        return "its result is not added as it is"
    if carry.moved:
        return f"{carry.moved} lies between"
    if where is None:
        return f"{'BatchNorm' if carry.batch_norm else meeting.operation} is no module"
    if decision.excluded(where):
        return f"{where} is excluded"
    module = decision.model.get_submodule(where)
    if decision.is_told(where):
        return f"{where} cannot be looked into"
    return _no_carrier(where, module, carry.batch_norm) or _misfit(flows, flow, carry, where)


def _no_carrier(where: str, module: nn.Module, batch_norm: bool) -> str | None:
    """Why a module, which should be a BatchNorm or an activation, cannot carry the norm of what enters it."""
    if CHILD in module._modules:
        return f"{where} carries a norm already"
    if not isinstance(module, _BATCH_NORM) if batch_norm else has_parts(module):
        return f"{where} does more"
    if not batch_norm and not is_plain_leaf(module):
        return f"{where} has parameters of its own"
    if getattr(module, "inplace", False):  # what it changes may be used again, and a norm's result is not it
        return f"{where} acts in place"
    return None


def _misfit(flows: Sequence[Flow], flow: Flow, carry: Carry, where: str) -> str | None:
    """Why what enters a module, in any example, is not what one norm of this layer's result could be for."""
    called = max(f.calls[where] for f in flows)
    if called > 1:
        return f"{where} is called {called} times"
    if any(f.calls[where] and where not in f.given for f in flows):
        return f"{where} is not given it as an unnamed first argument"
    use, shape = flow.uses[carry.key], flow.given[where]
    if use.output is None:
        return "its result is not added as it is"
    outer = len(shape) - use.spatial  # all axes but those of space must be the layer's own
    if len(shape) != use.output.ndim or shape[:outer] != use.output.shape[:outer]:
        return "its result has another shape"
    if carry.batch_norm and use.axis != 1 - len(shape):
        return f"{where} has its features on another axis"
    given = [f.given[where] for f in flows if where in f.given]
    if any(len(other) != len(shape) or other[use.axis] != shape[use.axis] for other in given):
        return _differently(where)
    return None


def _differently(where: str) -> str:
    return f"what enters {where} is laid out in different ways"


def _is_pooled(use: Use, shape: torch.Size) -> bool:
    """Whether fewer numbers of space come out than a layer has put in: the paper's norm comes after a pool.

    All other axes are known to be the layer's own.
    """
    assert use.output is not None
    return shape.numel() < use.output.shape.numel()


def _place(decision: Decision, places: Mapping[str, Place], pooled: set[str]) -> None:
    options, apart = decision.options, decision.by_itself
    together = [[layer for layer in place.layers if layer not in apart] for place in places.values()]
    decision.summed = {layer for layers in together if len(layers) > 1 for layer in layers}
    decision.summed |= pooled - apart.keys()
    for where, place in places.items():
        layers = [layer for layer in place.layers if layer in decision.summed]
        if not layers:
            continue
        module, reason = decision.model.get_submodule(where), _reason(layers)
        batch_norm = isinstance(module, _BATCH_NORM)
        if place.numbers == 1:
            decision.leave_one_feature(where, reason)
            continue
        decision.placements[where] = Placement(
            where, "normalise input", type(module).__name__, reason,
            width=place.width, layout=place.layout, spatial=place.spatial,
            centre=options.norm == "layer", scale=options.affine != "none" and not batch_norm,
            offset=options.affine == "scale_offset" and not batch_norm, before_batch_norm=batch_norm,
            eps=EPS if options.eps == "relative" else options.eps, like=place.like,
        )  # fmt: skip


def _reason(layers: Sequence[str]) -> str:
    if len(layers) == 1:
        return f"is entered by {layers[0]}"
    rest = len(layers) - _NAMED
    names = " and ".join(layers) if rest == 0 else f"{', '.join(layers[:_NAMED])} and {rest} more"
    return f"is entered by the sum of {names}"
