"""Distances that are written out, ‖x‖² − 2·x·w + ‖w‖²: a norm on x·w alone would break them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nap.tracing.call import Call
from nap.tracing.curves import STAYS, remark
from nap.tracing.values import Value


def completed(call: Call, value: Value, operands: Sequence[Value]) -> Value:
    """The sum `value` of `operands`; with the squares of weights, products with them are distances."""
    flow = call.rec.flow
    squares = frozenset(
        n for v in operands for n in (v.squares if v.data else v.sources) if v.data or v.degrees.get(n) == 2.0
    )
    if not squares or not value.data:
        return value
    products = frozenset(
        c for c in value.carry if (flow.uses[c.key].sources & squares) and not c.bent and not c.product
    )
    if products:
        names = frozenset().union(*(flow.uses[c.key].sources for c in products))
        flow.compared |= names & call.rec.matrices
        for name in names:
            flow.remarks.setdefault(name, f"distances to it are taken{STAYS}")
        remark(call.rec, products, f"distances to it are taken{STAYS}")
    return replace(value, carry=value.carry - products, squares=squares)
