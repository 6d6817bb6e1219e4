"""Leaks: do the inserted norms mix what the model keeps apart, samples of a batch or positions of a sequence?

Each norm is tried by itself, by the axes that it says it normalises; and the whole model with its norms
against the same without them, which believes no norm. Orders that a model keeps (nap.conversion.orders) are
tried, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from nap.conversion.trial import failure, first_tensor
from nap.norms.norm import CHILD, Norm

Run = Callable[[Any, Any], list[Tensor]]  # inputs by position and by name → outputs
AXES = {0: "samples", 1: "positions"}
TRIES = 9  # inputs that differ in one sample or position
NOISE = 10.0  # times the largest entry
SAME = 1e-12  # change, relative to the largest entry, that is rounding
MOST = 0.5  # of the entries that stay without norms; choices such as a top-k over the batch move fewer


def leaks_of_norms(model: nn.Module, run: Callable[[], Any]) -> dict[str, list[str]]:
    """What each inserted norm that `run` calls mixes; an empty list where it is sound."""
    calls: dict[str, tuple[Norm, tuple[Any, ...], dict[str, Any]]] = {}
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, Norm):

            def keep(norm: nn.Module, inputs: Any, named: Any, name: str = name) -> None:
                assert isinstance(norm, Norm)
                first = tuple(_of_first(x) if isinstance(x, Tensor) else x for x in inputs)
                calls[name] = norm, first, named

            handles.append(module.register_forward_pre_hook(keep, with_kwargs=True))
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return {name: list(_leak(*call)) for name, call in calls.items()}


def _of_first(tensor: Tensor) -> Tensor:
    """Inside of `vmap`: the first of what it maps over, as a tensor that lives on."""
    functorch = torch._C._functorch
    while functorch.is_batchedtensor(tensor):
        axis = functorch.maybe_get_bdim(tensor)
        tensor = functorch.get_unwrapped(tensor).select(axis, 0)
    return tensor


def _leak(norm: Norm, inputs: tuple[Any, ...], named: dict[str, Any]) -> Iterator[str]:
    """Moves one sample, and one position, of what the norm was given: what else moves?"""
    y, *weights = inputs
    y = y.detach()
    features = y.ndim - 1 - (0 if norm.layout == "features" else norm.spatial)
    apart = [d for d in range(y.ndim) if d != features and (norm.layout != "sample" or d < features)]
    with torch.no_grad():
        before = norm(y, *weights, **named)
        for axis in apart:
            if y.shape[axis] < 2:
                continue
            moved = y.clone()
            one = moved.select(axis, 0)
            one.mul_(-2.0).add_(
                torch.linspace(0, 1, one.numel(), dtype=y.dtype, device=y.device).view_as(one)
            )
            rest = (axis, 1, y.shape[axis] - 1)
            after = norm(moved, *weights, **named)
            if not torch.equal(before.narrow(*rest).nan_to_num(), after.narrow(*rest).nan_to_num()):
                yield f"mixes what lies along axis {axis} of its input"


def leaks_of_model(
    model: nn.Module, run: Run, args: Any, kwargs: Mapping[str, Any], untried: list[str]
) -> Iterator[str]:
    """Axes along which outputs depend on another input with the norms, but not without them.

    One sample, or position, is replaced: once with norms, and often without, so that what follows the data
    (a code, the tokens of a top-k) is seen to depend on it without norms, too. Positions are left out where
    some norm spans them on purpose (over channels and space of an image, say). A model that refuses such
    inputs, or fails without its norms (a distribution given NaN), cannot be tried; `untried` then gets why.
    """
    norms = {name: module for name, module in model.named_modules() if isinstance(module, Norm)}
    first = first_tensor((args, kwargs))
    spans_positions = any(norm.layout == "sample" for norm in norms.values())
    for axis, what in AXES.items():
        if first is None or first.ndim <= axis or first.shape[axis] < 2 or (axis and spans_positions):
            continue
        size = first.shape[axis]
        for place in {size - 1, size // 2}:
            try:
                names = _mixing(norms, run, (args, dict(kwargs)), (axis, size, place))
            except Exception as reason:  # of any kind: it is the caller's model that raises
                untried.append(failure(f"{what} (axis {axis})", reason))
                break
            if names:
                yield (
                    f"{', '.join(names)}: mixes {what} (axis {axis}) that the model keeps apart; "
                    f"{way_out(names)}"
                )
                break


def _mixing(norms: Mapping[str, Norm], run: Run, inputs: Any, along: tuple[int, int, int]) -> list[str]:
    """The norms that alone make outputs depend on what is replaced; all of them if only together."""
    given = [inputs, *(tree_map(partial(replaced, *along, draw), inputs) for draw in range(TRIES))]
    with without(norms.values()):
        apart = _unmoved([run(*one) for one in given], *along)

    def mixes() -> bool:
        pairs = zip(apart, _unmoved([run(*one) for one in given[:2]], *along), strict=False)
        return any(a.shape == b.shape and bool((a & ~b).sum() > MOST * a.sum()) for a, b in pairs)

    return culprits(norms, mixes)


def way_out(names: Sequence[str]) -> str:
    """How to convert the model without these norms."""
    layers = [name.removesuffix(f".{CHILD}") for name in names if name.endswith(f".{CHILD}")]
    if len(layers) == len(names):
        return f"leave the layers in front as they are, with exclude={layers!r}"
    return "leave what is in front as it is, with exclude=[...] for layers and allow=[...] for weights"


def culprits(norms: Mapping[str, Norm], mixes: Callable[[], bool]) -> list[str]:
    """The norms that mix by themselves; all of them if they do so only together; none if they do not."""
    if not mixes():
        return []
    alone = []
    for name in norms:
        with without([norm for other, norm in norms.items() if other != name]):
            alone += [name] if mixes() else []
    return alone or list(norms)


def replaced(axis: int, size: int, place: int, draw: int, leaf: Any) -> Any:
    """The input with one sample or position replaced, by another one (tokens; draw 0) or by large noise."""
    if not isinstance(leaf, Tensor) or leaf.ndim <= axis or leaf.shape[axis] != size:
        return leaf
    changed = leaf.detach().clone()
    other = leaf.detach().select(axis, (place + 1 + draw % (size - 1)) % size)
    if draw and leaf.is_floating_point():
        noise = torch.randn(other.shape, generator=torch.Generator().manual_seed(draw), dtype=torch.float64)
        other = NOISE * other.abs().max() * noise.to(other)
    changed.select(axis, place).copy_(other)
    return changed


def _unmoved(runs: Sequence[list[Tensor]], axis: int, size: int, place: int) -> list[Tensor]:
    """For each output along the axis, which finite entries at other places are the same in all runs."""
    masks = []
    for first, *others in zip(*runs, strict=False):
        along = first.ndim > axis and first.shape[axis] == size and first.numel() > 0
        if first.is_floating_point() and along and all(first.shape == other.shape for other in others):
            rest = torch.tensor([i for i in range(size) if i != place], device=first.device)
            kept, *changed = (t.index_select(axis, rest) for t in (first, *others))
            rounding = SAME * kept.abs().nan_to_num(posinf=0).max()
            masks.append(torch.stack([(kept - t).abs() <= rounding for t in changed]).all(0))
    return masks


@contextmanager
def without(norms: Iterable[Norm]) -> Iterator[None]:
    """Each norm returns what it is given."""
    handles = [norm.register_forward_hook(lambda _, inputs, __: inputs[0]) for norm in norms]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
