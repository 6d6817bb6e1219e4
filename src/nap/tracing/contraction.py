"""Matrix products, convolutions and einsums: what is multiplied with what, along which axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from nap.norms.products import part_of
from nap.tracing.masked import kept_apart, lacks_taps
from nap.tracing.record import Use
from nap.tracing.values import Carry, Value

if TYPE_CHECKING:
    from nap.tracing.recorder import Recorder

_ADDEND_FIRST = ("addmm", "addmv", "addbmm", "baddbmm", "addr")
_GROUPS = 6  # which argument of a transposed convolution they are
_OUTER = ("outer", "ger", "addr", "kron")
_ADDEND_LAST = {"linear": 2, "bilinear": 3, "conv_tbc": 2}


def split_operands(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors that are added, and those that are multiplied."""
    if name == "einsum":
        operands = args[1] if isinstance(args[1], (list, tuple)) else args[1:]
        return [], list(operands)
    tensors = [a for a in args if isinstance(a, Tensor)]
    named = [kwargs[key] for key in _ORDER if isinstance(kwargs.get(key), Tensor)]
    tensors = tensors + named
    if name in _ADDEND_FIRST:
        return tensors[:1], tensors[1:]
    cut = 2 if name.startswith("conv") else _ADDEND_LAST.get(name, len(tensors))
    return tensors[cut:], tensors[:cut]


_ORDER = (
    "input",
    "input1",
    "input2",
    "self",
    "mat1",
    "batch1",
    "vec1",
    "other",
    "mat2",
    "batch2",
    "vec",
    "weight",
    "bias",
)


def parametric_use(
    rec: Recorder,
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    factors: Sequence[Tensor],
    values: Sequence[Value],
) -> Use:
    """How the output of a parametric function is laid out, and which axes and parts its weights have."""
    sources = frozenset(n for v in values if not v.data for n in v.sources)
    use = _laid_out(rec, name, args, kwargs, factors, values, sources)
    if len(sources) == 1:
        whole = rec.weights[min(sources)]
        weight = next(f for f, v in zip(factors, values, strict=True) if not v.data and v.sources)
        use.part = part_of(weight, whole)
    _note_masks(rec, name, args, factors, values, use)
    return use


def _note_masks(
    rec: Recorder,
    name: str,
    args: Sequence[Any],
    factors: Sequence[Tensor],
    values: Sequence[Value],
    use: Use,
) -> None:
    """What zeros in its one weight keep apart."""
    where = [i for i, v in enumerate(values) if not v.data and v.sources]
    if len(where) != 1 or use.single:
        return
    weight = factors[where[0]]
    whole = rec.weights[min(use.sources)] if len(use.sources) == 1 else None
    if name.startswith("conv"):
        axis = int("transpose" in name)
        use.tapped = lacks_taps(weight, whole)
    elif name in ("linear", "bilinear"):
        axis = 0
    elif name == "einsum":
        axis = _einsum_axes(args[0], where[0], [f.ndim for f in factors])[2]
    else:
        axis = -1 if where[0] else -2
    if weight.ndim == 2 or name.startswith("conv"):
        mixes = use.axis < -1 and not name.startswith("conv")
        use.apart = kept_apart(weight, axis, whole, mixes=mixes)


def _laid_out(
    rec: Recorder,
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    factors: Sequence[Tensor],
    values: Sequence[Value],
    sources: frozenset[str],
) -> Use:
    if name.startswith("conv"):
        spatial = 1 if name == "conv_tbc" else factors[1].ndim - 2
        _note_axis(rec, sources, factors[1], int("transpose" in name))
        if "transpose" in name:
            groups = kwargs.get("groups", args[_GROUPS] if len(args) > _GROUPS else 1)
            rec.flow.groups.update(dict.fromkeys(sources, groups))
        return Use(sources, name, -1 - spatial, spatial)
    if name in ("linear", "bilinear"):
        _note_axis(rec, sources, factors[-1], 0)
        return Use(sources, name, single=factors[-1].ndim == 1)
    where = _main_weight(name, args, factors, values)
    weight = factors[where]
    members: Sequence[int] = ()
    if name == "einsum":
        found, members, out_axis = _einsum_axes(args[0], where, [f.ndim for f in factors])
        stacked, single = len(members), found is None
        axis = -1 if found is None else found
    else:
        axis = -1 if where or factors[-1].ndim == 1 else -2
        stacked, single = max(0, weight.ndim - 2), _is_single(name, args, kwargs, weight)
        out_axis = max(0, weight.ndim - (1 if where else 2))
    if _transposed(weight):
        last = weight.ndim - 1
        out_axis = {last: last - 1, last - 1: last}.get(out_axis, out_axis)
    _note_axis(rec, sources, weight, out_axis)
    if stacked:
        rec.flow.stacked.update(dict.fromkeys(sources, stacked))
    if name != "einsum" and name != "grouped_mm":
        members = [place - weight.ndim for place in range(stacked)]
    whole = [rec.weights[name] for name in sources]
    listed = (
        len(whole) == 1 and (weight is whole[0] or weight._base is whole[0]) and stacked <= whole[0].ndim - 2
    )
    same = listed and weight.shape[:stacked] == whole[0].shape[:stacked]
    return Use(sources, name, axis, members=tuple(members) if same else (), single=single)


def _main_weight(name: str, args: Sequence[Any], factors: Sequence[Tensor], values: Sequence[Value]) -> int:
    """Which factor makes the features; of several in an einsum, the one with the last axis of its own."""
    weights = [i for i, v in enumerate(values) if not v.data and v.sources]
    if name != "einsum" or not all(values[i].raw for i in weights):
        return weights[0]
    inputs, out = _letters(args[0], [f.ndim for f in factors])

    def last(i: int) -> int:
        others = "".join(letters for j, letters in enumerate(inputs) if j != i)
        return max((out.index(c) for c in inputs[i] if c in out and c not in others), default=-1)

    return max(weights, key=last)


def _is_single(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], weight: Tensor) -> bool:
    """Whether a product sums over all axes of its weight."""
    if name == "tensordot":
        dims = kwargs.get("dims", args[2] if len(args) > 2 else 2)
        return weight.ndim == (dims if isinstance(dims, int) else len(dims[0]))
    return weight.ndim == 1 and name not in _OUTER


def _note_axis(rec: Recorder, sources: frozenset[str], weight: Tensor, axis: int) -> None:
    """The output axis of each parameter, counting the axes that were taken away by an index, or added."""
    for name in sources:
        rec.flow.out_axis[name] = max(0, axis + rec.ndims[name] - weight.ndim)


def _transposed(weight: Tensor) -> bool:
    return weight.ndim >= 2 and weight._is_view() and weight.stride(-2) < weight.stride(-1)


def open_product(
    rec: Recorder, values: Sequence[Value], factors: Sequence[Tensor], axes: Sequence[int]
) -> frozenset[Carry]:
    """The carried producers of a data·data product, each labelled as the operand that it is in."""
    rec.open_product = len(rec.products)
    rec.products.append((factors[0], (factors[0], axes[0]), (factors[1], axes[1])))
    return frozenset(
        c if c.product else replace(c, product=(rec.open_product, side))
        for side, value in enumerate(values)
        for c in value.carry
    )


def contracted_axes(name: str, args: Sequence[Any], factors: Sequence[Tensor]) -> tuple[int, int]:
    """The axis of each of two operands that their product sums over."""
    if name == "einsum":
        (left, right), out = _letters(args[0], [f.ndim for f in factors])
        common = [c for c in left if c in right and c not in out]
        return (left.index(common[0]), right.index(common[0])) if common else (-1, -1)
    if name in ("linear", "inner", "vecdot", "dot"):
        return -1, -1
    return -1, -1 if factors[1].ndim == 1 else -2


def _einsum_axes(equation: str, where: int, dims: Sequence[int]) -> tuple[int | None, list[int], int]:
    """(feature axis of the output, its axes that list members, output axis of the weight).

    Leading axes of the weight that the output has, too, list independent weights. Where no axis is the
    weight's own, the last one that the output shares with it lists features, as in a depthwise product;
    None: there is none.
    """
    inputs, out = _letters(equation, dims)
    weight = inputs[where]
    others = "".join(letters for i, letters in enumerate(inputs) if i != where)
    shared = [c for c in weight if c in out]
    own = [c for c in shared if c not in others]
    if not shared:
        return None, [], 0
    last = max(own or shared, key=out.index)
    stacked = 0
    while own and stacked < len(weight) and weight[stacked] in out and weight[stacked] != last:
        stacked += 1
    members = [out.index(c) - len(out) for c in weight[:stacked]]
    return out.index(last) - len(out), members, weight.index(last)


def _letters(equation: str, dims: Sequence[int]) -> tuple[list[str], str]:
    """Subscripts of each operand and of the result, ellipses written out."""
    left, _, out = equation.replace(" ", "").partition("->")
    inputs = left.split(",")
    hidden = [d - len(letters.replace("...", "")) for letters, d in zip(inputs, dims, strict=True)]
    full = "".join(chr(0x370 + i) for i in range(max([*hidden, 0])))
    written = [
        t.replace("...", full[len(full) - n :] if n else "") for t, n in zip(inputs, hidden, strict=True)
    ]
    if "->" not in equation:
        joined = "".join(written)
        out = "".join(sorted(c for c in set(joined) if joined.count(c) == 1))
    return written, out.replace("...", full)
