"""Effects of parametric functions and of norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from nap.tracing import homogeneity
from nap.tracing.call import Call
from nap.tracing.contraction import contracted_axes, open_product, split_operands
from nap.tracing.curves import STAYS, remark, remark_choice, with_another
from nap.tracing.distances import completed
from nap.tracing.feeding import fed, layer_use, made_of_weights, meet_squares, with_itself
from nap.tracing.homogeneity import MIXED
from nap.tracing.meetings import meet_curves
from nap.tracing.operations import EPSILON
from nap.tracing.record import Use
from nap.tracing.scale import without_scales
from nap.tracing.values import NO_CARRY, Value, merge, sum_degrees

NO_NAMES: frozenset[str] = frozenset()


def follow_contract(call: Call) -> Value:
    """A product of matrices: a layer where one factor is made of parameters, else perhaps q·k."""
    rec = call.rec
    addends, factors = split_operands(call.name, call.args, call.kwargs)
    added, values = [rec.value(t) for t in addends], [rec.value(t) for t in factors]
    rec.flow.dotted |= _inputs(values, fed(call.name, values)) & rec.matrices
    values = fed(call.name, values)
    product = homogeneity.of_product([v.degrees for v in values])
    degrees = homogeneity.of_sum([product, *(v.degrees for v in added if not v.zero)])
    noised = frozenset(n for v in values if not v.data for n in v.noised)
    out = replace(merge([*values, *added]), degrees=degrees, mask=NO_CARRY, raw=False, noised=noised)
    data = [v for v in values if v.data]
    remark_choice(rec, *(v for v in data if not v.carry))
    if not data:
        return made_of_weights(call, out, values, factors, added)
    rec.flow.added.update(n for v in added if not v.data for n in v.sources)
    if any(v.sources and not v.data for v in values):
        meet_squares(call, values, factors)
        carry = rec.parametric(layer_use(call, factors, values, added), data)
        carry = carry.union(*(v.carry for v in added))
        degrees = without_scales(degrees)
        layer = replace(
            out, carry=carry, degrees=degrees, affine=frozenset(), probability=False, beside=NO_NAMES
        )
        return completed(call, layer, added) if added else layer
    if len(data) == len(factors) == 2 and not any(v.probability for v in data):
        axes = contracted_axes(call.name, call.args, factors)
        opened = replace(out, carry=open_product(rec, values, factors, axes), probability=False)
        return with_itself(call, with_another(rec, opened, data), values, factors)
    return with_itself(call, with_another(rec, replace(out, probability=False), data), values, factors)


def _inputs(values: Sequence[Value], factors: Sequence[Value]) -> frozenset[str]:
    """Parameters that a layer, or a weight made of data, is given as its input: learned tokens and images."""
    layer = any(v.sources and not v.data for v in factors)
    pairs = zip(values, factors, strict=True)
    return NO_NAMES.union(*(v.sources for v, f in pairs if v.raw and not v.data and (f.data or not layer)))


def follow_lookup(call: Call) -> Value:
    rec, (index, table, *_) = call.rec, call.operands
    rec.flow.tables |= table.sources
    remark_choice(rec, index)
    if not (index.data or index.foreign):  # positions: learned tokens, or biases, that may be activated, too
        learned = table.sources and torch.is_grad_enabled()  # sinusoids are read without gradients
        carry = rec.parametric(Use(table.sources, call.name), []) if learned else NO_CARRY
        return replace(table, index=False, carry=carry)
    rec.flow.chosen |= table.sources
    carry = rec.parametric(Use(table.sources, call.name), [index])
    if call.argument(6, "mode") == "max":
        remark(rec, carry, f"of the rows that are looked up the largest entries are taken{STAYS}")
    degrees = sum_degrees([table, index])
    if isinstance(call.argument(3, "max_norm"), float):  # longer rows are cut to it first
        degrees = {**degrees, **dict.fromkeys(table.sources, MIXED)}
    return Value(data=True, carry=carry, degrees=degrees, pending=index.pending)


def follow_norm(call: Call) -> Value:
    value = _with_gains(call)
    meet_curves(call.rec, _not_merely_pooled(call, value))
    call.rec.normalised(value)
    exact = value.degrees if _eps(call) == 0 else ()
    degrees = homogeneity.of_norm(value.degrees, exact)
    return _with_affine(call, replace(value, carry=NO_CARRY, degrees=degrees, beside=NO_NAMES))


def _not_merely_pooled(call: Call, value: Value) -> Value:
    """Without what was max-pooled and nothing else: a norm cancels the scale of that as well."""

    def pooled(site: str, number: int, op: int) -> bool:
        sources = call.rec.flow.uses[site, number, op].sources
        return all(value.degrees.get(name) != MIXED for name in sources)

    kept = (c for c in value.carry if c.bent or not pooled(*c.key))
    return replace(value, carry=frozenset(kept))


def _with_gains(call: Call) -> Value:
    """What is normalised; where that is a weight, what comes of it is made of the norm's parameters, too."""
    value = call.operands[0]
    return value if value.data else replace(value, sources=merge(call.operands).sources)


def follow_batch_norm(call: Call) -> Value:
    value, site = _with_gains(call), call.rec.given(call.operands[0])
    fresh = (c if c.batch_norm else replace(c, batch_norm=True, entry=site) for c in value.carry)
    value = replace(value, carry=frozenset(fresh))
    call.rec.normalised(value)
    degrees = homogeneity.of_norm(value.degrees)
    return _with_affine(call, replace(value, degrees=degrees, beside=NO_NAMES))


def _with_affine(call: Call, value: Value) -> Value:
    """The scale and offset of one norm count as one weight: only together do they scale the result."""
    names = sorted(n for v in call.operands[1:] if not v.data for n in v.sources)
    if not names:
        return replace(value, affine=frozenset())
    norm = names[0].rpartition(".")[0]
    call.rec.flow.affine[norm] = tuple(names)
    degrees = homogeneity.of_product([value.degrees, {f"{norm}|affine": 1.0}])
    return replace(value, degrees=degrees, affine=frozenset([norm]))


def _eps(call: Call) -> float:
    numbers = [a for a in call.args if isinstance(a, float)]
    eps = call.kwargs.get("eps", numbers[-1] if numbers else None)
    return EPSILON if eps is None else float(eps)  # without one torch takes the dtype's own
