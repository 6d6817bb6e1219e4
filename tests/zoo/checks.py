"""What must hold of any converted model, apart from where its norms are."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import nap

from .double import double_run
from .entry import Entry
from .oracle import awake, in_double

NOISE = 1e-11  # rounding, relative, in float64


def outputs(model: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors that a forward in float64 returns, in order."""
    with double_run():
        leaves = [leaf for leaf in tree_leaves(model(*args, **kwargs)) if isinstance(leaf, Tensor)]
    assert leaves, f"{type(model).__name__} returns no tensor, so nothing can be compared"
    return leaves


def gap(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest difference over the largest entry of its tensor; inf where shapes differ."""
    if [t.shape for t in ours] != [t.shape for t in theirs]:
        return float("inf")
    pairs = [
        (a.detach().double(), b.detach().double()) for a, b in zip(ours, theirs, strict=True) if a.numel()
    ]
    return max((((a - b).abs().nan_to_num() / _scale(a)).max().item() for a, b in pairs), default=0.0)


def _scale(tensor: Tensor) -> Tensor:
    finite = tensor[tensor.isfinite() & (tensor.abs() < 1e30)]
    return finite.abs().max().clamp_min(1e-30) if finite.numel() else tensor.new_ones(())


def invariance_errors(
    model: nn.Module, args: Any, kwargs: Mapping[str, Any], names: list[str]
) -> dict[str, float]:
    """How much the output of `model` changes when each named weight is halved and tripled."""
    model = awake(model)
    args, kwargs = in_double(args, dict(kwargs))
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        base = outputs(model, args, kwargs)
        errors = {}
        for name in names:
            kept = parameters[name].clone()
            errors[name] = 0.0
            for factor in (0.5, 3.0):
                parameters[name].copy_(kept * factor)
                errors[name] = max(errors[name], gap(base, outputs(model, args, kwargs)))
            parameters[name].copy_(kept)
    return errors


def after_conversion(
    entry: Entry, original: nn.Module, model: nn.Module, args: Any, kwargs: dict[str, Any]
) -> list[str]:
    """Every broken promise, in words; the empty list for a sound conversion."""
    problems = []
    if (again := nap.plan(model, args, kwargs, **entry.options)).placements != ():
        problems.append(f"planning again would place {len(again.placements)} more norms")
    args, kwargs = in_double(args, kwargs)
    original, model = awake(original), awake(model)
    with torch.no_grad():
        first, base = outputs(original, args, kwargs), outputs(model, args, kwargs)
        problems += _copies(original, model, base, args, kwargs)
    if [t.shape for t in base] != [t.shape for t in first]:
        problems.append("the outputs changed their shapes")
    if any(f.isfinite().all() and not b.isfinite().all() for b, f in zip(base, first, strict=False)):
        problems.append("the output is not finite")
    return problems + _leaks(entry, original, model, args, kwargs) + _gradients(model, args, kwargs)


def _gradients(model: nn.Module, args: Any, kwargs: Any) -> list[str]:
    floats = [t for t in outputs(model, args, kwargs) if t.requires_grad]
    if not floats:
        return []
    torch.stack([t[t.isfinite()].sum() for t in floats]).sum().backward()
    bad = [n for n, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
    return [f"gradients of {bad} are not finite"] if bad else []


def _copies(original: nn.Module, model: nn.Module, base: list[Tensor], args: Any, kwargs: Any) -> list[str]:
    shuffled = deepcopy(model)
    for parameter in shuffled.parameters():
        parameter.mul_(1.5).add_(0.25)
    shuffled.load_state_dict(model.state_dict())
    copies = {"deepcopy": deepcopy(model), "state_dict": shuffled}
    if _pickles(original):
        copies["pickle"] = pickle.loads(pickle.dumps(model))
    return [
        f"{how} changes the output"
        for how, copy in copies.items()
        if gap(base, outputs(copy, args, kwargs)) > NOISE
    ]


def _pickles(model: nn.Module) -> bool:
    """Whether the original can be pickled at all; modules with torch's parametrisations cannot."""
    try:
        pickle.dumps(model)
    except Exception:  # whatever a class raises that does not want to be pickled
        return False
    return True


def _leaks(entry: Entry, original: nn.Module, model: nn.Module, args: Any, kwargs: Any) -> list[str]:
    """Outputs that depend on another sample or a later token, where those of the original do not."""
    given, problems = (args, kwargs), []
    if entry.batched:
        changed = tree_map(_first_sample_twice, given)
        was, now = (_still(net, given, changed, 0) for net in (original, model))
        problems += _newly_moved(was, now, "another sample")
    if entry.causal is not None:
        changed = _last_token_changed(args, kwargs, entry.causal)
        was, now = (_still(net, given, changed, entry.causal)[:1] for net in (original, model))
        problems += _newly_moved(was, now, "a later token")
    return problems


def _first_sample_twice(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or leaf.ndim == 0 or leaf.shape[0] != 2:
        return leaf
    return leaf[:1].expand_as(leaf).clone()


def _last_token_changed(args: Any, kwargs: dict[str, Any], axis: int) -> tuple[Any, dict[str, Any]]:
    """The first input with its first token also in the last place: still a valid input."""
    key = None if args else next(iter(kwargs))
    first = args[0] if key is None else kwargs[key]
    later = first.clone()
    later.select(axis, -1).copy_(first.select(axis, 0))
    return ((later, *args[1:]), kwargs) if key is None else (args, {**kwargs, key: later})


def _newly_moved(was: list[Tensor], now: list[Tensor], on: str) -> list[str]:
    assert was, f"no output could stay when {on} changes: the entry is mislabelled"
    assert all(mask.all() for mask in was), (
        f"outputs depend on {on} before conversion: the entry is mislabelled"
    )
    leaks = sum(int((~mask).sum()) for mask in now)
    return [f"{leaks} output entries now depend on {on}"] if leaks else []


def _still(model: nn.Module, given: Any, changed: Any, axis: int) -> list[Tensor]:
    """For each output, which entries before the last index of `axis` stay when the last input changes."""
    with torch.no_grad():
        pairs = zip(outputs(model, *given), outputs(model, *changed), strict=True)
        early = [(_early(b, axis), _early(a, axis)) for b, a in pairs if b.ndim > axis and b.shape[axis] > 1]
    return [(b - a).abs().nan_to_num() <= NOISE * _scale(b) for b, a in early]


def _early(output: Tensor, axis: int) -> Tensor:
    return output.narrow(axis, 0, output.shape[axis] - 1).double()
