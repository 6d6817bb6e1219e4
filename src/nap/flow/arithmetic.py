"""Effects of sums, selections, products, quotients, powers and of what scales with nothing."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from nap.flow import homogeneity
from nap.flow.call import Call, Outcome
from nap.flow.homogeneity import MIXED, NEAR
from nap.flow.meetings import masked
from nap.flow.noise import multiplied, paired
from nap.flow.operations import EPSILON, POWERS
from nap.flow.scale import normalised_by_hand, scaled_operands
from nap.flow.values import CONSTANT, NO_CARRY, Value, merge

_STATISTICS = ("mean", "sum", "amax", "max")
_SHAPED_LIKE = ("type_as", "view_as", "expand_as", "reshape_as", "to")  # the second tensor is only a pattern
_COMPARISONS = frozenset("eq ne lt le gt ge".split())  # noqa: SIM905
_PICKS = frozenset("argmax argmin argsort bool nonzero any all and or not".split())  # noqa: SIM905
_CONSTANT = frozenset(  # what is made depends on what was given for its shape at most
    """zeros ones empty full arange linspace logspace eye rand randn randint randperm zero fill uniform
    exponential log_normal geometric random cauchy empty_strided tril_indices triu_indices size""".split()  # noqa: SIM905
)


def follow_sum(call: Call) -> Outcome:
    if call.name == "broadcast_tensors":  # each by itself, as in torch.distributions
        return lambda i, _: call.operands[i]
    operands = scaled_operands(call) if call.name in _STATISTICS else call.operands
    value = merge(operands[:1] if call.name in _SHAPED_LIKE else operands)
    if call.name in ("add", "sub", "rsub"):
        value = _shifted(call, value)
        value = replace(value, degrees={**value.degrees, **paired(call, value)})
    if call.name == "lerp" and len(operands) == 3:
        start, end, weight = (v.degrees for v in operands)
        moved = [homogeneity.of_product([part, weight]) for part in (start, end)]
        value = replace(value, degrees=homogeneity.of_sum([start, *moved]))
    if call.name in ("where", "masked_fill"):
        value = masked(call, value, call.tensors[-1 if call.name == "where" else 0])
    return value


def _shifted(call: Call, value: Value) -> Value:
    """A sum with a number in it has no degree; a parameter in it is a bias."""
    numbers = [a for a in (*call.args[:2], call.kwargs.get("other")) if isinstance(a, (int, float, complex))]
    if call.rec.produced_here(value):
        call.rec.flow.added.update(n for v in call.operands if not v.data for n in v.sources)
    if any(not abs(number) <= EPSILON for number in numbers):
        call.rec.flow.curved |= value.affine
        return replace(value, degrees=homogeneity.of_sum([value.degrees, homogeneity.NONE]))
    return value


def follow_select(call: Call) -> Value:
    whole, flow = call.operands[0], call.rec.flow
    value = merge(call.operands)
    if not whole.data and call.tensors[0].ndim >= 3:
        by_one = call.name in ("select", "index_select", "unbind")
        if by_one or (call.name == "getitem" and isinstance(call.args[1], (int, Tensor))):
            flow.stacked.update(dict.fromkeys(whole.sources, call.tensors[0].ndim - 2))
        if all(v.index for v in call.operands[1:]):
            value = replace(value, data=False, sources=whole.sources)  # a weight, whoever chose it
    return value.relabel(sliced=True)


def follow_product(call: Call) -> Value:
    operands = scaled_operands(call)
    factors = [v.degrees for v in operands if not v.index]
    degrees = homogeneity.of_product(factors)
    if call.name == "addcmul":
        degrees = homogeneity.of_sum([factors[0], homogeneity.of_product(factors[1:])])
    if any(v.data for v in operands):
        call.rec.flow.scaled.update(n for v in operands if not v.data for n in v.sources)
    value = normalised_by_hand(call, replace(merge(operands), degrees=degrees), operands)
    zero = any(v.zero for v in operands) and call.name != "addcmul"
    value = replace(value, noised=value.noised | multiplied(call), zero=value.zero or zero)
    if call.name == "addcmul":
        value = replace(value, degrees={**value.degrees, **paired(call, value)})
    return masked(call, value, call.tensors[0])


def follow_quotient(call: Call) -> Value:
    operands = scaled_operands(call)
    value = merge(operands)
    parts = [v.degrees for v in operands]
    if not operands:  # torch.div of two numbers
        return value
    if call.name == "cosine_similarity":
        call.rec.normalised(value)
        return replace(value, carry=NO_CARRY, degrees=homogeneity.of_norm(value.degrees))
    if call.name == "addcdiv":
        quotient = homogeneity.of_product([parts[1], homogeneity.of_power(parts[2], -1)])
        return replace(value, degrees=homogeneity.of_sum([parts[0], quotient]))
    if call.name in ("rdiv", "reciprocal") or not isinstance(call.args[0], Tensor):
        parts[0] = homogeneity.of_power(parts[0], -1)
    parts[1:] = [homogeneity.of_power(p, -1) for p in parts[1:]]
    return normalised_by_hand(call, replace(value, degrees=homogeneity.of_product(parts)), operands)


def follow_power(call: Call) -> Outcome:
    value = merge(scaled_operands(call)).relabel(bent=True)
    call.rec.nonlinear += bool(value.carry)
    exponent = POWERS.get(call.name, 1.0)
    if call.name in ("pow", "float_power"):
        exponent = float(call.argument(1, "exponent"))
    powered = replace(value, degrees=homogeneity.of_power(value.degrees, exponent))
    return lambda i, _: powered if i == 0 else value  # var_mean and std_mean return the mean second


def follow_fresh(call: Call) -> Value:
    name = call.name
    if name in _CONSTANT or name.startswith("new_") or name.endswith("_like"):
        return replace(CONSTANT, zero="zeros" in name or name == "zero")
    value = merge(call.operands)
    degrees = homogeneity.of_nonlinearity(value.degrees)
    if name in _PICKS:  # the largest of c·x is where the largest of x is
        degrees = {n: d for n, d in value.degrees.items() if d in (NEAR, MIXED)}
    mask = (value.carry if name in _COMPARISONS else NO_CARRY) | value.mask
    return Value(data=value.data, degrees=degrees, pending=value.pending, mask=mask)


def follow_unknown(call: Call) -> Outcome:
    """Whatever it does, nothing is claimed of it; and a producer must not get lost in it."""
    value = merge(call.operands)
    lost = value.carry or (value.data and any(v.sources and not v.data for v in call.operands))
    degrees = homogeneity.of_nonlinearity(value.degrees)
    careful = replace(value, degrees=degrees, carry=NO_CARRY, mask=NO_CARRY, probability=False)

    def outcome(_: int, result: Tensor) -> Value:
        if lost and result.is_floating_point():
            call.rec.flow.unknown.setdefault(call.name, call.rec.site)
        return careful

    return outcome
