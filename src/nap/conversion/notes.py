"""What a plan says of parts that it leaves as they are."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from nap.conversion.placement import Note, Placement
from nap.tracing.curves import STAYS
from nap.tracing.record import Flow
from nap.weights import Role, WeightTable


def complete(
    notes: Mapping[str, Note],
    placements: Collection[Placement],
    weights: WeightTable,
    flows: Collection[Flow],
) -> tuple[Note, ...]:
    """The notes; one more for each weight that stays un-normalised though nothing names it.

    `flows` are those of the converted model: there, results that are multiplied with each other have no norm.
    """
    normalised = {placement.module for placement in placements}
    normalised |= {f"{p.module}.{path}".lstrip(".") for p in placements for path in p.weights}
    found = {
        name: Note(name, note.reason.removesuffix(STAYS)) if name in normalised else note
        for name, note in notes.items()
    }
    for name, text in (item for flow in flows for item in flow.multiplied.items()):
        found.setdefault(name, Note(name, text.removesuffix(STAYS) if name in normalised else text))
    for name, weight in weights.items():
        if weight.role is Role.UNNORMALISED and not _is_named(name, found):
            found[name] = Note(name, f"it {weight.reason}")
    for name, operation in (item for flow in flows for item in flow.bent.items()):
        if weights[name].role not in (Role.SCALE_INVARIANT, Role.NORMALISED) and not _is_named(name, found):
            found[name] = Note(name, f"it enters {operation} with no norm in front, and it stays as it is")
    for name, fed in _feeding(weights, flows, notes):
        if name not in normalised and not _is_named(name, found):
            found[name] = Note(name, f"it feeds {fed}, which has no norm, with none between")
    return tuple(found.values())


def _feeding(
    weights: WeightTable, flows: Collection[Flow], notes: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Weights in front of one that stays un-normalised, with only linear maps between the two."""
    for flow in flows:
        for key, use in flow.uses.items():
            for fed in sorted(n for n in use.sources if _is_open(n, weights, notes)):
                for name in sorted(flow.lineage.get(key, use.sources) - use.sources):
                    if weights[name].role not in (Role.SCALE_INVARIANT, Role.NORMALISED):
                        yield name, fed


def _is_open(name: str, weights: WeightTable, notes: Collection[str]) -> bool:
    """Whether what a weight makes enters a nonlinearity as it is, though its own scale may cancel."""
    role = weights[name].role
    return role is Role.UNNORMALISED or (role is Role.NORMALISED and name in notes)


def _is_named(weight: str, names: Collection[str]) -> bool:
    parts = weight.split(".")
    return any(".".join(parts[:n]) in names for n in range(len(parts) + 1))
