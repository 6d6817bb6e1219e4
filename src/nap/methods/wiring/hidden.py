"""A hidden layer in the making, while the tape is read."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from nap.methods.wiring.entries import Entries, features_of
from nap.methods.wiring.tape import Call
from nap.methods.wiring.units import Units


@dataclass(eq=False)
class HiddenLayer:
    """What produces it, the activation that shows it, and what is known of its entries so far.

    It may have several producers: two layers whose sum, unit by unit, is all that one activation reads
    (the mean and the noise part of a noisy layer).
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
