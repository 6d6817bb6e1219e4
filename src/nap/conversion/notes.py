"""What a plan says of parts that it leaves as they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nap.conversion.placement import Note, Placement
from nap.tracing.curves import STAYS
from nap.weights import Role, WeightTable


def complete(
    notes: Mapping[str, Note], placements: Collection[Placement], weights: WeightTable
) -> tuple[Note, ...]:
    """The notes; one more for each weight that stays un-normalised though nothing names it."""
    normalised = {placement.module for placement in placements}
    found = {
        name: Note(name, note.reason.removesuffix(STAYS)) if name in normalised else note
        for name, note in notes.items()
    }
    for name, weight in weights.items():
        if weight.role is Role.UNNORMALISED and not _is_named(name, found):
            found[name] = Note(name, f"it {weight.reason}")
    return tuple(found.values())


def _is_named(weight: str, names: Collection[str]) -> bool:
    parts = weight.split(".")
    return any(".".join(parts[:n]) in names for n in range(len(parts) + 1))
