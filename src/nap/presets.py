"""Both steps in one call: `prepare`, with the settings that our results say to start with.

A preset is nothing but options of public calls. `print(prepare(...))` shows these calls as code to paste.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.optim import Optimizer

from nap.conversion.normalize import normalize_
from nap.conversion.normalize import plan as plan_of
from nap.conversion.placement import Plan
from nap.projection.project import Projector
from nap.weights import Role

Name = Literal["rl", "language", "vision", "continual"]


@dataclass(frozen=True)
class Preset:
    """Options of `nap.normalize_`, `nap.Projector` and the optimizer, and what they rest on."""

    why: tuple[str, ...]
    optimizer: type[Optimizer]
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    normalize: Mapping[str, Any] = field(default_factory=dict)
    project: Mapping[str, Any] = field(default_factory=dict)


_TUNE = "lr: your baseline's is a start, not the best; try half and twice of it (nap compare does)"

PRESETS: Mapping[Name, Preset] = {
    "rl": Preset(
        why=(
            "output='free': policy heads start near zero, and values have a scale to find; no comparison on "
            "agents has decided this yet",
            "write a schedule down: agents often live on a rate that growing norms lower (nap.schedules)",
            _TUNE,
        ),
        optimizer=torch.optim.Adam,
        optimizer_options={"eps": 1e-5},
        project={"output": "free"},
    ),
    "language": Preset(
        why=(
            "norm='rms': in a probe (8 blocks × 512, one seed) validation loss 5.23, with LayerNorm 5.28",
            "tables and output are free, small branches grow: Projector's default where tokens are looked up",
            "no weight decay on projected weights: what it scheduled, write down (nap.schedules)",
            _TUNE,
        ),
        optimizer=torch.optim.AdamW,
        optimizer_options={"betas": (0.9, 0.95)},
        normalize={"norm": "rms"},
    ),
    "vision": Preset(
        why=(
            "residual='sum': a norm right in front of each BatchNorm, as in our ResNet-50 and CIFAR-10 runs",
            "branches='project' as in these runs",
            "weight decay hid a schedule; nap.schedules.weight_decay_rates translates it",
            "where you compile: nap.fuse_batch_norms_(model, batch) after nap.normalize_ makes norms cheaper",
            _TUNE,
        ),
        optimizer=torch.optim.SGD,
        optimizer_options={"momentum": 0.9, "nesterov": True},
        normalize={"residual": "sum"},
        project={"branches": "project"},
    ),
    "continual": Preset(
        why=(
            "affine='joint': level with free scales and offsets in a CNN, 3 points better in an MLP",
            "output='project': left free, it cost 10 points in an MLP (moments kept)",
            "when the task changes and you know it: optimizer.state.clear(), for stale moments cost more "
            "than NaP gains",
            _TUNE,
        ),
        optimizer=torch.optim.Adam,
        optimizer_options={"eps": 1e-5},
        project={"affine": "joint", "output": "project"},
    ),
}


@dataclass(frozen=True)
class Prepared:
    """What `prepare` made: `model, optimizer, projector = prepared`; print it to read what was done."""

    model: nn.Module
    optimizer: Optimizer
    projector: Projector
    plans: Mapping[str, Plan]  # of step 1, by the part that was converted; "" is the whole model
    code: str  # the same in public calls
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.optimizer, self.projector))

    def __str__(self) -> str:
        norms = sum(len(plan.placements) for plan in self.plans.values())
        return "\n".join(
            [
                f"{type(self.model).__name__}: step 1 acts in {norms} places. Step 2: "
                f"{self.projector.plan.summary()}.",
                "",
                self.code,
                "",
                *(f"- {note}" for note in self.notes),
            ]
        )


def prepare(
    model: nn.Module,
    batch: Any,
    *,
    preset: Name,
    lr: float,
    weight_decay: float = 0.0,
    parts: Sequence[str] = (),
    optimizer: type[Optimizer] | None = None,
    normalize: Mapping[str, Any] | None = None,
    project: Mapping[str, Any] | None = None,
    **optimizer_options: Any,
) -> Prepared:
    """Both steps of NaP and an optimizer, with the settings of a preset (docs/results.md).

    `model` is converted in place, before the optimizer is made. Moves to another device come first.

    Args:
        batch: example inputs: a tensor, a tuple of arguments, or a dict of named ones. Two samples do.
        preset: "rl", "language", "vision" or "continual".
        lr: of the optimizer. That of your baseline is a start; NaP's best may differ, so try half and twice.
        weight_decay: of matrices that are not projected; projected weights have none.
        parts: names of parts that are converted one by one on this batch, for a model without a forward
            of its own, such as ("actor", "critic").
        optimizer: its class, instead of the preset's; `optimizer_options` go to it.
        normalize: options of `nap.normalize_`, over those of the preset.
        project: options of `nap.Projector`, over those of the preset.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> model, optimizer, projector = prepare(model, torch.randn(2, 4), preset="rl", lr=3e-4)
    >>> projector
    Projector of Sequential: 1 projected, 4 left free; attached to Adam
    """
    chosen = PRESETS[named(preset)]
    _check_rate(lr, weight_decay)
    norm = {**chosen.normalize, **(normalize or {})}
    sphere = {**chosen.project, **(project or {})}
    notes = list(chosen.why)
    kind, options = _optimizer(chosen, optimizer, weight_decay, optimizer_options)
    plans = _plans(model, batch, parts, norm)
    if sphere.get("affine") == "joint" and "affine" not in (project or {}) and not _homogeneous(plans):
        del sphere["affine"]  # which Projector would refuse
        notes[0] = "scales and offsets stay free: affine='joint' is exact only where ReLU-like units follow"
    for name, plan in plans.items():
        normalize_(_part(model, name), plan)
    projector = Projector(model, **sphere)
    parameters: Any = projector.param_groups(weight_decay=weight_decay) if weight_decay else None
    made = kind(parameters or model.parameters(), lr=lr, **options)
    projector.attach(made)
    call = "(), batch" if isinstance(batch, Mapping) else "batch"
    code = _code(list(plans), call, norm, sphere, kind, {"lr": lr, **options}, weight_decay)
    return Prepared(model, made, projector, plans, code, tuple(notes))


def prepare_baseline(
    model: nn.Module,
    batch: Any,
    *,
    norms: bool,
    preset: Name,
    lr: float,
    weight_decay: float = 0.0,
    parts: Sequence[str] = (),
    optimizer: type[Optimizer] | None = None,
    normalize: Mapping[str, Any] | None = None,
    project: Mapping[str, Any] | None = None,
    **optimizer_options: Any,
) -> Optimizer:
    """The optimizer of what `prepare` is compared with: the plain model, or the model with `norms` alone.

    Takes what `prepare` takes. Weight decay acts on all parameters, as it does without NaP; `project` does
    nothing.
    """
    chosen = PRESETS[named(preset)]
    _check_rate(lr, weight_decay)
    kind, options = _optimizer(chosen, optimizer, weight_decay, optimizer_options)
    if norms:
        norm = {**chosen.normalize, **(normalize or {})}
        for name, plan in _plans(model, batch, parts, norm).items():
            normalize_(_part(model, name), plan)
    decay = {"weight_decay": weight_decay} if weight_decay else {}
    made: Optimizer = kind(model.parameters(), lr=lr, **decay, **options)
    return made


def _optimizer(
    chosen: Preset, kind: type[Optimizer] | None, weight_decay: float, more: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """The class and its options; a decay that the class has by default is switched off if none was asked."""
    options = {**(chosen.optimizer_options if kind is None else {}), **more}
    kind = kind or chosen.optimizer
    decay = inspect.signature(kind).parameters.get("weight_decay")
    if decay is not None and decay.default not in (0, decay.empty) and not weight_decay:
        options.setdefault("weight_decay", 0.0)
    return kind, options


def _plans(model: nn.Module, batch: Any, parts: Sequence[str], options: Mapping[str, Any]) -> dict[str, Plan]:
    args, kwargs = ((), batch) if isinstance(batch, Mapping) else (batch, None)
    return {name: plan_of(_part(model, name), args, kwargs, **options) for name in parts or ("",)}


def named(name: Any) -> Name:
    """The name of a preset; anything else is an error that lists them."""
    if name in PRESETS:
        return name
    if name is None:
        raise ValueError(
            f"say which preset: preset='rl', for example; there are {', '.join(map(repr, PRESETS))}"
        )
    near = get_close_matches(str(name), get_args(Name), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"there is no preset {name!r}; there are {', '.join(map(repr, PRESETS))}{hint}")


def _check_rate(lr: float, weight_decay: float) -> None:
    if not 0 < lr < float("inf"):
        raise ValueError(f"lr is {lr!r}; it is the learning rate, a number above 0")
    if not 0 <= weight_decay < float("inf"):
        raise ValueError(f"weight_decay is {weight_decay!r}; it is a number, 0 or above")


def _part(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        there = ", ".join(child for child, _ in model.named_children())
        raise ValueError(f"parts names {name!r}, which this model lacks; it has {there}") from None


def _homogeneous(plans: Mapping[str, Plan]) -> bool:
    """Whether joint projection of scales and offsets leaves the function as it is."""
    return all(row.homogeneous for plan in plans.values() for row in plan.weights.of(Role.AFFINE))


def _code(
    parts: Sequence[str],
    call: str,
    normalize: Mapping[str, Any],
    project: Mapping[str, Any],
    kind: type[Optimizer],
    options: Mapping[str, Any],
    weight_decay: float,
) -> str:
    """The public calls that `prepare` makes."""
    of = f"projector.param_groups(weight_decay={weight_decay!r})" if weight_decay else "model.parameters()"
    module = "torch.optim" if kind.__module__.startswith("torch.optim.") else kind.__module__
    paths = ["model" + f".{name}" * bool(name) for name in parts]
    return "\n".join(
        [
            *(f"nap.normalize_({_words(path, call, **normalize)})" for path in paths),
            f"projector = nap.Projector({_words('model', **project)})",
            f"optimizer = {module}.{kind.__qualname__}({_words(of, **options)})",
            "projector.attach(optimizer)",
        ]
    )


def _words(*first: str, **named: Any) -> str:
    return ", ".join([*first, *(f"{key}={value!r}" for key, value in named.items())])
