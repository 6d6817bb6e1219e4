"""A saved state may hold decisions that depended on the weights at the start; a resumed run keeps them.

What starts small may grow, and when a run is resumed it is small no more. So where the caller left a policy
to the default, the plan of the state counts, also of states from before there was such a policy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any

from nap.projection.plan import ProjectionPlan, ProjectionRow
from nap.projection.policies import Policies, which
from nap.weights import WeightTable

DEFAULT = "default"
_SIZED = {"project", "grow"}  # which of the two depends on the size at the start
_CHOICES = {*_SIZED, "free"}


def settings_of(policies: Policies) -> dict[str, str]:
    """The policies as a state keeps them."""
    return {field.name: getattr(policies, field.name) or DEFAULT for field in fields(policies)}


def taken_over(
    plan: ProjectionPlan,
    table: WeightTable,
    policies: Policies,
    bare: Mapping[str, str],
    saved: Any,
    measured: Collection[str],
) -> ProjectionPlan:
    """This plan with the actions of a saved state, where the choice between them was left open.

    What is excluded has not been `measured`, and stays out.
    """
    actions = saved.get("actions") if isinstance(saved, Mapping) else None
    settings = saved.get("settings") if isinstance(saved, Mapping) else None
    if not (isinstance(actions, Mapping) and isinstance(settings, Mapping)):
        return plan

    def decided(row: ProjectionRow) -> ProjectionRow:
        there: Any = actions.get(bare[row.name])
        kind = which(table[row.name])
        choice = None if kind is None else policies.of(kind)
        if kind is not None and choice is None:
            either = _CHOICES
        else:
            either = _SIZED if kind is None or settings.get(kind) == choice else set()
        if there == row.action or row.name not in measured or not {there, row.action} <= either:
            return row
        return replace(row, action=there, reason="as the run was begun", radius=None, norms=0)

    return replace(plan, rows=tuple(map(decided, plan.rows)))


def comparable(mine: Mapping[str, Any], saved: Any, policies: Policies) -> tuple[Any, Any]:
    """Two states without the policies that one of them leaves open: there the actions tell."""
    if not (isinstance(saved, Mapping) and isinstance(saved.get("settings"), Mapping)):
        return mine, saved
    there = saved["settings"]
    open_ = {
        field.name
        for field in fields(policies)
        if getattr(policies, field.name) is None or there.get(field.name, DEFAULT) == DEFAULT
    }

    def without(state: Mapping[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in state["settings"].items() if key not in open_}
        return {**state, "settings": kept}

    return without(mine), without(saved)
