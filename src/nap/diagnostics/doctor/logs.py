"""Diagnosing from a log: rows of numbers, as the monitor, the lab or another logger writes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from nap.diagnostics.doctor.case import Case
from nap.diagnostics.doctor.checks import run_checks
from nap.diagnostics.doctor.findings import Diagnosis

STEPS = {  # columns that say when → what they count
    **dict.fromkeys(("step", "global_step"), "step"),
    **dict.fromkeys(("update", "updates"), "update"),
    "task": "task",
    "frames": "frame",
    "time/total_timesteps": "environment step",
}
# the lab's columns, which are of a whole network
NAMES = {
    "dead_units": "dead/all",
    "linearized_units": "linearized/all",
    "dormant_units": "dormant/all",
    "feature_rank": "rank/penultimate",
    "effective_rate": "rate/all",
    "parameter_norm": "norm/parameters",
    "weight_norm": "norm/weights",
    "gradient_norm": "norm/gradients",
    "affine_drift": "affine/all",
    "learning_rate": "lr/all",
    "lr": "lr/all",
    "train/learning_rate": "lr/all",
    "loss": "loss",
    "train/loss": "loss",
    "train_loss": "loss",
}
_PREFIXES = ("dead/", "linearized/", "dormant/", "rank/", "rate/", "norm/", "affine/", "saturated/", "lr/")


def diagnose_log(rows: Iterable[Mapping[str, Any]]) -> Diagnosis:
    """Likely reasons why the run behind these rows stopped learning; one row a measurement, oldest first.

    Understands what `nap.integrations.monitor.Monitor` logs (`nap/…`), with or without a step beside it, and
    rows of the lab; other columns are passed over. A log has no weights, so some checks need a live model:
    the diagnosis says which.

    >>> rows = [{"step": 0, "nap/dead/1": 0.1}, {"step": 1000, "nap/dead/1": 0.8}]
    >>> diagnose_log(rows).findings[0].measure
    '80% of the units of 1 are 0 on every input (limit 50%), since step 1,000'
    """
    listed = [(row, numbers) for row in rows if (numbers := _numbers(row))]
    column = next((name for name in STEPS if all(_is_number(row.get(name)) for row, _ in listed)), None)
    points = [(float(row[column]) if column else i, numbers) for i, (row, numbers) in enumerate(listed)]
    if not points:
        raise ValueError(
            "no measure that nap knows is in this log: it needs columns such as nap/rate/… and nap/dead/…, "
            "which nap.integrations.monitor.Monitor and the MonitorCallbacks write"
        )
    return run_checks(Case.of(points, unit=STEPS[column] if column else "row"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(_float(value))


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The measures of a row under the names that checks use; null becomes NaN."""
    numbers: dict[str, float] = {}
    for column, value in row.items():
        key = known(column)
        if key is not None and (value is None or isinstance(value, int | float)):
            numbers[key] = math.nan if value is None else _float(value)
    return numbers


def known(column: str) -> str | None:
    """The name that checks use for a column, or None.

    >>> known("nap/rate/0.weight"), known("nap/critic/dead/1"), known("lr-Adam"), known("accuracy")
    ('rate/0.weight', 'dead/critic/1', 'lr/Adam', None)
    """
    if column in NAMES:
        return NAMES[column]
    if column.startswith("lr-"):
        return f"lr/{column[3:]}"
    rest = column.partition("nap/")[2] or column
    part, _, inner = rest.partition("/")  # the monitor of an agent: nap/critic/rate/…
    if not rest.startswith(_PREFIXES) and inner.startswith(_PREFIXES):
        kind, _, name = inner.partition("/")
        rest = f"{kind}/{part}/{name}"
    return rest if rest.startswith(_PREFIXES) else None
