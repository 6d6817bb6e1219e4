"""Effects of sums, selections, products, quotients, powers and of what scales with nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from nap.tracing import homogeneity
from nap.tracing.call import Call, Outcome
from nap.tracing.curves import (
    STAYS,
    compared,
    curved,
    of_shared_weights,
    remark,
    remark_choice,
    with_another,
)
from nap.tracing.distances import completed
from nap.tracing.homogeneity import MIXED, NEAR
from nap.tracing.meetings import masked
from nap.tracing.noise import multiplied, paired
from nap.tracing.operations import EPSILON, POWERS, Kind
from nap.tracing.scale import normalised_by_hand, scaled_operands
from nap.tracing.values import CONSTANT, NO_CARRY, Value, merge

DIVISION_BY_POSITIVES = "a division by positive numbers"
REDUCTIONS = ("scatter_reduce", "index_reduce", "segment_reduce")
_DISTANCES = ("cdist", "pairwise_distance", "dist")
_STATISTICS = ("mean", "sum", "amax", "max")
_CASTS = frozenset("float double half bfloat16 to type type_as clone contiguous detach alias".split())  # noqa: SIM905
_MASKING = ("where", "masked_fill", "setitem", "index_put", "masked_scatter")
SHAPED_LIKE = ("type_as", "view_as", "expand_as", "reshape_as", "to")  # the second tensor is only a pattern
_LISTING = frozenset("cat concat concatenate stack hstack vstack dstack".split())  # noqa: SIM905
_COMPARISONS = frozenset("eq ne lt le gt ge".split())  # noqa: SIM905
_PICKS = frozenset("argmax argmin argsort bool nonzero any all and or not".split())  # noqa: SIM905
_ROUNDINGS = frozenset(  # numbers that jump where what they were made of does not
    "int long short byte char floor_divide floordiv mod bucketize searchsorted histc".split()  # noqa: SIM905
)
_TO_FREQUENCIES = frozenset("fft rfft fft2 rfft2 fftn rfftn stft ihfft".split())  # noqa: SIM905
_FROM_FREQUENCIES = frozenset("ifft irfft ifft2 irfft2 ifftn irfftn istft hfft".split())  # noqa: SIM905
_FILLINGS = {  # which arguments of a call are such numbers
    "pad": [(3, "value")],
    "constant_pad_nd": [(2, "value")],
    "pad_packed_sequence": [(2, "padding_value")],
    "where": [(1, "input"), (2, "other")],
    "masked_fill": [(2, "value")],
    "setitem": [(2, "value")],
    "scatter": [(3, "value")],
    "index_fill": [(3, "value")],
}
_CHUNKS = frozenset(
    "chunk split split_with_sizes tensor_split hsplit unbind narrow unsafe_chunk unsafe_split".split()  # noqa: SIM905
)
_CONSTANT = frozenset(  # what is made depends on what was given for its shape at most
    """zeros ones empty full arange linspace logspace eye rand randn randint randperm zero fill uniform
    exponential log_normal geometric random cauchy empty_strided tril_indices triu_indices size""".split()  # noqa: SIM905
)


def follow_sum(call: Call) -> Outcome:
    if call.name == "broadcast_tensors":  # each by itself, as in torch.distributions
        return lambda i, _: call.operands[i]
    # a cast may return what it was given, or a copy: either way it has the scale of what it was given
    scaled = call.name in _STATISTICS or call.name in _CASTS
    operands = scaled_operands(call) if scaled else call.operands
    if call.name == "grid_sample":
        remark(call.rec, operands[1].carry, f"its result says where grid_sample looks{STAYS}")
        operands = [_sampled(call, operands[0]), replace(operands[1], carry=NO_CARRY)]
    remark_choice(call.rec, *(v for v in operands if v.index and not v.carry))
    value = merge(operands[:1] if call.name in SHAPED_LIKE else operands)
    if call.name in _LISTING and value.data:
        call.rec.flow.listed |= {n for v in operands if v.raw for n in v.sources} & call.rec.matrices
    if call.name in ("sum", "mean"):
        _note_dot_products(call)
    if call.name in ("add", "sub", "rsub"):
        value = _shifted(call, value)
        value = completed(call, value, operands)
        value = replace(value, degrees={**value.degrees, **paired(call, value)})
    if call.name == "lerp" and len(operands) == 3:
        start, end, weight = (v.degrees for v in operands)
        moved = [homogeneity.of_product([part, weight]) for part in (start, end)]
        value = replace(value, degrees=homogeneity.of_sum([start, *moved]))
        value = _by_itself(call, value if operands[2].index else _interpolated(value, operands))
    if any(number != 0 and abs(number) != math.inf for number in _filling(call)):
        value = replace(value, degrees=homogeneity.of_sum([value.degrees, homogeneity.NONE]))
    if call.name in _MASKING:
        value = masked(call, value, call.tensors[-1 if call.name == "where" else 0])
        value = _by_own_choice(call, value)
    if call.name in _TO_FREQUENCIES or call.name in _FROM_FREQUENCIES:
        value = replace(value, fourier=call.name in _TO_FREQUENCIES)
    return value


def _filling(call: Call) -> list[complex]:
    """The numbers that a call puts beside the elements of its tensors."""
    given = [call.argument(place, word) for place, word in _FILLINGS.get(call.name, ())]
    return [number for number in given if isinstance(number, (int, float, complex))]


def _sampled(call: Call, image: Value) -> Value:
    """An image that values are read from: one of parameters is a table, as the planes of a scene are."""
    if image.raw and not image.data:
        call.rec.flow.tables |= image.sources & call.rec.matrices
    return image


def _interpolated(value: Value, operands: Sequence[Value]) -> Value:
    """start + weight·(end − start), where the weight is made of data: a product in one call."""
    if not operands[2].data or not any(v.carry for v in operands[:2]):
        return value
    return replace(value, carry=frozenset(replace(c, times=not c.batch_norm or c.times) for c in value.carry))


def _note_dot_products(call: Call) -> None:
    """(x * w).sum(-1): a sum over the entries of a parameter makes a layer of it."""
    ndim, dims = call.tensors[0].ndim, call.argument(1, "dim")
    summed = range(ndim) if dims is None or isinstance(dims, torch.dtype) else dims
    axes = {d % ndim - ndim for d in ([summed] if isinstance(summed, int) else summed)} if ndim else set()
    for name in call.operands[0].gains:
        shape = call.rec.shapes[name]
        if any(-axis <= len(shape) and shape[axis] > 1 for axis in axes):
            call.rec.flow.dotted.add(name)


def follow_choice(call: Call) -> Outcome:
    """The largest, the median, the sorted: c·x gives c times as much, yet it is no linear map."""
    value = merge(scaled_operands(call) if call.name in _STATISTICS else call.operands)
    pool = call.name.removeprefix("adaptive_").startswith("max_pool")
    given = call.tensors if call.name in REDUCTIONS else call.tensors[:1]
    chosen = curved(call, value, given, kind=Kind.HOMOGENEOUS, bent=not pool)
    chosen = chosen.relabel(sliced=True) if call.name == "topk" else chosen
    picks = _picks(value)
    return lambda _, result: chosen if result.is_floating_point() else picks


def _picks(value: Value) -> Value:
    """Indices of what was chosen: the largest of c·x is where the largest of x is."""
    degrees = {n: d for n, d in value.degrees.items() if d in (NEAR, MIXED)}
    picked = value.picked | value.carry
    return Value(data=value.data, degrees=degrees, pending=value.pending, mask=value.mask, picked=picked)


def _by_own_choice(call: Call, value: Value, masks: bool = False) -> Value:
    """What is chosen by where it is largest itself, or where a mask that was made of it says so."""
    chosen = {c.key for v in call.operands for c in (v.picked | v.mask if masks else v.picked)}
    keys = {c.key for c in value.carry if c.key in chosen and c.product is None}
    return curved(call, value, call.tensors, keys=keys, kind=Kind.HOMOGENEOUS)


def _by_itself(call: Call, value: Value) -> Value:
    """A product of two values that are made of the same weights is no linear map of them."""
    shared = of_shared_weights(call.rec, call.operands)
    return curved(call, value, call.tensors, keys=shared, name=f"{call.name} with itself")


def _shifted(call: Call, value: Value) -> Value:
    """A sum with a number in it has no degree; a parameter in it is a bias."""
    numbers = [a for a in (*call.args[:2], call.kwargs.get("other")) if isinstance(a, (int, float, complex))]
    if call.rec.produced_here(value):
        names = {n for v in call.operands if not v.data for n in v.sources}
        call.rec.flow.added.update(names)
        for carry in value.carry:
            call.rec.flow.shifts[carry.key].update(names)
    if any(not abs(number) <= EPSILON for number in numbers):
        call.rec.flow.curved |= value.affine
        return replace(value, degrees=homogeneity.of_sum([value.degrees, homogeneity.NONE]))
    return value


def follow_select(call: Call) -> Value:
    whole, flow = call.operands[0], call.rec.flow
    value = merge(call.operands)
    if not whole.data and call.tensors[0].ndim < 3:
        if whole.raw and any(v.data and v.index for v in call.operands[1:]):
            value = _looked_up(call, value)
    elif not whole.data:
        by_one = call.name in ("select", "index_select", "unbind") and not call.argument(1, "dim", 0)
        if by_one or (call.name == "getitem" and isinstance(call.args[1], (int, Tensor))):
            flow.stacked.update(dict.fromkeys(whole.sources, call.tensors[0].ndim - 2))
        if all(v.index for v in call.operands[1:]):
            value = replace(value, data=False, sources=whole.sources)  # a weight, whoever chose it
    remark_choice(call.rec, *call.operands[1:])
    value = _by_own_choice(call, value, masks=True)
    value = replace(value, mask=whole.mask, picked=whole.picked)  # not those of the indices
    return value.relabel(sliced=True, **({"chunk": True} if _is_chunk(call) else {}))


def _looked_up(call: Call, value: Value) -> Value:
    """Rows of a matrix of parameters, chosen by data: a table, as an embedding is."""
    names = call.operands[0].sources & call.rec.matrices
    call.rec.flow.tables |= names
    call.rec.flow.chosen |= names
    return replace(value, beside=value.beside | names)


def _note_tables(call: Call, value: Value) -> None:
    for name in value.beside & call.rec.flow.tables:
        call.rec.flow.bent.setdefault(name, call.name)


def _is_chunk(call: Call) -> bool:
    """Whether a range of features or one of several equal parts is taken, not rows or steps in time."""
    if call.name == "getitem":
        index = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
        return isinstance(index[-1], slice) and index[-1] != slice(None) and len(index) > 1
    return call.name in _CHUNKS


def follow_product(call: Call) -> Value:
    operands = scaled_operands(call)
    factors = [v.degrees for v in operands if not v.index]
    degrees = homogeneity.of_product(factors)
    if call.name == "addcmul":
        degrees = homogeneity.of_sum([factors[0], homogeneity.of_product(factors[1:])])
    gains = frozenset(n for v in operands if not v.data for n in v.sources)
    if any(v.data for v in operands):
        call.rec.flow.scaled.update(gains)
    value = normalised_by_hand(call, replace(merge(operands), degrees=degrees, gains=gains), operands)
    zero = any(v.zero for v in operands) and call.name != "addcmul"
    value = replace(value, noised=value.noised | multiplied(call), zero=value.zero or zero)
    if call.name == "addcmul":
        value = replace(value, degrees={**value.degrees, **paired(call, value)})
    remark_choice(call.rec, *(v for v in operands if v.picked and not v.carry))
    value = _by_own_choice(call, masked(call, value, call.tensors[0]))
    if sum(bool(v.carry or v.beside & call.rec.flow.tables) for v in operands) > 1:
        _note_tables(call, value)
    value = with_another(call.rec, value, operands[call.name == "addcmul" :])
    if sum(v.fourier and v.data and bool(v.carry) for v in operands) > 1:
        return curved(call, value, call.tensors, name="a product in Fourier space")
    return _by_itself(call, value)


def follow_quotient(call: Call) -> Value:
    operands = scaled_operands(call)
    value = merge(operands)
    parts = [v.degrees for v in operands]
    if not operands:  # torch.div of two numbers
        return value
    if call.name == "cosine_similarity":
        call.rec.flow.compared |= {n for v in operands if not v.data for n in v.sources}
        call.rec.normalised(value)
        return replace(value, carry=NO_CARRY, degrees=homogeneity.of_norm(value.degrees))
    if call.name == "addcdiv":
        quotient = homogeneity.of_product([parts[1], homogeneity.of_power(parts[2], -1)])
        return replace(value, degrees=homogeneity.of_sum([parts[0], quotient]))
    if call.name in ("rdiv", "reciprocal") or not isinstance(call.args[0], Tensor):
        parts[0] = homogeneity.of_power(parts[0], -1)
    parts[1:] = [homogeneity.of_power(p, -1) for p in parts[1:]]
    value = normalised_by_hand(call, replace(value, degrees=homogeneity.of_product(parts)), operands)
    inverted = call.name in ("rdiv", "reciprocal") or not isinstance(call.args[0], Tensor)
    below, denominators = (operands, call.tensors) if inverted else (operands[1:], call.tensors[1:])
    positive = all(not t.is_meta and bool((t > 0).all()) for t in denominators if t.is_floating_point())
    straight = any(not c.bent for v in below for c in v.carry)
    name = DIVISION_BY_POSITIVES if positive and straight else "a division"
    return curved(call, value, denominators, keys={c.key for v in below for c in v.carry}, name=name)


def follow_power(call: Call) -> Outcome:
    value = curved(call, merge(scaled_operands(call)), call.tensors)
    _note_tables(call, value)
    if call.name in _DISTANCES and value.data:
        for name in {n for v in call.operands for n in v.sources} & call.rec.matrices:
            call.rec.flow.compared.add(name)
            call.rec.flow.remarks.setdefault(name, f"distances to it are taken{STAYS}")
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
    if name in _PICKS:
        return _picks(value) if name.startswith("arg") else replace(_picks(value), picked=value.picked)
    mask = compared(call, value) if name in _COMPARISONS | _ROUNDINGS else NO_CARRY
    return Value(
        data=value.data,
        degrees=degrees,
        pending=value.pending,
        mask=mask | value.mask,
        picked=value.picked,
        foreign=value.foreign,
    )


def follow_unknown(call: Call) -> Outcome:
    """Whatever it does, nothing is claimed of it; and a producer must not get lost in it."""
    value = merge(call.operands)
    lost = value.data and (value.carry or any(v.sources and not v.data for v in call.operands))
    degrees = homogeneity.of_nonlinearity(value.degrees)
    careful = replace(value, degrees=degrees, mask=NO_CARRY, probability=False)
    careful = replace(careful, carry=NO_CARRY) if value.data else curved(call, careful, call.tensors)

    def outcome(_: int, result: Tensor) -> Value:
        if lost and result.is_floating_point():
            call.rec.flow.unknown.setdefault(call.name, call.rec.site)
            call.rec.flow.lost.update((c.site, call.name) for v in call.operands for c in v.carry)
        return careful

    return outcome
