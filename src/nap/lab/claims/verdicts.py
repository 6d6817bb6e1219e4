"""All claims, and the verdict on each that some rows are about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nap.lab.claims import (
    ablations,
    fig1,
    fig2,
    fig3,
    fig4,
    fig5_sequential,
    fig5_suite,
    fig6,
    induction,
    minatar,
    revival,
    stats,
    strings,
    table1_cifar,
    table1_imagenet,
    table1_language,
    walk,
)
from nap.lab.claims.claim import Claim, Evidence
from nap.lab.claims.samples import Samples
from nap.lab.rows import Row, Rows
from nap.lab.seeds import for_tuning

CLAIMS: tuple[Claim, ...] = (
    *fig1.CLAIMS,
    *fig2.CLAIMS,
    *fig3.CLAIMS,
    *fig4.CLAIMS,
    *fig5_sequential.CLAIMS,
    *fig5_suite.CLAIMS,
    *fig6.CLAIMS,
    *minatar.CLAIMS,
    *ablations.CLAIMS,
    *stats.CLAIMS,
    *revival.CLAIMS,
    *walk.CLAIMS,
    *strings.CLAIMS,
    *induction.CLAIMS,
    *table1_language.CLAIMS,
    *table1_cifar.CLAIMS,
    *table1_imagenet.CLAIMS,
)
Result = tuple[Claim, Evidence]


def judge(rows: Rows) -> list[Result]:
    """Every claim that `rows` are about with its evidence, once for each network and stream.

    The rows of an experiment must be of one scale; `nap.lab.claims.read` keeps folders apart. Rows of tuning
    seeds decide nothing.

    >>> rows = Rows([{"experiment": "walk", "arm": "GD", "seed": 0, "step": 0, "dead": 0.5}])
    >>> claim, evidence = judge(rows)[0]
    >>> print(claim.id, "–", evidence.sentence)
    walk.plain-monotone – Not enough evidence: arm “GD” has too few steps for a trend: 1 of at least 4.
    """
    rows = Rows(row for row in rows if not for_tuning(row.get("seed")))
    groups: dict[tuple[str, tuple[str, ...]], dict[tuple[Any, ...], Samples]] = {}
    found: list[Result] = []
    for claim in CLAIMS:
        key = claim.reads or claim.experiment, claim.apart
        if key not in groups:
            groups[key] = _apart(rows.where(experiment=key[0]), claim.apart)
        for values, samples in groups[key].items():
            if all(
                value == claim.only.get(name, value) for name, value in zip(claim.apart, values, strict=True)
            ):
                subject = ", ".join(str(value) for value in values if value is not None)
                found.append((claim, replace(claim.judge(samples), subject=subject)))
    return found


def _apart(rows: Rows, keys: tuple[str, ...]) -> dict[tuple[Any, ...], Samples]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return {values: Samples(Rows(group)) for values, group in groups.items()}
