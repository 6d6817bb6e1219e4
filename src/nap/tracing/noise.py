"""Which weights are the noise of a noisy layer, and which its means: μ(x) + σ(x ⊙ ε) ⊙ ε', in any spelling.

A term counts as noise where a weight, or the result of one, is multiplied by numbers that no weight has made:
a buffer, a fresh draw, an argument. Its mean is the one weight of the same shape and module that is added to
it without. A layer of such a pair is linear in both together, so what normalises it cancels their common
scale, and neither one's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from nap.tracing.homogeneity import of_product
from nap.tracing.values import Value, merge

if TYPE_CHECKING:
    from nap.tracing.call import Call
    from nap.tracing.recorder import Recorder

NONE: frozenset[str] = frozenset()
KEY = "|noise"  # after the name of a noise weight: the scale that it shares with its mean


def multiplied(call: Call) -> frozenset[str]:
    """The weights that a product multiplies by numbers which no weight has made."""
    added = 1 if call.name == "addcmul" else 0
    factors = list(zip(call.operands[added:], call.tensors[added:], strict=True))
    made = [terms(call.rec, value) for value, _ in factors]
    if sum(map(bool, made)) != 1:
        return NONE
    others = [factor for factor, names in zip(factors, made, strict=True) if not names]
    free = all(not (v.degrees or v.sources or v.carry) and tensor.numel() > 1 for v, tensor in others)
    return NONE.union(*made) if others and free else NONE


def terms(rec: Recorder, value: Value) -> frozenset[str]:
    """The weights that a value is linear in: itself one of them, or a sum of results of their layers."""
    if not value.data:
        return frozenset(n for n in value.sources if value.degrees.get(n) == 1.0)
    if any(c.product or c.bent for c in value.carry):
        return NONE
    uses = [rec.flow.uses[c.key] for c in value.carry]
    return NONE.union(*(use.sources for use in uses if use.linear))


def paired(call: Call, value: Value) -> dict[str, float]:
    """Notes the pairs that a sum brings together; the degrees of those whose common scale is its own."""
    rec, operands = call.rec, call.operands[:2]
    if call.name == "addcmul" and len(call.operands) == 3:
        factors = call.operands[1:]
        degrees = of_product([v.degrees for v in factors])
        operands = [operands[0], replace(merge(factors), degrees=degrees, noised=value.noised)]
    if len(operands) < 2:
        return {}
    together = {}
    for mean, noise in (operands, operands[::-1]):
        plain = terms(rec, mean) - mean.noised
        for name in noise.noised:
            if found := list(_partners(rec, name, plain)):
                rec.flow.noise.setdefault(name, set()).update(found)
                if mean.degrees.get(found[0]) == noise.degrees.get(name) == 1.0:
                    together[f"{name}{KEY}"] = 1.0
    return together


def _partners(rec: Recorder, name: str, plain: frozenset[str]) -> Iterator[str]:
    """Of these weights, those with the same shape as a noise weight, in the same module or one beside it."""
    owner = name.rpartition(".")[0]
    for other in sorted(plain):
        of_other = other.rpartition(".")[0]
        beside = owner.rpartition(".")[0] == of_other.rpartition(".")[0] == rec.site
        if rec.shapes[other] == rec.shapes[name] and (owner == of_other or (owner and beside)):
            yield other
