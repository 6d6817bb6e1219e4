"""Proof by trying: a converted model does what its plan says, on the caller's own inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from nap.conversion.double import in_double, longer
from nap.conversion.leaks import leaks_of_model, leaks_of_norms
from nap.conversion.multiplied import Products
from nap.conversion.normalize import plan_with
from nap.conversion.orders import broken_masks, broken_orders
from nap.conversion.reach import unreached
from nap.conversion.training import idle_norms
from nap.conversion.trial import detached_copy, examples_of, fixed_randomness, wake_
from nap.norms.norm import CHILD, normalise_input, normalise_output
from nap.norms.products import products_run
from nap.tracing.values import held_tensors
from nap.weights import PLAN_ATTRIBUTE, Role, weight_groups

EXACT = 1e-9  # relative change of the output, in float64, that counts as none
FACTORS = (0.5, 3.0)


@dataclass(frozen=True)
class Verification:
    """What was tried, and how far the worst case was off."""

    norms: int  # inserted norms that were tried for leaks
    scale_invariant: int  # weights that were rescaled
    worst_change: float  # of the output, relative, over all of them
    left_alone: tuple[str, ...]  # what the plan reports and does not touch
    unreached: tuple[str, ...] = ()  # modules and weights that none of the examples uses
    untried: tuple[str, ...] = ()  # comparisons with the model without its norms in which the model failed

    def __str__(self) -> str:
        names = [name for name in self.left_alone if name not in self.unreached]
        alone = f"; left alone: {', '.join(names)}" if names else ""
        missed = f"; not reached by the examples: {', '.join(self.unreached)}" if self.unreached else ""
        failed = f"; not compared without norms, {'; '.join(self.untried)}" if self.untried else ""
        return (
            f"nothing left to normalise; {self.scale_invariant} scale-invariant weights, rescaled by "
            f"{' and '.join(f'{c:g}' for c in FACTORS)}: output changed by at most {self.worst_change:.1e}; "
            f"{self.norms} norms, none leaks across samples or positions{alone}{missed}{failed}"
        )


def verify(model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None = None) -> Verification:
    """Tries a converted model on example inputs; raises ValueError naming what does not hold.

    Four things: planning again finds nothing to normalise; every weight that `weight_groups` reports
    as scale-invariant is so (multiplied by 0.5 and 3, in float64, the output moves by < 1e-9); no matrix
    that enters a product, seen below autograd, is called a bias or unused; and no inserted norm mixes
    samples or, where it normalises positions one by one, positions: by itself, and in the outputs of the
    whole model against the same without its norms, where it runs without them. What the examples do not
    reach is listed: give several, `[(one,), (other,)]`, to reach more.

    >>> import nap
    >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    >>> plan = nap.normalize_(net, torch.randn(2, 8))
    >>> print(verify(net, torch.randn(2, 8)))  # doctest: +ELLIPSIS
    nothing left to normalise; 1 scale-invariant weights, rescaled by 0.5 and 3: ...
    """
    applied = getattr(model, PLAN_ATTRIBUTE, None)
    if applied is None:
        raise ValueError("the model was never converted; call nap.normalize_(model, args) first")
    lost = [name for name, module in model.named_modules() if not _runs(module)]
    if lost:
        raise ValueError(f"the norms of {', '.join(lost)} no longer run: their forward hooks were removed")
    unchanged = replace(applied.options, gains="none")  # gains are there already
    again = plan_with(model, args, kwargs, unchanged, again=True)
    failures = [f"{p.module} still {p.reason}" for p in again.placements] + [str(p) for p in again.problems]
    twin = detached_copy(model)._apply(longer)
    changes: dict[str, float] = {}
    leaks: dict[str, list[str]] = {}
    untried: list[str] = []
    for example in examples_of(args, kwargs):
        inputs, named = tree_map(longer, example)
        found = scale_changes(twin, inputs, named)
        changes = {name: max(change, changes.get(name, 0.0)) for name, change in found.items()}
        leaks.update(leaks_of_norms(twin, partial(_run, twin, inputs, named)))
        failures += [f for f in _mixtures(twin, inputs, named, untried) if f not in failures]
        failures += [f for f in _untrue_roles(twin, inputs, named) if f not in failures]
        failures += [f for f in idle_norms(model, *example, untried) if f not in failures]
    failures += [f"{name} is not scale-invariant: {c:.1e}" for name, c in changes.items() if not c < EXACT]
    failures += [f"{name} {leak}" for name, found in leaks.items() for leak in found]
    if failures:
        listed = "\n".join(f"  {failure}" for failure in failures)
        raise ValueError(f"{type(model).__name__} does not hold what its plan says:\n{listed}")
    placed = {placement.module for placement in applied.placements}
    names = tuple(note.name for note in applied.left_alone if note.name not in placed)
    worst = max(changes.values(), default=0.0)
    return Verification(len(leaks), len(changes), worst, names, unreached(again.left_alone), tuple(untried))


def _mixtures(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], untried: list[str]
) -> Iterator[str]:
    """What the norms of the whole model mix, with zero gains and offsets moved off zero so that it shows."""
    awake = wake_(detached_copy(model))
    yield from leaks_of_model(awake, partial(_run, awake), args, kwargs, untried)
    yield from broken_orders(awake, partial(_run, awake), args, kwargs, untried)
    yield from broken_masks(awake, _run, args, kwargs, untried)


def _untrue_roles(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[str]:
    """A matrix that enters a product is a weight, whatever the plan calls it."""
    with Products(model) as products:
        _run(model, args, kwargs)
    table = weight_groups(model)
    for name in sorted(products.names):
        if table[name].role in (Role.BIAS, Role.UNUSED):
            yield f"{name} enters a product, and the plan calls it {table[name].role}"


def _runs(carrier: nn.Module) -> bool:
    hooks = (*carrier._forward_hooks.values(), *carrier._forward_pre_hooks.values())
    if not products_run(carrier):
        return False
    return CHILD not in carrier._modules or normalise_output in hooks or normalise_input in hooks


def scale_changes(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, float]:
    """Relative change of the output for each weight reported as scale-invariant."""
    names = [row.name for row in weight_groups(model).of(Role.SCALE_INVARIANT)]
    before = _run(model, args, kwargs)
    parameters = dict(model.named_parameters())
    changes = {}
    for name in names:
        parameter = parameters[name]
        worst = 0.0
        for factor in FACTORS:
            with _scaled(parameter, factor):
                worst = max(worst, relative_change(before, _run(model, args, kwargs)))
        changes[name] = worst
    return changes


def relative_change(before: list[Tensor], after: list[Tensor]) -> float:
    """Largest difference over largest entry, over all floating outputs; inf where it is not a number."""
    worst = 0.0
    for a, b in zip(before, after, strict=True):
        if a.is_floating_point() and a.numel():
            finite = torch.isfinite(a)
            if not torch.equal(finite, torch.isfinite(b)):
                return float("inf")
            size = float(a[finite].abs().max()) if finite.any() else 0.0
            gap = float((a - b)[finite].abs().max()) if finite.any() else 0.0
            worst = max(worst, gap / size if size else gap)
    return worst


@contextmanager
def _scaled(parameter: Tensor, factor: float) -> Iterator[None]:
    kept = parameter.detach().clone()
    parameter.data.mul_(factor)
    try:
        yield
    finally:
        parameter.data.copy_(kept)


def _run(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    with torch.no_grad(), fixed_randomness(model), in_double():
        return [t.clone() for t in held_tensors(model(*args, **kwargs))]
