"""Which effect a call has on the values that enter it."""

from __future__ import annotations

from dataclasses import replace
from numbers import Real

from torch import Tensor

from nap.tracing import arithmetic, layers, meetings
from nap.tracing.call import Call, Follow, Outcome
from nap.tracing.masked import need_values
from nap.tracing.operations import EPSILON, KEEPING_LAYOUT, KINDS, Kind
from nap.tracing.scripted import names_of_function
from nap.tracing.values import Value

_FOLLOW: dict[Kind, Follow] = {
    Kind.SUM: arithmetic.follow_sum,
    Kind.SELECT: arithmetic.follow_select,
    Kind.CHOICE: arithmetic.follow_choice,
    Kind.PRODUCT: arithmetic.follow_product,
    Kind.QUOTIENT: arithmetic.follow_quotient,
    Kind.POWER: arithmetic.follow_power,
    Kind.FRESH: arithmetic.follow_fresh,
    Kind.CONTRACT: layers.follow_contract,
    Kind.LOOKUP: layers.follow_lookup,
    Kind.NORM: layers.follow_norm,
    Kind.BATCH_NORM: layers.follow_batch_norm,
    Kind.GATE: meetings.follow_glu,
    Kind.ATTENTION: meetings.follow_attention,
    **{
        kind: meetings.follow_nonlinearity(kind)
        for kind in (Kind.HOMOGENEOUS, Kind.ACTIVATION, Kind.SQUASH, Kind.SOFTMAX)
    },
}


def follow(call: Call) -> Outcome:
    """The value of each result of a call; what else it does is reported to the recorder."""
    need_values(call)
    kind = kind_of(call)
    outcome = _FOLLOW[kind](call) if kind in _FOLLOW else arithmetic.follow_unknown(call)
    if not any(v.carry for v in call.operands) or _keeps_layout(call, kind):
        return outcome
    if callable(outcome):
        return lambda i, result: _moved(call, outcome(i, result))
    return _moved(call, outcome)


def _moved(call: Call, value: Value) -> Value:
    """The value with the first such operation noted on all that was carried before it."""
    before = {c.key for v in call.operands for c in v.carry}
    name = call.name if len(call.tensors) == 1 else ""
    fresh = (
        replace(c, moved=name) if c.key in before and c.moved is None and not c.batch_norm else c
        for c in value.carry
    )
    return replace(value, carry=frozenset(fresh))


def _keeps_layout(call: Call, kind: Kind | None) -> bool:
    """Whether all that is carried stays laid out as it was, and joins with other things in sums only."""
    if kind is Kind.BATCH_NORM:
        return True
    if kind is Kind.PRODUCT:
        return call.name != "addcmul" and sum(bool(v.carry) for v in call.operands) == 1
    if kind is Kind.QUOTIENT:
        named = call.name in ("div", "divide", "true_divide") and isinstance(call.args[0], Tensor)
        return named and not any(v.carry for v in call.operands[1:])
    return call.name in KEEPING_LAYOUT


def kind_of(call: Call) -> Kind | None:
    """The kind of this call: mostly its name's, but some names do different things."""
    names = names_of_function(call.name)
    told = call.rec.told.kind(names)
    if told is not None:
        call.rec.flow.told |= names
        return told
    if call.name in ("clamp", "clip", "clamp_min"):
        low, high = call.argument(1, "min"), call.argument(2, "max")
        if high is None and isinstance(low, Real):
            guard = 0 < float(low) <= EPSILON
            if low == 0 or (guard and not all(c.bent for v in call.operands for c in v.carry)):
                return Kind.HOMOGENEOUS
            return Kind.SUM if guard else Kind.SQUASH
    if call.name in ("max", "min", "maximum", "minimum"):
        other = call.argument(1, "other")
        if isinstance(other, Tensor):
            guard = other.numel() == 1 and not other.requires_grad and abs(float(other)) > 1e3
            return Kind.SUM if guard else Kind.SQUASH
    if call.name in arithmetic.REDUCTIONS:
        return Kind.CHOICE if _chooses(call) else Kind.SUM
    if call.name == "threshold" and (call.argument(1, "threshold"), call.argument(2, "value")) != (0, 0):
        return Kind.ACTIVATION  # at zero it is a ReLU
    if call.name in ("pow", "float_power") and not isinstance(call.argument(1, "exponent"), Real):
        return Kind.ACTIVATION
    return KINDS.get(call.name)


def _chooses(call: Call) -> bool:
    """Whether a reduction takes the largest, the smallest or the product."""
    words = (*call.args, *call.kwargs.values())
    return any(word in ("amax", "amin", "max", "min", "prod") for word in words if isinstance(word, str))
