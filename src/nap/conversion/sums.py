"""Norms on sums (`residual="sum"`): one on what enters a module, instead of one on each result in the sum.

A result that is in no sum keeps the norm on its layer, and so do all results of a sum that enters nothing
that a norm can hang on. So each layer is either normalised where it is, or wherever its result enters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from nap.conversion.needs import Decision, asked, is_plain_leaf, layout_of, refuse_width
from nap.conversion.placement import Placement
from nap.flow.operations import Kind
from nap.flow.record import Flow, Meeting
from nap.flow.values import Carry
from nap.norms.norm import EPS, Layout

_NAMED = 2  # layers of a sum that a reason names; the others are counted


@dataclass
class Place:
    """A module that un-normalised results enter, and how what enters it is laid out."""

    layout: Layout
    spatial: int
    shape: torch.Size
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
    for flow, meeting, carry in _results(decision, flows):
        where, shape = _entered(flow, meeting, carry)
        place = _laid_out(flow, carry, shape)
        obstacle = _obstacle(decision.model, flow, meeting, carry, where, place)
        if obstacle is None and where is not None:
            first = places.setdefault(where, place)
            first.layers[carry.site] = None
            if (first.layout, first.spatial) != (place.layout, place.spatial):
                obstacle = "its terms are laid out differently"
            elif _is_pooled(flow, carry, shape):
                pooled.add(carry.site)
        if obstacle is not None:
            said = decision.by_itself.get(carry.site)
            decision.by_itself[carry.site] = said or (obstacle if _in_sum(meeting, carry) else "")
    _place(decision, places, pooled)


def _results(decision: Decision, flows: Sequence[Flow]) -> Iterator[tuple[Flow, Meeting, Carry]]:
    """The results that are to be normalised before an activation, in the order in which they were made."""
    for flow in flows:
        for meeting in flow.meetings:
            if meeting.kind not in (Kind.SOFTMAX, Kind.ATTENTION):
                for carry in sorted(asked(decision, meeting), key=lambda c: c.call):
                    yield flow, meeting, carry


def _entered(flow: Flow, meeting: Meeting, carry: Carry) -> tuple[str | None, torch.Size]:
    """The module that the result enters, a BatchNorm in front of the activation if any; and in what shape."""
    if carry.batch_norm:
        return carry.entry, flow.batch_norms.get(carry.entry or "", meeting.shape)
    slots = {c.slot for c in meeting.carry}
    returned = any(c.site in flow.returned for c in meeting.carry)  # a norm in a slot is for all that follows
    slot = slots.pop() if len(slots) == 1 and not returned else None
    return meeting.place or slot, meeting.shape


def _laid_out(flow: Flow, carry: Carry, shape: torch.Size) -> Place:
    use = flow.uses[carry.key]
    if carry.batch_norm:  # its features are on axis 1
        spatial = len(shape) - 2
        return Place(layout_of(1 - len(shape), spatial), spatial, shape)
    return Place(layout_of(use.axis, use.spatial), -1 - use.axis, shape)


def _in_sum(meeting: Meeting, carry: Carry) -> bool:
    """Whether other layers' results enter the same module, or the same function."""
    same = (c for c in meeting.carry if (c.batch_norm, c.entry) == (carry.batch_norm, carry.entry))
    return len({c.site for c in same}) > 1


def _obstacle(
    model: nn.Module, flow: Flow, meeting: Meeting, carry: Carry, where: str | None, place: Place
) -> str | None:
    """What stands against a norm there; empty where it is not worth telling, None where nothing does."""
    use, before_batch_norm = flow.uses[carry.key], carry.batch_norm
    output = use.output
    whole = not (carry.sliced or carry.bent or carry.product or carry in meeting.faults)
    if not whole or output is None or carry.call in meeting.active or carry.site in flow.tupled:
        return "its result is not added as it is"
    if where is None:
        return f"{'BatchNorm' if before_batch_norm else meeting.operation} is no module"
    module = model.get_submodule(where)
    if not (_is_batch_norm(module) if before_batch_norm else is_plain_leaf(module)):
        return f"{where} does more"
    if flow.calls[where] > 1:
        return f"{where} is called {flow.calls[where]} times"
    if getattr(module, "inplace", False):  # what it changes may be used again, and a norm's result is not it
        return f"{where} acts in place"
    if len(place.shape) <= place.spatial or place.width != output.shape[use.axis]:
        return ""  # no sum: results side by side, or flattened
    return None


def _is_batch_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm)


def _is_pooled(flow: Flow, carry: Carry, shape: torch.Size) -> bool:
    """Whether something between a layer and its BatchNorm took in space: the paper's norm comes after it."""
    output = flow.uses[carry.key].output
    assert output is not None
    return carry.batch_norm and output.ndim == len(shape) and output.shape != shape


def _place(decision: Decision, places: Mapping[str, Place], pooled: set[str]) -> None:
    options, apart = decision.options, decision.by_itself
    together = [[layer for layer in place.layers if layer not in apart] for place in places.values()]
    decision.summed = {layer for layers in together if len(layers) > 1 for layer in layers}
    decision.summed |= pooled - apart.keys()
    for where, place in places.items():
        layers = [layer for layer in place.layers if layer in decision.summed]
        if not layers or decision.excluded(where):
            continue
        module, reason = decision.model.get_submodule(where), _reason(layers)
        if place.numbers == 1:
            refuse_width(decision, where, reason)
            continue
        decision.placements[where] = Placement(
            where, "normalise input", type(module).__name__, reason,
            width=place.width, layout=place.layout, spatial=place.spatial,
            centre=options.norm == "layer", scale=options.affine != "none",
            offset=options.affine == "scale_offset" and not _is_batch_norm(module),
            eps=EPS if options.eps == "relative" else options.eps,
        )  # fmt: skip


def _reason(layers: Sequence[str]) -> str:
    if len(layers) == 1:
        return f"is entered by {layers[0]}"
    rest = len(layers) - _NAMED
    names = " and ".join(layers) if rest == 0 else f"{', '.join(layers[:_NAMED])} and {rest} more"
    return f"is entered by the sum of {names}"
