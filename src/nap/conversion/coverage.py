"""Every matrix of a model: whether a norm follows it, and if not, why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from nap.conversion.normalize import plan, plan_with
from nap.conversion.placement import Plan, table
from nap.weights import PLAN_ATTRIBUTE, Role


@dataclass(frozen=True)
class Covered:
    """One matrix."""

    name: str
    role: Role
    normalised: bool  # a norm cancels its scale, or will once the plan is applied
    reason: str


class Coverage(tuple[Covered, ...]):
    """The rows of `nap.coverage`; `print` it to read it."""

    @property
    def open(self) -> tuple[Covered, ...]:
        """The matrices whose scale no norm cancels."""
        return tuple(row for row in self if not row.normalised)

    def __str__(self) -> str:
        if not self:
            return "the model has no matrices"
        done = len(self) - len(self.open)
        rows = [
            {"weight": r.name, "norm": "yes" if r.normalised else "no", "role": r.role, "reason": r.reason}
            for r in self
        ]
        listed = table(rows, ("weight", "norm", "role", "reason"))
        return f"{listed}\na norm follows {done} of {len(self)} matrices"


def coverage(
    model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None = None, **options: Any
) -> Coverage:
    """Every matrix of `model`, whether a norm follows it, and if not, why; the model is not touched.

    `args` and `kwargs` are example inputs, as for `nap.plan`. Of a model that was not converted yet it says
    what there would be after `nap.normalize_` with these options; of one that was, what there is.

    >>> import torch
    >>> print(coverage(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(2, 8)))
    weight    norm  role             reason
    0.weight  yes   scale-invariant  a norm cancels its scale
    2.weight  no    output           reaches the output with no norm after it
    a norm follows 1 of 2 matrices
    """
    applied = getattr(model, PLAN_ATTRIBUTE, None)
    if applied is not None and not options:
        made = plan_with(model, args, kwargs, replace(applied.options, gains="none"), again=True)
    else:
        kept = {} if applied is None else {**asdict(applied.options), "gains": "none"}
        made = plan(model, args, kwargs, **{**kept, **options})
    matrices = {name for name, parameter in model.named_parameters() if parameter.ndim > 1}
    rows = (row for name, row in made.weights.items() if name in matrices)
    settled = (Role.SCALE_INVARIANT, Role.NORMALISED)
    return Coverage(
        Covered(row.name, row.role, row.role in settled, _reason(made, row.name, row.role, row.reason))
        for row in rows
    )


def _reason(made: Plan, name: str, role: Role, reason: str) -> str:
    """What the plan says of a weight or of the modules that it is in, else what its role says."""
    if role in (Role.SCALE_INVARIANT, Role.NORMALISED):
        return reason
    said = {note.name: note.reason for note in made.left_alone}
    said |= {problem.name: f"refused: {problem.reason}" for problem in made.problems}
    path = name
    while path:
        if path in said:
            return said[path]
        path = path.rpartition(".")[0]
    return reason
