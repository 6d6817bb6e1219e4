"""How a value scales with each weight: an algebra of degrees of homogeneity.

A value has degree d in a weight W if replacing W by c·W multiplies it by c^d, for every c > 0.
Degree 0 is scale-invariance. Degrees follow from the operations alone: a product adds them, a sum
keeps them where they agree, a norm sets them to zero. So one recorded forward tells for every
weight whether the output depends on its norm; nothing is fitted, and an unknown operation can only
make the answer more careful.

A `Degrees` maps the name of a weight to its degree. A weight that is not in it has degree 0 exactly.
Two values stand apart: `NEAR`, degree 0 but for the absolute eps of some norm, and `MIXED`, no
degree at all (a sum of terms that scale differently).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

Degrees = Mapping[str, float]

NEAR = 0.0
MIXED = math.inf
NONE: Degrees = {}


def of_product(factors: Iterable[Degrees]) -> Degrees:
    """Degrees of a product, elementwise or contracted: they add up."""
    total: dict[str, float] = {}
    for factor in factors:
        for name, degree in factor.items():
            total[name] = total.get(name, 0.0) + degree
    return {name: MIXED if math.isnan(d) else d for name, d in total.items()}


def of_sum(terms: Iterable[Degrees]) -> Degrees:
    """Degrees of a sum, a concatenation or a choice: kept where all terms agree, mixed elsewhere.

    >>> dict(of_sum([{"a": 1.0, "b": 1.0}, {"a": 1.0}]))
    {'a': 1.0, 'b': inf}
    """
    first, *rest = list(terms)
    if not rest or all(term is first for term in rest):
        return first
    total = {}
    for name in dict.fromkeys(name for term in (first, *rest) for name in term):
        found = {term.get(name, NEAR) for term in (first, *rest)}
        total[name] = found.pop() if len(found) == 1 else MIXED
    return total


def of_power(value: Degrees, exponent: float) -> Degrees:
    """Degrees of value**exponent."""
    if exponent == 0:
        return NONE
    return {name: MIXED if d == MIXED else d * exponent for name, d in value.items()}


def of_norm(value: Degrees, exact: Iterable[str] = ()) -> Degrees:
    """Degrees after a norm: zero, exactly so for the weights in `exact`; a mixture stays one."""
    gone = set(exact)
    return {
        name: MIXED if d == MIXED else NEAR
        for name, d in value.items()
        if d in (MIXED, NEAR) or name not in gone
    }


def of_nonlinearity(value: Degrees) -> Degrees:
    """Degrees after a function with no homogeneity: only what is invariant stays so.

    >>> dict(of_nonlinearity({"a": 1.0, "b": NEAR}))
    {'a': inf, 'b': 0.0}
    """
    return {name: NEAR if d == NEAR else MIXED for name, d in value.items()}
