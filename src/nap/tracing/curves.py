"""Operations that bend a value without being an activation by name: powers, choices, products with itself.

They may be part of a norm that is written out, or of a softmax, so they are only noted on what is carried.
Where it then enters another layer or a norm, the operation was a nonlinearity after all (`meet_curves`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from nap.tracing import homogeneity
from nap.tracing.call import Call
from nap.tracing.operations import Kind
from nap.tracing.values import NO_CARRY, Carry, Value

if TYPE_CHECKING:
    from nap.tracing.recorder import Recorder


@dataclass(frozen=True)
class Place:
    """One call of such an operation."""

    name: str
    kind: Kind
    tensors: tuple[Tensor, ...]  # what it was given, with their gradients
    modules: tuple[str, ...]  # that were running, outermost first
    active: frozenset[int]  # their calls


def curved(
    call: Call,
    value: Value,
    tensors: Sequence[Tensor],
    *,
    keys: Collection[tuple[str, int, int]] | None = None,
    name: str = "",
    kind: Kind = Kind.ACTIVATION,
    bent: bool = True,
) -> Value:
    """The value with the operation noted on what it carries, or on the part of it that `keys` names."""
    noted = _noted(call, value.carry, tensors, keys, name, kind, bent)
    return value if noted is value.carry else replace(value, carry=noted)


def of_shared_weights(rec: Recorder, values: Sequence[Value]) -> set[tuple[str, int, int]]:
    """The results that are in one operand and, as they are or behind other layers, in another one, too.

    Their product is no linear map of their weights: h·h, u·v of one encoder, h·(W·h). Where only what both
    operands were computed from is shared, as in (A·h)·(B·h), it is all that has come of it.
    """
    made = [{c.key: rec.lineage[c.key] for c in value.carry} for value in values]
    counts = Counter(name for part in made for name in frozenset().union(*part.values()))
    shared = {name for name, count in counts.items() if count > 1}
    found = {key for part in made for key, names in part.items() if names & shared}
    return {key for key in found if rec.flow.uses[key].sources & shared} or found


AGAIN = "what it makes enters it again, with no norm between, and it stays as it is"
MULTIPLIED = (
    "its result is multiplied with that of another layer, with no norm in front of either; "
    "the product is linear in each of them, and they stay as they are"
)


def with_another(rec: Recorder, value: Value, factors: Sequence[Value]) -> Value:
    """The product of `factors`, noted on what it carries if two of them carry results as they are."""
    for factor in factors:
        for c in factor.carry:
            others = [v for v in factors if v is not factor and v.data]
            if c.bent and c.curve and any(c.key not in {o.key for o in v.carry} for v in others):
                why = f"{c.curve[0]} of its result multiplies other results, and it stays as it is"
                rec.flow.multiplied.update(dict.fromkeys(rec.flow.uses[c.key].names(c.site), why))
    open_ = [frozenset(c.key for c in v.carry if not c.batch_norm) for v in factors]
    if sum(map(bool, open_)) < 2:
        return value
    keys = frozenset().union(*open_)
    return replace(
        value, carry=frozenset(replace(c, times=True) if c.key in keys else c for c in value.carry)
    )


def note_products(rec: Recorder, carry: frozenset[Carry]) -> None:
    """A layer or a norm is given products of results: no linear map of all their weights together."""
    for c in sorted((c for c in carry if c.times), key=lambda c: c.key):
        for name in rec.flow.uses[c.key].names(c.site):
            rec.flow.multiplied.setdefault(name, MULTIPLIED)


def compared(call: Call, value: Value) -> frozenset[Carry]:
    """What a mask, or a number that was rounded, says something about."""
    return _noted(call, value.carry, call.tensors[:1], None, call.name, Kind.ACTIVATION, bent=True)


def _noted(
    call: Call,
    carry: frozenset[Carry],
    tensors: Sequence[Tensor],
    keys: Collection[tuple[str, int, int]] | None,
    name: str,
    kind: Kind,
    bent: bool,
) -> frozenset[Carry]:
    rec = call.rec
    hit = frozenset(c for c in carry if keys is None or c.key in keys)
    if not hit:
        return carry
    rec.nonlinear += 1
    frames = rec.frames
    place = Place(
        name or call.name,
        kind,
        tuple(t for t in tensors if t.is_floating_point() or t.is_complex()),
        tuple(f.site for f in frames),
        frozenset(f.call for f in frames),
    )
    rec.places.append(place)
    here = (place.name, len(rec.places) - 1)
    chosen = kind is Kind.HOMOGENEOUS
    return (carry - hit) | {
        replace(c, bent=c.bent or bent, chosen=c.chosen or chosen, curve=c.curve or here) for c in hit
    }


def curves_of(value: Value) -> dict[tuple[str, int], frozenset[Carry]]:
    """What a value carries by the operation that bent it; masks are bent by their comparison."""
    found: dict[tuple[str, int], frozenset[Carry]] = {}
    for c in sorted(value.carry | value.mask, key=lambda c: c.key):
        if c.curve is not None and (c.product is None or c in value.carry):
            found[c.curve] = found.get(c.curve, NO_CARRY) | {c}
    return found


def remark(rec: Recorder, carry: frozenset[Carry], text: str) -> None:
    """Something that the plan is to say of layers whose results are left as they are."""
    for c in carry:
        if c.product is None:
            for name in rec.flow.uses[c.key].names(c.site):
                rec.flow.remarks.setdefault(name, text)


def note_escape(rec: Recorder, name: str, values: Collection[Value]) -> None:
    """A tensor leaves torch: what is made of it outside comes back as if it were made of nothing."""
    for value in values:
        if rec.told.kind([name]) is not None or not value.data or not value.carry | value.mask:
            continue
        if name in _AS_ARRAYS:
            rec.flow.unknown.setdefault(name, rec.site)
            rec.flow.degrees.update(homogeneity.of_nonlinearity(value.degrees))
        else:
            remark(rec, value.carry | value.mask, "the code reads it as a number; what that does is not seen")


STAYS = ", and it stays as it is"  # how a remark ends on what gets no norm
_AS_ARRAYS = frozenset(["numpy", "array", "tolist", "dlpack"])
_AS_NUMBERS = frozenset(["item", "float", "int", "bool", "index", "complex"])
ESCAPES = _AS_ARRAYS | _AS_NUMBERS


def remark_choice(rec: Recorder, *indices: Value) -> None:
    for index in indices:
        picked = frozenset(replace(c, product=None) for c in index.picked)
        remark(rec, picked, f"its largest or smallest entries choose what is taken{STAYS}")


def place_of(rec: Recorder, carry: Carry) -> Place | None:
    return None if carry.curve is None else rec.places[carry.curve[1]]
