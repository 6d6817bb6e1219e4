"""Loading a saved state of a `Projector`: what is taken from it, and what is refused.

Whether a small weight may grow is decided from its size at the start. When a run is resumed it is small no
more. So where the caller left that to the default, the decision in the state counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from nap.projection.names import bare_names, shortened
from nap.projection.noisy import Two, shared
from nap.projection.plan import ProjectionPlan, ProjectionRow
from nap.projection.policies import Policies, which
from nap.projection.refusals import refuse
from nap.weights import WeightTable

DEFAULT = "default"
_SIZED = {"project", "grow"}  # which of the two depends on the size at the start
_CHOICES = {*_SIZED, "free"}


def settings_of(policies: Policies) -> dict[str, str]:
    """The policies as they are stored in a state."""
    return {field.name: getattr(policies, field.name) or DEFAULT for field in fields(policies)}


def with_saved_actions(
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


def _comparable(mine: Mapping[str, Any], saved: Any, policies: Policies) -> tuple[Any, Any]:
    """Both states without the policies that one of them leaves to the default; their actions are compared."""
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


def state_with_noise(saved: Any, settings: Mapping[str, Any], pairs: Iterable[Two]) -> Any:
    """A saved state with the policy for noise added: older states have a radius for each weight."""
    if "noise" not in settings or not isinstance(saved, Mapping):
        return saved
    of, radii = saved.get("settings"), saved.get("radii")
    if not isinstance(of, Mapping) or not isinstance(radii, Mapping) or "noise" in of:
        return saved
    if settings["noise"] == "joint":
        warnings.warn(
            "this state is of a Projector that kept means and noise of noisy layers at norms of their own; "
            "from now on each pair has one norm. Projector(model, noise='separate') goes on as before",
            stacklevel=3,
        )
        known = [pair for pair in pairs if all(name in radii for name in pair)]
        radii = {**radii, **shared(radii, known)}
    return {**saved, "settings": {**of, "noise": settings["noise"]}, "radii": radii}


def bare_state(state: Any) -> Any:
    """The state with bare names; anything but a state of a `Projector` is returned unchanged."""
    if not isinstance(state, Mapping) or not isinstance(state.get("actions"), Mapping):
        return state
    bare = bare_names(state["actions"])
    return {
        part: {bare.get(key, key): value for key, value in entries.items()}
        if isinstance(entries, Mapping)
        else entries
        for part, entries in state.items()
    }


def check_state(mine: Mapping[str, Any], saved: Any, policies: Policies) -> None:
    """Refuse a saved state of another model or other settings, or with impossible radii or counts."""
    if found := _differences(*_comparable(mine, saved, policies)):
        raise ValueError("\n  ".join(["this state is of another Projector:", *shortened(found)]))
    _check_numbers(saved["radii"], saved["updates"])


def _differences(mine: Mapping[str, Any], saved: Any) -> list[str]:
    found = []
    for part, here in mine.items():
        there = saved.get(part) if isinstance(saved, Mapping) else None
        if not isinstance(there, Mapping):
            found.append(f"{part}: missing from the state")
            continue
        for key in dict.fromkeys([*here, *there]):
            a, b = here.get(key, "nothing"), there.get(key, "nothing")
            if isinstance(a, Tensor):
                a, b = list(a.shape), list(b.shape) if isinstance(b, Tensor) else b
            elif isinstance(b, Tensor):
                b = f"a tensor of shape {list(b.shape)}"
            if a != b and not (part == "updates" and isinstance(a, int) and isinstance(b, int)):
                found.append(f"{part}.{key}: {b} in the state, {a} here")
    return found


def _check_numbers(radii: Mapping[str, Any], updates: Mapping[str, Any]) -> None:
    """Refuse radii that no weight can have, and counts that no training gives."""
    way = (
        "the state was damaged or edited: load an older checkpoint, or build a new Projector to measure anew"
    )
    if odd := [name for name, r in radii.items() if not isinstance(r, Tensor) or not r.is_floating_point()]:
        refuse(odd, "a radius in the state that is no tensor of numbers", way)
    if bad := [name for name, r in radii.items() if not ((r > 0) & r.isfinite()).all()]:
        refuse(bad, "a radius in the state that is not a finite number above 0", way)
    if odd := [name for name, n in updates.items() if isinstance(n, bool) or not isinstance(n, int) or n < 0]:
        refuse(odd, "a count of updates in the state that is no whole number, 0 or more", way)
