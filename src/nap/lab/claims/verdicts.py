"""Verdicts: every claim about some rows, decided on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nap.lab.claims.claim import Claim, Evidence
from nap.lab.claims.samples import Samples
from nap.lab.experiments import readers
from nap.lab.experiments.experiment import Experiment
from nap.lab.rows import Row, Rows
from nap.lab.seeds import for_tuning

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
    found: list[Result] = []
    for experiment, name in _about(rows):
        groups: dict[tuple[str, ...], dict[tuple[Any, ...], Samples]] = {}
        for claim in experiment.claims:
            if claim.apart not in groups:
                groups[claim.apart] = _apart(rows.where(experiment=name), claim.apart)
            for values, samples in groups[claim.apart].items():
                if all(
                    value == claim.only.get(key, value)
                    for key, value in zip(claim.apart, values, strict=True)
                ):
                    subject = ", ".join(str(value) for value in values if value is not None)
                    found.append((claim, replace(claim.judge(samples), subject=subject)))
    return found


def _about(rows: Rows) -> list[tuple[Experiment, str]]:
    """The experiments that have claims about some of these rows, in order, each with its name in the rows."""
    found = [(reader, str(name)) for name in rows.unique("experiment") for reader in readers(str(name))]
    return sorted(found, key=lambda pair: (pair[0].order, pair[0].name))


def _apart(rows: Rows, keys: tuple[str, ...]) -> dict[tuple[Any, ...], Samples]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return {values: Samples(Rows(group)) for values, group in groups.items()}
