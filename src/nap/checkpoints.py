"""One file for model, plan, radii and optimizer: `nap.save`, and `nap.load` into a plain model."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nap.checksum import checksum
from nap.conversion.normalize import normalize_
from nap.conversion.placement import Plan
from nap.norms.gain import GAIN
from nap.norms.norm import CHILD, PRODUCTS
from nap.projection.hooks import inner_optimizers
from nap.projection.names import bare_names, shortened
from nap.projection.project import Projector
from nap.sharded import sharded_parts
from nap.weights import PLAN_ATTRIBUTE

FORMAT = 1
_CHECKSUM = "sha256"  # of all other entries; files from before there was one have none


def save(
    path: str | os.PathLike[str],
    model: nn.Module,
    projector: Projector | None = None,
    optimizer: Any = None,
    **extra: Any,
) -> None:
    """Write the plan of step 1, the weights, the radii and the optimizer's state into one file.

    It is written beside `path` first and then moved there, so a save that is broken off leaves the file of
    before. `torch.load(path, weights_only=True)` reads it: tensors, numbers, strings, lists and dicts. A
    checksum of them is stored, too, and `load` refuses a file that it does not fit.

    Args:
        optimizer: one, or a list of them, in the order that `Checkpoint.resume` takes.
        extra: what else belongs to the run, such as `step=100, schedule=schedule.state_dict()`.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> _ = normalize_(model, torch.randn(2, 4))
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> save("/tmp/run.pt", model, Projector(model).attach(optimizer), optimizer, step=3)

    >>> fresh = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> checkpoint = load("/tmp/run.pt", fresh)
    >>> projector = checkpoint.resume(torch.optim.Adam(fresh.parameters()))
    >>> fresh[0].nap_norm.width, checkpoint.extra["step"]
    (8, 3)
    """
    plain = unwrapped_model(model)
    if sharded_parts(plain):
        raise ValueError(
            "the model is sharded, and nap.save writes whole tensors from one process; use "
            'torch.distributed.checkpoint with {"model": model, "projector": projector}'
        )
    optimizers = _listed(optimizer)
    names = {id(parameter): name for name, parameter in plain.named_parameters()}
    content: dict[str, Any] = {
        "nap": FORMAT,
        "class": type(plain).__name__,
        "plans": plans_of(plain),
        "model": plain.state_dict(),
        "projector": projector and {"options": projector.options, "state": projector.state_dict()},
        "optimizers": [{"state": o.state_dict(), "parameters": _held(o, names)} for o in optimizers],
        "extra": extra,
    }
    _check_plain({**extra, "optimizer": [part["state"]["param_groups"] for part in content["optimizers"]]})
    content[_CHECKSUM] = checksum(content)
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        torch.save(content, beside)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


_CONTENT: dict[str, type | tuple[type, ...]] = {  # of a file, and what each part is
    "class": str,
    "plans": dict,
    "model": Mapping,
    "projector": (dict, type(None)),
    "optimizers": list,
    "extra": dict,
}


@dataclass(frozen=True)
class Checkpoint:
    """What `load` read: the model has its weights already, `resume` sees to the optimizer."""

    model: nn.Module
    projector: Projector | None  # with the radii of the file; not attached yet
    extra: Mapping[str, Any] = field(default_factory=dict)
    optimizers: Sequence[Mapping[str, Any]] = ()  # as they were written

    def __repr__(self) -> str:
        """One line: the states of optimizers would fill the screen."""
        projector = "no projector" if self.projector is None else repr(self.projector)
        states = f"{len(self.optimizers)} optimizer state(s)"
        extra = f"extra: {', '.join(self.extra) or 'none'}"
        return f"Checkpoint of {type(self.model).__name__}: {projector}; {states}; {extra}"

    def resume(self, *optimizers: Any) -> Projector | None:
        """Load the state of these optimizers, built from the loaded model, and attach the projector."""
        inner = inner_optimizers(*optimizers)
        if len(inner) != len(self.optimizers):
            raise ValueError(
                f"the file holds {len(self.optimizers)} optimizer(s), and resume was handed "
                f"{len(inner)}; hand over as many as nap.save was, in the same order"
            )
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        for optimizer, saved in zip(inner, self.optimizers, strict=True):
            if (held := _held(optimizer, names)) != saved["parameters"]:
                raise ValueError(
                    f"this {type(optimizer).__name__} holds other parameters than the one in the file, "
                    f"by group {held} instead of {saved['parameters']}; build it in the same way, after "
                    "nap.load"
                )
        for optimizer, saved in zip(inner, self.optimizers, strict=True):
            optimizer.load_state_dict(saved["state"])
        return self.projector and self.projector.attach(*optimizers)


def load(path: str | os.PathLike[str], model: nn.Module, *, map_location: Any = "cpu") -> Checkpoint:
    """Put the norms of a file that `save` wrote into a plain `model`, and its weights; see `save`.

    `model` is made as it was before `nap.normalize_`; one that was converted in the same way will do, too.
    """
    content = _read(path, map_location)
    plain = unwrapped_model(model)
    rebuild_(plain, content["plans"])
    check_keys(plain, content["model"], f"the {content['class']} in {path}")
    try:
        plain.load_state_dict(content["model"])
        projector = None
        if (saved := content["projector"]) is not None:
            projector = Projector(plain, **saved["options"])
            projector.load_state_dict(saved["state"])
    except (RuntimeError, LookupError, TypeError, AttributeError) as error:  # shapes, options, axes
        reason = " ".join(str(error).split())
        raise ValueError(
            f"the {content['class']} in {path} does not fit this {type(plain).__name__} ({reason}); make the "
            "model with the same sizes as for the run that was saved, or load an older file"
        ) from error
    return Checkpoint(plain, projector, content["extra"], content["optimizers"])


def _read(path: str | os.PathLike[str], map_location: Any) -> dict[str, Any]:
    try:
        content = torch.load(path, map_location=map_location, weights_only=True)
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} is damaged, or holds Python objects, which nap.load never runs; it reads what nap.save "
            "wrote"
        ) from error
    except Exception as error:  # a damaged file fails in many ways
        raise ValueError(f"{path} is damaged: empty, cut off or overwritten; load an older file") from error
    if isinstance(content, dict) and content.get("nap") == FORMAT:
        for name, kinds in _CONTENT.items():
            if name not in content or not isinstance(content[name], kinds):
                raise ValueError(f"{path} is damaged: {name} is missing or changed; load an older file")
        saved = content.pop(_CHECKSUM, None)
        if saved is not None and saved != checksum(content):
            raise ValueError(
                f"{path} is damaged or was edited: its checksum is not that of its content; load an older "
                f"file, or delete its entry {_CHECKSUM!r} if it was edited on purpose"
            )
        return content
    if isinstance(content, dict) and isinstance(content.get("nap"), int):
        raise ValueError(f"{path} has format {content['nap']} and this nap reads {FORMAT}; update nap")
    state = isinstance(content, dict) and all(isinstance(key, str) for key in content)
    parts = {part for key in (content if state else ()) for part in key.split(".")}
    layers = "has layers of nap" if parts & {CHILD, GAIN, PRODUCTS} else "has no layers of nap"
    raise ValueError(
        f"{path} was not written by nap.save, and {layers}. Load a bare state dict yourself: after "
        "nap.normalize_(model, example) if it was taken from a converted model, before it if not"
    )


def unwrapped_model(model: nn.Module) -> nn.Module:
    """The model inside of torch.compile and DistributedDataParallel."""
    while True:
        inner = model._modules.get("_orig_mod")
        if inner is None and isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            inner = model.module
        if inner is None:
            return model
        model = inner


def plans_of(model: nn.Module) -> dict[str, str]:
    """The plans of step 1 that a model carries, as text, by the name of the part that was converted."""
    modules = model.named_modules()
    return {name: vars(m)[PLAN_ATTRIBUTE].to_json() for name, m in modules if PLAN_ATTRIBUTE in vars(m)}


def rebuild_(model: nn.Module, plans: Mapping[str, str]) -> None:
    """Apply these plans to a model that was made anew; parts that carry theirs are left as they are."""
    there = plans_of(model)
    for name in sorted(plans, key=lambda name: name.count("."), reverse=True):  # parts before the whole
        if name in there:
            continue
        try:
            part = model.get_submodule(name)
        except AttributeError as error:
            raise ValueError(
                f"the file has norms for {name}, and this {type(model).__name__} has no such part; "
                "make the model as it was made for the run that was saved"
            ) from error
        plan = Plan.from_json(plans[name])
        _give_zeros_(part, plan)
        normalize_(part, plan)


def _give_zeros_(model: nn.Module, plan: Plan) -> None:
    """Memory for biases that stay zero, on a meta device too: there `normalize_` asks for their values."""
    for placement in plan.placements:
        for path in placement.zero:
            owner, _, leaf = path.rpartition(".")
            module = model.get_submodule(placement.module).get_submodule(owner)
            bias = module.get_parameter(leaf)
            if bias.is_meta:
                module.register_parameter(leaf, nn.Parameter(torch.zeros_like(bias, device="cpu")))


def check_keys(model: nn.Module, state: Mapping[str, Any], of: str) -> None:
    """Refuse weights of another model, by name."""
    here, there = set(bare_names(model.state_dict()).values()), set(bare_names(state).values())
    lines = [f"{name}: in the file only" for name in sorted(there - here)]
    lines += [f"{name}: in the model only" for name in sorted(here - there)]
    if lines:
        raise ValueError(
            "\n  ".join(
                [
                    f"{of} is another model than this {type(model).__name__}; make it with the same code and "
                    "settings as for the run that was saved, and hand it over plain:",
                    *shortened(lines),
                ]
            )
        )


def _listed(optimizer: Any) -> list[Any]:
    many = optimizer if isinstance(optimizer, (list, tuple)) else [] if optimizer is None else [optimizer]
    return inner_optimizers(*many)


def _held(optimizer: Any, names: Mapping[int, str]) -> list[list[str]]:
    groups = optimizer.param_groups
    return [[names.get(id(p), "of another model") for p in group["params"]] for group in groups]


def _check_plain(extra: Mapping[str, Any]) -> None:
    """Refuse to write what `load` would refuse to read."""
    for name, value in extra.items():
        buffer = io.BytesIO()
        try:
            torch.save(value, buffer)
            buffer.seek(0)
            torch.load(buffer, weights_only=True)
        except Exception as error:
            raise ValueError(
                f"{name} holds a {type(value).__name__} that weights_only=True will not load; save numbers, "
                "strings, tensors, and lists and dicts of them, such as its state_dict()"
            ) from error
