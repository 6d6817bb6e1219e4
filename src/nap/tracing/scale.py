"""The scale of a whole value, followed so that a norm which is written out is seen to be one.

x·rsqrt(mean(x²) + eps) is made of products and powers, none of them a norm. But give x a pseudo-weight
that stands for its scale, and the algebra of degrees finds that the result has degree 0 in it.
"""

from __future__ import annotations

from dataclasses import replace

from nap.tracing.call import Call
from nap.tracing.homogeneity import MIXED, NEAR, Degrees
from nap.tracing.values import Value

_MARK = "#"  # no parameter's name begins with it


def scaled_operands(call: Call) -> list[Value]:
    """The operands, each that carries a producer with a pseudo-weight for its own scale."""
    rec, found = call.rec, []
    marked: dict[int, Value] = {}  # x·x has x twice
    for tensor, value in zip(call.tensors, call.operands, strict=True):
        value = marked.get(id(tensor), value)
        if (
            value.data
            and value.carry
            and not any(d not in (NEAR, MIXED) for d in _scales(value.degrees).values())
        ):
            name = f"{_MARK}{len(rec.scales)}"
            rec.scales[name] = value.carry
            value = replace(value, degrees={**value.degrees, name: 1.0})
            rec.put(tensor, value)
            marked[id(tensor)] = value
        found.append(value)
    return found


def normalised_by_hand(call: Call, value: Value, operands: list[Value]) -> Value:
    """x·(1/‖x‖): where the scale of x has cancelled, what x carried is normalised."""
    rec = call.rec
    for name, degree in _scales(value.degrees).items():
        if degree == NEAR and any(v.degrees.get(name, NEAR) != NEAR for v in operands):
            gone = {c.key for c in rec.scales[name]} - {c.key for v in operands for c in v.carry if c.chosen}
            if not gone:
                continue
            carry = frozenset(c for c in value.carry if c.key in gone)
            rec.normalised(replace(value, carry=carry))
            rec.flow.inline.add(rec.site)
            value = replace(value, carry=value.carry - carry)
    return value


def without_scales(degrees: Degrees) -> Degrees:
    """A new producer begins: the scales of the values before it are history."""
    return {name: d for name, d in degrees.items() if not name.startswith(_MARK)}


def _scales(degrees: Degrees) -> Degrees:
    return {name: d for name, d in degrees.items() if name.startswith(_MARK)}
