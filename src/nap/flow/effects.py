"""Which effect a call has on the values that enter it."""

from __future__ import annotations

from numbers import Real

from torch import Tensor

from nap.flow import arithmetic, layers, meetings
from nap.flow.call import Call, Follow, Outcome
from nap.flow.operations import EPSILON, KINDS, Kind

_FOLLOW: dict[Kind, Follow] = {
    Kind.SUM: arithmetic.follow_sum,
    Kind.SELECT: arithmetic.follow_select,
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
    kind = kind_of(call)
    return _FOLLOW[kind](call) if kind in _FOLLOW else arithmetic.follow_unknown(call)


def kind_of(call: Call) -> Kind | None:
    """The kind of this call: mostly its name's, but some names do different things."""
    if call.name in ("clamp", "clip", "clamp_min"):
        low, high = call.argument(1, "min"), call.argument(2, "max")
        if high is None and isinstance(low, Real):
            guard = 0 < float(low) <= EPSILON
            return Kind.HOMOGENEOUS if low == 0 else Kind.SUM if guard else Kind.SQUASH
    if call.name in ("max", "min", "maximum", "minimum"):
        other = call.argument(1, "other")
        if isinstance(other, Tensor):
            guard = other.numel() == 1 and not other.requires_grad and abs(float(other)) > 1e3
            return Kind.SUM if guard else Kind.SQUASH
    if call.name == "threshold" and (call.argument(1, "threshold"), call.argument(2, "value")) != (0, 0):
        return Kind.ACTIVATION  # at zero it is a ReLU
    if call.name in ("pow", "float_power") and not isinstance(call.argument(1, "exponent"), Real):
        return Kind.ACTIVATION
    return KINDS.get(call.name)
