"""Which weights need a norm, found by intervention.

Multiply one weight by 10⁵ and by 10⁷. If what some hidden nonlinearity receives grows along, nothing
between the two normalises the weight, so its norm decides how saturated the unit is: it needs a norm.
(The factors are large so that the eps of a norm, and a residual sum in which the weight has a small
share, are saturated at the first of them; float64 has room for more.)

Left alone, by the library's stated policy: an output nonlinearity (no weight after it), softmaxes fed
by a linear layer (routers, attention pooling) and weights that make attention logits as such (mixers of
heads, learned keys of segments).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .recording import RECTIFYING, SOFTMAX, Call, Recording, record

SMALL, LARGE = 1e5, 1e7
GROWS = (LARGE / SMALL) ** 0.5  # between bounded (1) and proportional (100)
FAR = 30  # a bounded input moves by a few times its size; a share of 3e-6 in it, scaled, moves it further
MASK = 1e30  # attention masks add numbers beyond this

Key = tuple[str, str]


@dataclass(frozen=True)
class Labels:
    """What the oracle found: weight name → where its scale arrives."""

    needs: Mapping[str, frozenset[Key]]  # hidden nonlinearities that the weight's scale reaches
    left_alone: Mapping[str, str]  # weights whose scale reaches only what policy leaves alone, and what
    fine: frozenset[str]  # weights that act on data and whose scale reaches no nonlinearity
    calls: frozenset[Key]  # every nonlinearity that ran


def label(
    model: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any],
    *,
    skip: frozenset[str] = frozenset(),
    batch_statistics: bool = False,
) -> Labels:
    """The weights of `model` that need a norm, and those that do not.

    `batch_statistics` counts BatchNorm as the norm that it is while training; in eval mode it is none.


    >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> found = label(net, (torch.randn(2, 3),), {})
    >>> dict(found.needs), set(found.fine)
    ({'0.weight': frozenset({('1', 'relu')})}, {'2.weight'})
    """
    model = awake(model)
    args, kwargs = in_double(args, dict(kwargs))
    if batch_statistics:
        for module in model.modules():
            module.train(isinstance(module, nn.modules.batchnorm._BatchNorm))
    base = record(model, args, kwargs, tracing=True)
    needs: dict[str, frozenset[Key]] = {}
    left_alone: dict[str, str] = {}
    weights = {
        n: p for n, p in model.named_parameters() if p.ndim >= 2 and n in base.acting and n not in skip
    }
    for name, weight in weights.items():
        grown = _grown(model, weight, base, args, kwargs)
        verdicts = {key: _excuse(name, calls) for key, calls in grown.items()}
        one = weight.ndim in (2, 3) and len(weight) == 1 and "parametrizations." not in name
        if one:  # a norm of it would be a constant
            verdicts = dict.fromkeys(verdicts, "one feature")
        hit = frozenset(key for key, excuse in verdicts.items() if excuse is None)
        if hit:
            needs[name] = hit
        elif verdicts:
            left_alone[name] = "; ".join(sorted({str(excuse) for excuse in verdicts.values()}))
    fine = frozenset(weights.keys() - needs.keys() - left_alone.keys())
    return Labels(needs, left_alone, fine, frozenset(call.key for call in base.calls))


def awake(model: nn.Module) -> nn.Module:
    """A float64 copy without zeros that hide dependencies: gains at zero, layers initialised at zero."""
    model = deepcopy(model)
    model._apply(lambda t: t.double() if t.is_floating_point() else t.cdouble() if t.is_complex() else t)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and (parameter.ndim < 2 or not parameter.any()):
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.add_(noise.to(parameter.device), alpha=0.1)
    return model


def in_double(*values: Any) -> Any:
    """The same arguments with float tensors in float64."""
    return torch.utils._pytree.tree_map(
        lambda leaf: leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf, values
    )


def _grown(
    model: nn.Module, weight: Tensor, base: Recording, args: Any, kwargs: Mapping[str, Any]
) -> dict[Key, list[Call]]:
    """The nonlinearities whose input follows the scale of `weight`, as they were called before scaling."""
    large = _scaled(model, weight, LARGE, args, kwargs)
    before, after = _by_key(base), _by_key(large)
    moved = {key for key in before if _distance(before[key], after[key]) > FAR * _size(before[key])}
    if not moved:
        return {}
    middle = _by_key(_scaled(model, weight, SMALL, args, kwargs))
    grown: dict[Key, list[Call]] = {}
    for key in moved:
        far, near = _far(before[key], after[key]), _far(before[key], middle[key])
        pairs = zip(before[key], far, near, strict=True)
        calls = [call for call, a, b in pairs if a > 0 and a >= GROWS * b]
        if calls and not _idle(before[key] + after[key]):
            grown[key] = calls
    return grown


def _idle(calls: list[Call]) -> bool:
    """Clamps that returned what they got, before and after scaling: guards against division by zero."""
    return all(call.identity and call.key[1].startswith("clamp") for call in calls)


def _scaled(model: nn.Module, weight: Tensor, by: float, args: Any, kwargs: Mapping[str, Any]) -> Recording:
    original = weight.detach().clone()
    with torch.no_grad():
        weight.mul_(by)
    try:
        return record(model, args, kwargs)
    finally:
        with torch.no_grad():
            weight.copy_(original)


def _by_key(recording: Recording) -> dict[Key, list[Call]]:
    groups: dict[Key, list[Call]] = defaultdict(list)
    for call in recording.calls:
        groups[call.key].append(call)
    return groups


def _far(before: list[Call], after: list[Call]) -> list[float]:
    """How far each call's input moved; by its size alone where routing changed which inputs there are."""
    if [call.input.shape for call in before] == [call.input.shape for call in after]:
        return [_moved(b.input, a.input) for b, a in zip(before, after, strict=True)]
    return [max((_magnitude(call.input) for call in after), default=0.0)] * len(before)


def _distance(before: list[Call], after: list[Call]) -> float:
    return max(_far(before, after), default=0.0)


def _size(calls: list[Call]) -> float:
    return max((_magnitude(call.input) for call in calls), default=0.0)


def _moved(before: Tensor, after: Tensor) -> float:
    open_ = before.isfinite() & (before.abs() < MASK)
    return _magnitude((after - before)[open_], overflow=torch.inf)


def _magnitude(tensor: Tensor, overflow: float = 0.0) -> float:
    """The largest entry that is no mask; what overflowed counts as `overflow`."""
    if tensor.numel() == 0:
        return 0.0
    size = tensor.abs().double()
    return torch.where(size < MASK, size, overflow).max().item()


def _excuse(weight: str, calls: list[Call]) -> str | None:
    """Why these nonlinearities may see the weight's scale, or None if none of the reasons holds."""
    excuses = [_excuse_call(weight, call) for call in calls]
    return None if None in excuses else "; ".join(sorted({str(excuse) for excuse in excuses}))


def _excuse_call(weight: str, call: Call) -> str | None:
    if not call.trace.data:
        return "computed from no data"
    if not call.hidden and call.key[1] not in RECTIFYING:
        return "output"
    if call.key[1] in SOFTMAX and not call.trace.product:
        return "softmax of a linear layer"
    if call.key[1] in SOFTMAX and weight in call.trace.made_by:
        return "mixes attention logits"
    return None
