"""Diagnosing a live model, its optimizer and a batch."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from nap.diagnostics.doctor import measure
from nap.diagnostics.doctor.case import Case, Live
from nap.diagnostics.doctor.checks import run_checks
from nap.diagnostics.doctor.findings import Diagnosis
from nap.diagnostics.recorder import Recorder
from nap.projection.hooks import AfterStep, inner_optimizers
from nap.projection.misuse import MisuseWarning, default_decay, is_unused, warn_at_attach, warn_of_changes
from nap.projection.project import Projector
from nap.projection.refusals import held_by, readable_parameters
from nap.rates.learning_rate import Update
from nap.weights import PLAN_ATTRIBUTE, WEIGHT_ROLES, Role, weight_groups


def diagnose(
    model: nn.Module,
    optimizer: Any,
    args: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss: measure.Loss | None = None,
    start: Diagnosis | Mapping[str, float] | None = None,
    layers: Sequence[str | nn.Module] | None = None,
    update: Update | str | None = None,
) -> Diagnosis:
    """Likely reasons why `model` does not learn, each with the number behind it and what to try.

    Nothing is changed: no weight, gradient, buffer or moment. Compare with an earlier diagnosis, from the
    start of training say, to see growth: `diagnose(model, optimizer, batch, start=first)`.

    Args:
        optimizer: one, or a container of several, as `Projector.attach` takes them.
        args: a batch as the model takes it, 32 inputs or more; a tuple lists the arguments.
        kwargs: named arguments.
        loss: makes the loss of the model's output, for gradients: `lambda output: cross_entropy(output, y)`.
            Without it the gradients that `backward()` has left are looked at.
        start: an earlier diagnosis, or its numbers.
        layers: what to look at instead of all activation modules, as in `Recorder`.
        update: how to read the lr of an optimizer that is not known, "raw" or "normalised".

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    >>> diagnose(model, optimizer, torch.randn(256, 8), loss=lambda out: out.square().mean()).healthy
    True
    >>> _ = model[0].bias.data.fill_(-100.0)
    >>> diagnose(model, optimizer, torch.randn(256, 8)).findings[0].name
    'units are dead'
    """
    readable_parameters(model)
    named, optimizers = dict(kwargs or {}), inner_optimizers(optimizer)
    gradients, value = measure.gradients(model, args, named, loss)
    table, missing = weight_groups(model), dict[str, str]()
    seen = measure.seen(model, args, named)
    numbers = measure.broken_numbers(model, gradients) | seen.numbers | measure.weight_numbers(model, table)
    numbers |= measure.gradient_numbers(table, gradients, measure.second_moments(model, optimizers))
    numbers |= {} if value is None else {"loss": value}
    try:
        rows = Recorder(model, layers).measure(args, named)
        numbers |= {name: number for name, number in rows.items() if name != "norm/gradients"}
    except ValueError as reason:
        missing |= {"dead/": str(reason), "rank/": str(reason)}
    try:
        numbers |= measure.rate_numbers(model, optimizers, update, gradients)
    except ValueError as reason:
        missing |= {"rate/": str(reason), "step/": str(reason)}
    projectors = _projectors_on(optimizer)
    for projector in projectors:
        if projector.options["every"] > 1:
            continue  # between projections norms are off by right
        growing = set(projector.plan.names("grow"))
        numbers |= {f"kept/{n}": r for n, r in projector.norm_ratios().items() if n not in growing}
    if numbers.get("samples", 32) < 32:
        missing["dead/"] = "the batch has fewer than 32 inputs"
        numbers = {k: v for k, v in numbers.items() if not k.startswith(("dead/", "linearized/"))}
    if not any(key.startswith("stale/") for key in numbers):
        missing["stale/"] = "needs an optimizer of Adam's kind after ten updates, and gradients (loss=…)"
    if not any(key.startswith("saturated/") for key in numbers):
        missing["saturated/"] = "the model has no bounded activation module (tanh, sigmoid)"
    if not any(key.startswith("affine/") for key in numbers):
        missing["affine/"] = "the model has no norms with scale or offset"
    earlier = start.numbers if isinstance(start, Diagnosis) else start
    history: list[tuple[float | None, Mapping[str, float]]] = [(None, numbers)]
    if earlier is not None:
        bare = {key.removeprefix("nap/"): number for key, number in earlier.items()}
        history.insert(0, (None, {key: bare[key] for key in numbers if key in bare}))
    live = _live(model, optimizers, table, seen, gradients if loss is not None else {}, projectors)
    case = Case.of(history, live, missing)
    return run_checks(case)


def _live(
    model: nn.Module,
    optimizers: Sequence[Any],
    table: Any,
    seen: measure.Seen,
    gradients: Mapping[str, Any],
    projectors: Sequence[Projector],
) -> Live:
    parameters = dict(model.named_parameters())
    names = {id(p): name for name, p in parameters.items()}
    held = held_by(*optimizers)
    trained = [name for name, p in parameters.items() if p.requires_grad]
    matrices = {row.name for row in table.of(*WEIGHT_ROLES)}
    tables = {
        names[id(m.weight)] for m in model.modules() if isinstance(m, nn.Embedding) and id(m.weight) in names
    }
    kept = [name for p in projectors for name in p.plan.names("project")]
    updates = measure.updates_of(optimizers)
    idle = bool(projectors) and not any(any(p.updates.values()) for p in projectors)
    return Live(
        head="" if seen.last is None else names.get(id(seen.last.weight), ""),
        tables=frozenset(tables),
        zeros=frozenset(n for n in matrices if not parameters[n].any()),
        has_norms=bool(table.of(Role.AFFINE)) or _is_converted(model),
        converted=_is_converted(model),
        projected=frozenset(kept),
        unreached=tuple(name for name, gradient in gradients.items() if gradient is None),
        untrained=tuple(name for name in trained if id(parameters[name]) not in held),
        misuse=tuple(_misuse(model, projectors, optimizers)),
        unattached=not projectors and is_unused(model),
        unseen=(updates or 0) if idle else 0,
        decayed=tuple(names[key] for key in _decayed_by_default(optimizers) if names.get(key) in kept),
        updates=updates,
    )


def _decayed_by_default(optimizers: Iterable[Any]) -> list[int]:
    """Parameters, by id, with the weight decay that their optimizer has if nobody chooses one."""
    return [
        id(parameter)
        for optimizer in optimizers
        for group in optimizer.param_groups
        if group.get("weight_decay", 0) and group["weight_decay"] == default_decay(optimizer)
        for parameter in group["params"]
    ]


def _is_converted(model: nn.Module) -> bool:
    return any(PLAN_ATTRIBUTE in vars(module) for module in model.modules())


def _projectors_on(optimizer: Any) -> list[Projector]:
    """The projectors that are attached to this optimizer."""
    hooks = [
        hook
        for one in (optimizer, *inner_optimizers(optimizer))
        for hook in getattr(one, "_optimizer_step_post_hooks", {}).values()
        if isinstance(hook, AfterStep)
    ]
    owners = [getattr(hook._follow, "__self__", None) for hook in hooks]
    return list({id(o): o for o in owners if isinstance(o, Projector)}.values())


def _misuse(model: nn.Module, projectors: Iterable[Projector], optimizers: Sequence[Any]) -> list[str]:
    """The warnings of `nap.projection.misuse`, as text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MisuseWarning)
        warn_of_changes(model)
        for projector in projectors:
            parameters = dict(model.named_parameters())
            names = [name for name in projector.plan.names("project") if name in parameters]
            warn_at_attach(model, {name: parameters[name] for name in names}, optimizers)
    return [str(one.message) for one in caught if issubclass(one.category, MisuseWarning)]
