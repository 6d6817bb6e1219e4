"""Which operands of a product are fed to a layer, and which are its weights, where no input tells.

Noise, buffers, positions and numbers feed layers as the model's input does: a matrix that enters a product is
a weight whatever it is multiplied with. Only weights that are made of others, W + B·A, W / σ(W) or a basis
times coefficients, have such products too; so the product of a matrix with something that is no data stays
both, a part of a weight and a layer's result, until it is used as the one or the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from nap.tracing.call import Call
from nap.tracing.contraction import contracted_axes, parametric_use
from nap.tracing.curves import STAYS, curved, of_shared_weights
from nap.tracing.homogeneity import MIXED, NEAR
from nap.tracing.meetings import meet_curves
from nap.tracing.record import Use
from nap.tracing.values import Value

_FED = {"bilinear": 2, "linear": 1, "conv_tbc": 1}


def fed(name: str, values: Sequence[Value]) -> list[Value]:
    """The factors of a product; what comes first to a linear layer or a convolution is an input."""
    first = 1 if name.startswith("conv") else _FED.get(name, 0)
    values = list(values)
    if first and first < len(values) and (values[first].data or values[first].sources):
        return [replace(v, data=True) for v in values[:first]] + values[first:]
    return values


def layer_use(call: Call, factors: Sequence[Tensor], values: Sequence[Value], added: Sequence[Value]) -> Use:
    """What the layer that this call is has for weights, and what it adds."""
    use = parametric_use(call.rec, call.name, call.args, call.kwargs, factors, values)
    use.linear = all(v.degrees.get(n) == 1.0 for v in values if not v.data for n in v.sources)
    use.scaleless = any(v.degrees.get(n, NEAR) == NEAR for v in values if not v.data for n in v.sources)
    for name, degree in ((n, d) for v in values if not v.data for n, d in v.degrees.items()):
        if name in use.sources and degree not in (1.0, NEAR, MIXED):
            call.rec.flow.multiplied.setdefault(
                name, f"its power {degree:g} is multiplied with results{STAYS}"
            )
    use.fused = frozenset(n for v in added if not v.data for n in v.sources)
    use.fed = any(v.data for v in values)
    return use


def made_of_weights(
    call: Call, out: Value, values: Sequence[Value], factors: Sequence[Tensor], added: Sequence[Value]
) -> Value:
    """The product of weights and what is no data: perhaps a weight, perhaps what a layer gives."""
    rec = call.rec
    raw = [v.raw and bool(v.sources) for v in values]
    weights = raw if any(raw) else [bool(v.sources) and not v.carry for v in values]
    names = {n for v, is_weight in zip(values, weights, strict=True) if is_weight for n in v.sources}
    if not names & rec.matrices or not _sums(call, factors):
        return out
    inputs = [replace(v, data=not w) for v, w in zip(values, weights, strict=True)]
    use = layer_use(call, factors, inputs, added)
    return replace(out, carry=rec.parametric(use, [v for v in inputs if v.data]))


def _sums(call: Call, factors: Sequence[Tensor]) -> bool:
    """Whether more than one term is added up; an outer product only scales."""
    if len(factors) != 2:
        return True
    if call.name in ("outer", "ger", "kron"):
        return False
    left, right = contracted_axes(call.name, call.args, factors)
    if call.name == "einsum" and (left, right) == (-1, -1):
        inputs, _, result = str(call.args[0]).replace(" ", "").partition("->")
        a, b = inputs.split(",")
        if not set(a) & set(b) - set(result) - {"."}:
            return False
    return factors[0].shape[left] > 1


def with_itself(call: Call, out: Value, values: Sequence[Value], factors: Sequence[Tensor]) -> Value:
    """h·hᵀ and its like: a product of results of the same weights is no linear map of them."""
    keys = of_shared_weights(call.rec, values)
    return curved(call, out, factors, keys=keys, name=f"{call.name} with itself") if keys else out


def meet_squares(call: Call, values: Sequence[Value], factors: Sequence[Tensor]) -> None:
    """A layer that multiplies its inputs with each other, such as nn.Bilinear, given one result twice."""
    fed_values = [v for v in values if v.data]
    keys = of_shared_weights(call.rec, fed_values)
    if len(fed_values) > 1 and call.name == "bilinear":
        keys = {c.key for v in fed_values for c in v.carry}
    if keys:
        both = frozenset(c for v in values for c in v.carry if c.key in keys)
        value = curved(call, Value(data=True, carry=both), factors, name="a product of two inputs")
        meet_curves(call.rec, value)
