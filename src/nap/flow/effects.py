"""What each kind of operation does to the values that enter it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Number
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nap.flow import homogeneity
from nap.flow.contraction import contracted_axes, parametric_use, split_operands
from nap.flow.homogeneity import MIXED, NEAR, Degrees
from nap.flow.operations import EPSILON, KINDS, POWERS, Kind
from nap.flow.record import Use
from nap.flow.values import CONSTANT, NO_CARRY, Carry, Value, merge, sum_degrees

if TYPE_CHECKING:
    from nap.flow.recorder import Recorder

Outcome = Value | Callable[[int, Tensor], Value]
Follow = Callable[["Recorder", str, Sequence[Any], Mapping[str, Any], list[Tensor], list[Value]], Outcome]

_COMPARISONS = frozenset(["eq", "ne", "lt", "le", "gt", "ge"])
_PICKS = frozenset(["argmax", "argmin", "argsort", "bool", "nonzero", "any", "all", "and", "or", "not"])
_CONSTANT = frozenset(  # what is made does not depend on what was given, but for its shape
    ["zeros", "ones", "empty", "full", "arange", "linspace", "logspace", "eye", "rand", "randn", "randint",
     "randperm", "zero", "fill", "uniform", "exponential", "log_normal", "geometric", "random", "cauchy",
     "empty_strided", "tril_indices", "triu_indices", "size"]
)  # fmt: skip
_SHAPED_LIKE = ("type_as", "view_as", "expand_as", "reshape_as", "to")  # the second tensor is only a pattern
_ROOT = "#"  # marks the pseudo-weight that stands for the scale of a whole value


def kind_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Kind | None:
    """The kind of this call: mostly its name's, but some names do different things."""
    if name in ("clamp", "clip", "clamp_min"):
        low = kwargs.get("min", args[1] if len(args) > 1 else None)
        high = kwargs.get("max", args[2] if len(args) > 2 else None)
        if high is None and isinstance(low, Number):
            return Kind.HOMOGENEOUS if low == 0 else Kind.SUM if 0 < float(low) <= EPSILON else Kind.SQUASH  # type: ignore[arg-type]
    if name in ("max", "min", "maximum", "minimum"):
        other = kwargs.get("other", args[1] if len(args) > 1 else None)
        if not isinstance(other, Tensor):
            return KINDS[name]
        guard = other.numel() == 1 and not other.requires_grad and abs(float(other)) > 1e3
        return Kind.SUM if guard else Kind.SQUASH
    if name == "threshold":  # at zero it is a ReLU
        level = kwargs.get("threshold", args[1] if len(args) > 1 else 0)
        below = kwargs.get("value", args[2] if len(args) > 2 else 0)
        return Kind.HOMOGENEOUS if level == below == 0 else Kind.ACTIVATION
    if name in ("pow", "float_power") and not isinstance(
        args[1] if len(args) > 1 else kwargs.get("exponent"), Number
    ):
        return Kind.ACTIVATION
    return KINDS.get(name)


def follow_sum(
    rec: Recorder, name: str, args: Any, kwargs: Any, tensors: Any, operands: list[Value]
) -> Value:
    if name in _SHAPED_LIKE:
        operands = operands[:1]
    if name in ("mean", "sum", "amax", "max"):
        operands = [root(rec, t, v) for t, v in zip(tensors, operands, strict=True)]
    value = merge(operands)
    if name in ("add", "sub", "rsub"):
        numbers = [a for a in (*args[:2], kwargs.get("other")) if isinstance(a, (int, float, complex))]
        scalars = [a for a in numbers if not abs(a) <= EPSILON]
        if scalars:
            value = replace(value, degrees=homogeneity.of_sum([value.degrees, homogeneity.NONE]))
            rec.flow.curved |= value.affine
        if rec.produced_here(value):
            rec.flow.added.update(n for v in operands if not v.data for n in v.sources)
    if name == "lerp" and len(operands) == 3:
        start, end, weight = (v.degrees for v in operands)
        moved = [homogeneity.of_product([part, weight]) for part in (start, end)]
        value = replace(value, degrees=homogeneity.of_sum([start, *moved]))
    if name in ("where", "masked_fill"):
        value = _mask(rec, name, value, tensors[-1] if name == "where" else tensors[0])
    return value


def follow_select(
    rec: Recorder, name: str, args: Any, kwargs: Any, tensors: list[Tensor], operands: list[Value]
) -> Value:
    whole = operands[0]
    if not whole.data and tensors[0].ndim >= 3 and name in ("getitem", "select", "index_select", "unbind"):
        index = args[1] if len(args) > 1 else 0
        if name != "getitem" or isinstance(index, (int, Tensor)):
            rec.flow.stacked.update(dict.fromkeys(whole.sources, tensors[0].ndim - 2))
    value = merge(operands)
    if not whole.data and tensors[0].ndim >= 3 and all(v.index for v in operands[1:]):
        value = replace(value, data=False, sources=whole.sources)  # a weight, whoever chose it
    return value.relabel(sliced=True)


def follow_product(
    rec: Recorder, name: str, args: Any, kwargs: Any, tensors: list[Tensor], operands: list[Value]
) -> Value:
    operands = [root(rec, t, v) for t, v in zip(tensors, operands, strict=True)]
    factors = [v.degrees for v in operands if not v.index]
    if name == "addcmul":
        degrees = homogeneity.of_sum([factors[0], homogeneity.of_product(factors[1:])])
    else:
        degrees = homogeneity.of_product(factors)
    if any(v.data for v in operands):
        rec.flow.scaled.update(n for v in operands if not v.data for n in v.sources)
    value = _normalised_inline(rec, replace(merge(operands), degrees=degrees), operands)
    return _mask(rec, name, value, tensors[0])


def follow_quotient(
    rec: Recorder, name: str, args: Any, kwargs: Any, tensors: list[Tensor], operands: list[Value]
) -> Value:
    operands = [root(rec, t, v) for t, v in zip(tensors, operands, strict=True)]
    value = merge(operands)
    if name == "cosine_similarity":
        rec.normalised(value)
        return replace(value, carry=NO_CARRY, degrees=homogeneity.of_norm(value.degrees))
    parts = [v.degrees for v in operands]
    if name == "addcdiv":
        quotient = homogeneity.of_product([parts[1], homogeneity.of_power(parts[2], -1)])
        return replace(value, degrees=homogeneity.of_sum([parts[0], quotient]))
    if not operands:  # torch.div of two numbers
        return value
    if name in ("rdiv", "reciprocal") or not isinstance(args[0], Tensor):
        parts[0] = homogeneity.of_power(parts[0], -1)
    parts[1:] = [homogeneity.of_power(p, -1) for p in parts[1:]]
    return _normalised_inline(rec, replace(value, degrees=homogeneity.of_product(parts)), operands)


def follow_power(
    rec: Recorder, name: str, args: Any, kwargs: Any, tensors: list[Tensor], operands: list[Value]
) -> Outcome:
    operands = [root(rec, t, v) for t, v in zip(tensors, operands, strict=True)]
    value = merge(operands).relabel(bent=True)
    rec.nonlinear += bool(value.carry)
    exponent = POWERS.get(name, 1.0)
    if name in ("pow", "float_power"):
        exponent = float(args[1] if len(args) > 1 else kwargs["exponent"])
    powered = replace(value, degrees=homogeneity.of_power(value.degrees, exponent))
    return lambda i, _: powered if i == 0 else value  # var_mean and std_mean return the mean second


def follow_contract(
    rec: Recorder, name: str, args: Any, kwargs: Any, tensors: list[Tensor], operands: list[Value]
) -> Value:
    addends, factors = split_operands(name, args, kwargs)
    added = [rec.value(t) for t in addends]
    values = [rec.value(t) for t in factors]
    if values[0].raw and name in ("linear", "conv1d", "conv2d", "conv3d"):
        values[0] = replace(values[0], data=True)  # learned tokens are an input, not a weight
    product = homogeneity.of_product([v.degrees for v in values])
    degrees = homogeneity.of_sum([product, *(v.degrees for v in added if not v.zero)])
    out = replace(merge([*values, *added]), degrees=degrees, mask=NO_CARRY, raw=False)
    data = [v for v in values if v.data]
    weights = [v for v in values if not v.data and v.sources]
    if not data:
        return out
    rec.flow.added.update(n for v in added if not v.data for n in v.sources)
    if weights:
        for value, tensor in zip(values, factors, strict=True):
            bent = any(d not in (0.0, 1.0, math.inf) for n, d in value.degrees.items() if n.startswith(_ROOT))
            carry = value.carry if bent else frozenset(c for c in value.carry if c.bent)
            if carry:  # x², |x| and the like, used as an activation
                rec.meet("power", Kind.ACTIVATION, replace(value, carry=carry), tensor)
        use = parametric_use(rec, name, args, factors, values)
        carry = rec.parametric(use, data).union(*(v.carry for v in added))
        return replace(out, carry=carry, degrees=_rootless(degrees), affine=frozenset(), probability=False)
    if len(data) == 2 and len(factors) == 2 and not any(v.probability for v in data):
        axes = contracted_axes(name, args, factors)
        return replace(out, carry=open_product(rec, values, factors, axes), probability=False)
    return replace(out, probability=False)


def open_product(
    rec: Recorder, values: Sequence[Value], factors: Sequence[Tensor], axes: Sequence[int]
) -> frozenset[Carry]:
    """The carried producers of a data·data product, each labelled as the operand that it is in."""
    number = len(rec.products)
    rec.products.append((factors[0], (factors[0], axes[0]), (factors[1], axes[1])))
    rec.open_product = number
    return frozenset(
        c if c.product else replace(c, product=(number, side))
        for side, value in enumerate(values)
        for c in value.carry
    )


def follow_lookup(
    rec: Recorder, name: str, args: Any, kwargs: Any, tensors: Any, operands: list[Value]
) -> Value:
    index, table = operands[0], operands[1]
    rec.flow.tables |= table.sources
    rec.flow.seen |= table.sources
    if not index.data:
        return replace(table, index=False)
    carry = rec.parametric(Use(table.sources, name), [index])
    return Value(data=True, carry=carry, degrees=sum_degrees([table, index]), pending=index.pending)


def follow_norm(
    rec: Recorder, name: str, args: Any, kwargs: Any, tensors: list[Tensor], operands: list[Value]
) -> Value:
    value = operands[0]
    exact = value.degrees if _eps(args, kwargs) == 0 else ()
    rec.normalised(value)
    return _affine(
        rec, replace(value, carry=NO_CARRY, degrees=homogeneity.of_norm(value.degrees, exact)), operands
    )


def follow_batch_norm(
    rec: Recorder, name: str, args: Any, kwargs: Any, tensors: list[Tensor], operands: list[Value]
) -> Value:
    value = operands[0].relabel(batch_norm=True)
    rec.normalised(value)
    return _affine(rec, replace(value, degrees=homogeneity.of_norm(value.degrees)), operands)


def _affine(rec: Recorder, value: Value, operands: list[Value]) -> Value:
    names = sorted(n for v in operands[1:] if not v.data for n in v.sources)
    rec.flow.seen.update(names)
    if not names:
        return replace(value, affine=frozenset())
    norm = names[0].rpartition(".")[0]
    rec.flow.affine[norm] = tuple(names)
    degrees = homogeneity.of_product([value.degrees, {f"{norm}|affine": 1.0}])
    return replace(value, degrees=degrees, affine=frozenset([norm]))


def follow_nonlinearity(kind: Kind) -> Follow:
    def follow(
        rec: Recorder, name: str, args: Any, kwargs: Any, tensors: list[Tensor], operands: list[Value]
    ) -> Value:
        pending: frozenset[int] = frozenset()
        for value, tensor in zip(operands, tensors, strict=True):
            if name == "glu":
                dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
                gate = value.relabel(sliced=True)
                pending |= rec.meet(
                    name, kind, gate, tensor.narrow(dim, tensor.shape[dim] // 2, tensor.shape[dim] // 2)
                )
                degrees = homogeneity.of_product([value.degrees, homogeneity.of_nonlinearity(value.degrees)])
                return replace(gate, pending=pending, degrees=degrees, affine=frozenset())
            pending |= rec.meet(name, kind, value, tensor)
        rec.flow.seen.update(n for v in operands if not v.data for n in v.sources)
        degrees = operands[0].degrees if kind is Kind.HOMOGENEOUS else sum_degrees(operands)
        if kind is not Kind.HOMOGENEOUS:
            degrees = homogeneity.of_nonlinearity(degrees)
        merged = merge(operands)
        return Value(
            data=merged.data,
            sources=merged.sources,
            degrees=degrees,
            pending=pending,
            probability=kind is Kind.SOFTMAX,
        )

    return follow


def follow_attention(
    rec: Recorder, name: str, args: Any, kwargs: Any, tensors: list[Tensor], operands: list[Value]
) -> Value:
    named = {**dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)), **kwargs}
    q, k, v = (rec.value(named[part]) for part in ("query", "key", "value"))
    mask = named.get("attn_mask")
    extra = [rec.value(mask)] if isinstance(mask, Tensor) else []
    logits = replace(
        merge([q, k, *extra]),
        carry=open_product(rec, (q, k), (named["query"], named["key"]), (-1, -1)).union(
            *(e.carry for e in extra)
        ),
    )
    scale = named.get("scale")
    rec.given_temperature = float(scale) if scale is not None else named["query"].shape[-1] ** -0.5
    rec.open_product = None
    pending = rec.meet(name, Kind.ATTENTION, logits, named["query"]) | v.pending
    degrees = homogeneity.of_product([homogeneity.of_nonlinearity(logits.degrees), v.degrees])
    return Value(data=True, carry=v.carry, degrees=degrees, pending=pending, affine=v.affine)


def follow_fresh(
    rec: Recorder, name: str, args: Any, kwargs: Any, tensors: Any, operands: list[Value]
) -> Value:
    if name in _CONSTANT or name.startswith("new_") or name.endswith("_like"):
        return replace(CONSTANT, zero="zeros" in name or name == "zero")
    value = merge(operands)
    mixed: Degrees = {n: d for n, d in value.degrees.items() if d in (NEAR, MIXED)}
    degrees = mixed if name in _PICKS else homogeneity.of_nonlinearity(value.degrees)
    mask = (value.carry if name in _COMPARISONS else NO_CARRY) | value.mask
    return Value(data=value.data, degrees=degrees, pending=value.pending, mask=mask)


def follow_unknown(
    rec: Recorder, name: str, args: Any, kwargs: Any, tensors: Any, operands: list[Value]
) -> Outcome:
    value = merge(operands)
    degrees = homogeneity.of_nonlinearity(value.degrees)
    careful = replace(value, degrees=degrees, carry=NO_CARRY, mask=NO_CARRY, probability=False)

    parametric = value.data and any(v.sources and not v.data for v in operands)

    def outcome(_: int, result: Tensor) -> Value:
        if (value.carry or parametric) and result.is_floating_point():
            rec.flow.unknown.setdefault(name, rec.frames[-1].site if rec.frames else "")
        return careful

    return outcome


def root(rec: Recorder, tensor: Tensor, value: Value) -> Value:
    """The value with a pseudo-weight for its own scale, so that x/‖x‖ is seen to be a norm of x."""
    if not value.carry or any(
        n.startswith(_ROOT) and d not in (NEAR, MIXED) for n, d in value.degrees.items()
    ):
        return value
    name = f"{_ROOT}{len(rec.roots)}"
    rec.roots[name] = value.carry
    value = replace(value, degrees={**value.degrees, name: 1.0})
    rec.put(tensor, value)
    return value


def _rootless(degrees: Degrees) -> Degrees:
    """A new producer begins: the scales of the values before it are history."""
    return {name: d for name, d in degrees.items() if not name.startswith(_ROOT)}


def _normalised_inline(rec: Recorder, value: Value, operands: list[Value]) -> Value:
    """x·(1/‖x‖): the scale of x has cancelled, so what x carried is normalised."""
    for name, degree in value.degrees.items():
        if name.startswith(_ROOT) and degree == NEAR:
            if not any(v.degrees.get(name, NEAR) != NEAR for v in operands):
                continue
            gone = {c.key for c in rec.roots[name]}
            carry = frozenset(c for c in value.carry if c.key in gone)
            rec.normalised(replace(value, carry=carry))
            rec.flow.inline.add(rec.frames[-1].site if rec.frames else "")
            value = replace(value, carry=value.carry - carry)
    return value


def _mask(rec: Recorder, name: str, value: Value, tensor: Tensor) -> Value:
    """(x > 0)·x and its like are nonlinearities of x."""
    masked = {c.key for c in value.mask}
    hit = frozenset(c for c in value.carry if c.key in masked and c.product is None)
    if not hit:
        return value
    pending = rec.meet(f"{name} with a mask", Kind.ACTIVATION, replace(value, carry=hit), tensor)
    return replace(
        value, carry=value.carry - hit, pending=pending, degrees=homogeneity.of_nonlinearity(value.degrees)
    )


def temperature(product: Tensor, logits: Tensor) -> float:
    """The factor that the logits carry on top of the bare q·k product, from one gradient."""
    (gradient,) = torch.autograd.grad(
        logits, product, torch.ones_like(logits), retain_graph=True, allow_unused=True
    )
    if gradient is None:
        return 1.0
    touched = gradient[gradient.abs() > 0]
    return float(touched.abs().median()) if touched.numel() else 1.0


def _eps(args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    numbers = [a for a in args if isinstance(a, float)]
    eps = kwargs.get("eps", numbers[-1] if numbers else None)
    return EPSILON if eps is None else float(eps)  # without one torch takes the dtype's own


FOLLOW: dict[Kind | None, Follow] = {
    Kind.SUM: follow_sum,
    Kind.SELECT: follow_select,
    Kind.PRODUCT: follow_product,
    Kind.QUOTIENT: follow_quotient,
    Kind.POWER: follow_power,
    Kind.CONTRACT: follow_contract,
    Kind.LOOKUP: follow_lookup,
    Kind.NORM: follow_norm,
    Kind.BATCH_NORM: follow_batch_norm,
    Kind.HOMOGENEOUS: follow_nonlinearity(Kind.HOMOGENEOUS),
    Kind.ACTIVATION: follow_nonlinearity(Kind.ACTIVATION),
    Kind.SQUASH: follow_nonlinearity(Kind.SQUASH),
    Kind.SOFTMAX: follow_nonlinearity(Kind.SOFTMAX),
    Kind.ATTENTION: follow_attention,
    Kind.FRESH: follow_fresh,
}
