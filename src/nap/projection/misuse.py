"""Warnings for training that runs without an error, and is not Normalize-and-Project.

Each is given once, names the parameters and says what to write instead. All are `MisuseWarning`: where one is
meant, `warnings.filterwarnings("ignore", category=nap.projection.misuse.MisuseWarning)`.
"""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nap.projection.names import bare_names, shortened
from nap.weights import PLAN_ATTRIBUTE

_unused: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # models whose Projector was never attached or called
PATIENCE = 100  # backward passes that found weights moved, and no projection in between
_HALF = (torch.bfloat16, torch.float16)


class MisuseWarning(UserWarning):
    """Training runs without an error but is not Normalize-and-Project."""


def _warn(names: Iterable[str], message: str) -> None:
    listed = ", ".join(shortened(list(names)))
    warnings.warn(f"{listed}: {message}" if listed else message, MisuseWarning, stacklevel=5)


def warn_of_changes(model: nn.Module) -> None:
    """Warn where a model has other parameters than when `nap.normalize_` planned it."""
    missing, unknown = changed_since_plan(model)
    if missing or unknown:
        listed = [*(f"{name} (new)" for name in unknown), *(f"{name} (gone)" for name in missing)]
        _warn(
            listed,
            "changed after nap.normalize_ (by peft, quantisation, fused layers, a wrapper or a new "
            "parameter), so its plan does not say what they do. What is new counts as a plain weight, and "
            "layers may have lost their norm; make all changes first, and call nap.normalize_ last",
        )


def changed_since_plan(model: nn.Module) -> tuple[list[str], list[str]]:
    """The planned parameters that the model no longer has, and its parameters that were not planned."""
    there = bare_names(dict(model.named_parameters(remove_duplicate=False)))
    plans = {prefix: vars(module)[PLAN_ATTRIBUTE] for prefix, module in _planned(model)}
    starts = {prefix: f"{prefix}." if prefix else "" for prefix in plans}
    known = {starts[prefix] + name for prefix, plan in plans.items() for name in plan.weights}
    outermost = [p for p in plans if not any(q != p and p.startswith(starts[q]) for q in plans)]
    promised = [starts[p] + name for p in outermost if plans[p].placements for name in plans[p].weights]
    present = {*there, *there.values()}
    missing = [name for name in promised if name not in present]
    inside = tuple(starts[p] for p in outermost if plans[p].placements)
    first = dict(model.named_parameters())
    unknown = [n for n in first if n.startswith(inside) and not {n, there[n]} & known] if inside else []
    return missing, unknown


def _planned(model: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    for prefix, module in model.named_modules():
        if PLAN_ATTRIBUTE in vars(module):  # a compiled module hands on the attributes of what is in it
            yield prefix, module


def warn_at_attach(
    model: nn.Module,
    projected: Mapping[str, Tensor],
    optimizers: Iterable[Any],
    *,
    relative: bool = False,
    braked: bool = False,
) -> None:
    """Warn of what makes training with these optimizers something else than NaP."""
    _never_normalized(model, projected)
    half = [f"{name} ({str(p.dtype).removeprefix('torch.')})" for name, p in projected.items() if _is_half(p)]
    if half:
        _warn(
            half,
            "a small update or projection is lost in rounding there; keep the weights in float32 "
            "(model.float()) and compute in half precision with torch.autocast",
        )
    names = {id(p): name for name, p in projected.items()}
    for optimizer in optimizers:
        if not braked:  # there a norm may shrink back to its radius, and decay does that
            _decays(optimizer, names, relative)
        _averages(optimizer)


def _is_half(parameter: Tensor) -> bool:
    return parameter.dtype in _HALF and parameter.requires_grad


def _never_normalized(model: nn.Module, projected: Collection[str]) -> None:
    """Warn of projected weights in a model without norms."""
    if len(projected) < 2 or any(True for _ in _planned(model)):
        return
    if any("norm" in type(module).__name__.lower() for module in model.modules()):
        return  # norms of its own: whether they suffice, nap.plan says
    _warn(
        projected,
        f"projected, and this {type(model).__name__} has no norms: its weights cannot grow, and nothing "
        "makes up for it; call nap.normalize_(model, example) before Projector(model) and the optimizer",
    )


def made_for(model: nn.Module) -> None:
    """Note that a Projector was made for this model."""
    _unused.add(model)


def used_on(model: nn.Module) -> None:
    """Note that a Projector of this model was attached, or called by hand."""
    _unused.discard(model)


def is_unused(model: nn.Module) -> bool:
    """Whether a Projector was made for this model or a part of it, and none was attached or called."""
    return any(module in _unused for module in model.modules())


def default_decay(optimizer: Any) -> float:
    """The weight decay that this optimizer has if nobody chooses one."""
    default = inspect.signature(type(optimizer)).parameters.get("weight_decay")
    return 0.0 if default is None or default.default is default.empty else default.default


def _decays(optimizer: Any, names: Mapping[int, str], relative: bool) -> None:
    """Warn of weight decay on projected weights, unless it is the optimizer's own default."""
    own = default_decay(optimizer)
    decayed: list[str] = []
    mixed = False
    for group in optimizer.param_groups:
        decay = group.get("weight_decay", 0.0)
        if isinstance(decay, (int, float)) and decay not in (0, own):
            decayed += [names[id(p)] for p in group["params"] if id(p) in names and p.requires_grad]
            mixed |= _through_moments(optimizer, group)
    if not decayed:
        return
    kind = type(optimizer).__name__
    effect = (
        f"in {kind} it goes through the moments and bends every update"
        if mixed
        else "it takes its share of each step, whose length is given, and turns nothing"
        if relative
        else "it only shrinks what is put back at once, and schedules nothing"
    )
    _warn(
        decayed,
        f"weight decay on projected weights: {effect}; build the optimizer from "
        "projector.param_groups(weight_decay=...), which keeps decay to the other parameters (where a "
        "trainer builds it, set its weight decay to 0), and write down the schedule that decay used to make "
        "(nap.schedules.weight_decay_rates)",
    )


_ADAPTIVE = (torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.Adamax, torch.optim.RMSprop)


def _through_moments(optimizer: Any, group: Mapping[str, Any]) -> bool:
    """Whether decay is added to the gradient before the moments, as in torch's Adam."""
    adam = type(optimizer) is torch.optim.Adam and not group.get(
        "decoupled_weight_decay"
    )  # no key in torch 2.6
    return adam or group.get("decoupled_weight_decay") is False or isinstance(optimizer, _ADAPTIVE)


def _averages(optimizer: Any) -> None:
    """Warn of schedule-free optimizers: `eval()` computes weights from a second set that is not projected."""
    if any("train_mode" in group for group in optimizer.param_groups) and hasattr(optimizer, "eval"):
        _warn(
            [],
            f"{type(optimizer).__name__} keeps a second set of weights, which is not projected: those that "
            "optimizer.eval() puts into the model are wrong. Evaluate at the weights that it trains, without "
            "optimizer.eval(); or take another optimizer, and for an average of weights "
            "torch.optim.swa_utils.AveragedModel with projector.project_(average)",
        )


class Unattached:
    """Warns once if a model trains and its `Projector` is neither attached nor called.

    It watches one weight, and goes with the projector: one that was made to print its plan leaves nothing.
    """

    def __init__(self, owner: Any, name: str, weight: Tensor):
        self._version, self._moved = weight._version, 0
        handle: Any = weight.register_post_accumulate_grad_hook(_Watch(self, name))
        self._finalizer = weakref.finalize(owner, handle.remove)
        self._finalizer.atexit = False

    def look(self, name: str, weight: Tensor) -> None:
        """Check after a backward pass whether the weight has changed since the last one."""
        if weight._version == self._version:
            return
        self._version = weight._version
        self._moved += 1
        if self._moved == PATIENCE:
            self.stop()
            _warn(
                [name],
                f"moved before {PATIENCE} backward passes, and was never projected: its Projector is "
                "attached to no optimizer; call projector.attach(optimizer), or projector.project_() after "
                "each update",
            )

    def stop(self) -> None:
        """Stop watching."""
        self._finalizer()


class _Watch:
    """The gradient hook, with a weak reference to its owner."""

    def __init__(self, guard: Unattached, name: str):
        self._guard: Callable[[], Unattached | None] = weakref.ref(guard)
        self._name = name

    def __call__(self, weight: Tensor) -> None:
        guard = self._guard()
        if guard is not None:
            guard.look(self._name, weight)
