"""What a `Projector` refuses: each error names the things, the reason and the way out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from nap.projection.names import shortened
from nap.projection.plan import NamePair, ProjectionPlan, pairs_of
from nap.projection.policies import Policies
from nap.projection.sphere import norms_of
from nap.weights import Role, Weight, WeightTable


def refuse(names: Iterable[str | None], why: str, way_out: str = "") -> NoReturn:
    """Raise a ValueError with names, reason and way out (by default to exclude them)."""
    listed = [name for name in names if name]
    way_out = way_out or f"leave it out with Projector(model, exclude={listed!r})"
    raise ValueError(f"{', '.join(listed)}: {why}; {way_out}".removeprefix(": "))


def check_model(model: Any) -> None:
    """Refuse anything but a module."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"Projector takes a torch.nn.Module, not {_kind(model)}; pass the model itself")


def _kind(thing: Any) -> str:
    return "None" if thing is None else f"a {type(thing).__name__}"


def check_options(every: int, decay: float, **choices: str | None) -> None:
    """Refuse options outside their choices."""
    allowed: dict[str, list[str | None]] = {
        "per": ["tensor", "row"],
        **{name: ["project", "grow", "free", None] for name in ("output", "embeddings", "branches")},
        "affine": ["free", "joint", "decay"],
        "noise": ["joint", "separate", "free"],
    }
    for option, value in choices.items():
        if value not in allowed[option]:
            raise ValueError(f"{option}={value!r} is not a choice; take one of {allowed[option]}")
    if type(every) is not int or every < 1:
        raise ValueError(f"every={every!r} counts updates; take a whole number, 1 or more")
    if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 < decay <= 1:
        raise ValueError(f"decay={decay!r} is the share of the way to (1, 0); take a number in (0, 1]")


def readable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters by name; refuse those without values, and flat shards of FSDP1."""
    parameters = dict(model.named_parameters())
    if empty := [name for name, p in parameters.items() if p.is_meta or is_lazy(p)]:
        refuse(empty, "no values to measure (meta device or lazy)", "initialise the model first")
    if flat := [name for name, p in parameters.items() if getattr(p, "_fsdp_flattened", False)]:
        refuse(flat, "a flat shard of FSDP1, whose norm is not that of the weight", "use fully_shard (FSDP2)")
    return parameters


def check_fit(plan: ProjectionPlan, policies: Policies, *, excluded: bool) -> None:
    """Refuse a plan that does nothing, and policies for roles that were not traced."""
    if not plan.names("project", "grow", "joint", "decay"):
        if excluded:
            refuse([], "no parameter of the model is left to project", "exclude less")
        why = f"none of the model's {len(plan.rows)} parameters is projected (print nap.weight_groups(model))"
        refuse([], why, "build the Projector before layers are quantised, or with other policies")
    untraced = [row.name for row in plan.rows if row.role is Role.WEIGHT and row.action != "free"]
    what = {"output": "the output layer", "embeddings": "a table", "branches": "the end of a branch"}
    for option, choice in policies.chosen().items():
        if untraced and choice != "project":
            way = "call nap.normalize_(model, example_inputs) first, or name the weights in exclude=[...]"
            why = f"never traced, so {option}={choice!r} cannot tell which is {what[option]}"
            refuse(untraced, why, way)


def check_joint(pairs: Sequence[NamePair], table: WeightTable, parameters: Mapping[str, Tensor]) -> None:
    """Refuse what the joint rule would break: it is exact only where φ(c·x) = c·φ(x) follows."""
    names = [name for pair in pairs for name in pair if name]
    whole = pairs_of(table.of(Role.AFFINE))
    if unknown := [name for name in names if table[name].homogeneous is None]:
        way = "call nap.normalize_(model, example_inputs) first, or use affine='decay'"
        refuse(unknown, "never traced, so affine='joint' cannot tell which activation follows", way)
    if curved := [name for name in names if not table[name].homogeneous]:
        why = "affine='joint' would change the function, for what follows is not ReLU-like"
        refuse(curved, why, f"use affine='decay', or exclude={curved!r}")
    if alone := [name for pair in pairs if pair not in whole or not pair[0] for name in pair if name]:
        why = "affine='joint' scales the scale and offset of a norm together, and this would move alone"
        refuse(alone, why, "exclude the whole norm by its module name, or use affine='decay'")
    if halves := [
        pair for pair in pairs if len({parameters[name].requires_grad for name in pair if name}) > 1
    ]:
        refuse(halves[0], "affine='joint' moves both, and one of them is frozen", "freeze both or neither")
    for pair in pairs:
        norm = torch.stack([norms_of(parameters[name]).max() for name in pair if name]).double().norm()
        if not (norm > 0 and norm.isfinite()):
            refuse(pair, "a joint norm that is zero or not finite, so there is no direction to keep")


def check_rows(weights: Iterable[Weight]) -> None:
    """Refuse weights whose output axis is not known."""
    if unknown := [weight.name for weight in weights if weight.out_axis < weight.stacked]:
        refuse(unknown, "the axis of its rows is not known, and per='row' needs it")


def check_radii(radii: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    """Refuse norms of single entries, and norms that are not finite."""
    if single := [name for name, r in radii.items() if r.numel() == parameters[name].numel()]:
        refuse(single, "one entry to each norm, so a fixed norm leaves only a sign to learn")
    if bad := [name for name, r in radii.items() if not r.isfinite().all()]:
        refuse(bad, "a norm that is not finite", f"repair its values, or exclude={bad!r}")


def check_unchanged(
    model: nn.Module, plan: ProjectionPlan, slots: Mapping[str, tuple[nn.Module, str]]
) -> None:
    """Refuse a model whose parameters, or the modules that hold them, have changed since it was planned."""
    now, then = dict(model.named_parameters()), dict.fromkeys(plan.names())
    changed = [f"{name} (new)" for name in now if name not in then]
    changed += [f"{name} (gone)" for name in then if name not in now]
    for name, (module, _) in slots.items():
        if name in now and model.get_submodule(name.rpartition(".")[0]) is not module:
            changed.append(f"{name} (another module)")
    if changed:
        why = "parameters changed since the Projector was built, so its plan is of another model"
        refuse(shortened(changed), why, "build it after nap.normalize_ and all other changes of the model")


def check_one(optimizer: Any, model: nn.Module, acted: Mapping[int, str], pairs: Iterable[NamePair]) -> None:
    """Refuse an optimizer of another model, or with only one of a pair that shares a norm."""
    kind, held = type(optimizer).__name__, held_by(optimizer)
    if held.isdisjoint(map(id, model.parameters())):
        way = "build it from this very model, or the Projector on the copy of it that is trained"
        refuse([], f"this {kind} holds no parameter of the plan", way)
    names = {name for key, name in acted.items() if key in held}
    for pair in pairs:
        if len({name in names for name in filter(None, pair)}) > 1:
            refuse(pair, f"move together, but this {kind} holds only one of them", "give it both")


def held_by(*optimizers: Any) -> set[int]:
    """The parameters of these optimizers, by id."""
    return {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}


def check_held(optimizers: Sequence[Any], acted: Mapping[int, str], norms: Mapping[int, str]) -> None:
    """Refuse optimizers that leave trainable weights unprojected, or norms of step 1 untrained (by id)."""
    held = held_by(*optimizers)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    if not any(parameter.requires_grad for group in groups for parameter in group["params"]):
        why = "all that the optimizer holds is frozen (requires_grad is False): there is no update to follow"
        refuse([], why, "unfreeze what is to be trained, or do without attach and call project_() on copies")
    untrained = [name for key, name in norms.items() if key not in held]
    if missing := [name for key, name in acted.items() if key not in held and key not in norms]:
        way = f"attach all optimizers in one call, attach(a, b), or build with exclude={missing!r}"
        refuse(missing, "held by no attached optimizer, so never projected", way)
    if untrained:
        kinds = ", ".join(type(optimizer).__name__ for optimizer in optimizers)
        raise ValueError(
            f"{kinds}: built before nap.normalize_, so it does not train {', '.join(shortened(untrained))}; "
            "build the optimizer after it. Where another optimizer holds them, attach all in one call, "
            "attach(a, b); to leave them untrained, freeze them or name them in exclude=[...]"
        )
