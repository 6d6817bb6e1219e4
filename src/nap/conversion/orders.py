"""Orders: do the inserted norms let a result depend on what the model hides from it?

Autoregressive networks hide what comes later: a causal convolution the next steps, PixelCNN the next rows,
and the masks of MADE the other features. Where no output shows it, such as the density of a flow, the part
of the model that holds the masks is tried by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from nap.conversion.leaks import SAME, Run, culprits, replaced, way_out, without
from nap.conversion.trial import failure, first_tensor
from nap.norms.norm import Norm

TRIES = 4  # inputs that differ in one place
FEW = 0.2  # of the entries that stay without norms
PLACES = 8  # features that are tried at most


def broken_orders(
    model: nn.Module, run: Run, args: Any, kwargs: Mapping[str, Any], untried: list[str]
) -> Iterator[str]:
    """Axes along which, without the norms, only earlier inputs count (or only later ones)."""
    yield from _orders(norms_of(model), run, args, kwargs, untried)


def _orders(
    norms: Mapping[str, Norm], run: Run, args: Any, kwargs: Mapping[str, Any], untried: list[str]
) -> Iterator[str]:
    first = first_tensor((args, kwargs))
    for axis in range(1, first.ndim if first is not None and norms else 0):
        assert first is not None
        if (size := first.shape[axis]) < 4:
            continue
        try:
            names = _looking_ahead(norms, run, (args, dict(kwargs)), axis, size)
        except Exception as reason:  # of any kind: it is the caller's model that raises
            untried.append(failure(f"order along axis {axis}", reason))
            continue
        if names:
            yield (
                f"{', '.join(names)}: mixes what comes before with what comes after along axis {axis}, which "
                f"the model keeps apart; convert it with over='position', or {way_out(names)}"
            )


def broken_masks(
    model: nn.Module,
    run: Callable[[nn.Module, Any, Any], list[Tensor]],
    args: Any,
    kwargs: Mapping[str, Any],
    untried: list[str],
) -> Iterator[str]:
    """The same for each part with masked layers, and features that its masks keep apart."""
    calls: dict[str, tuple[Any, Any]] = {}
    handles = []
    for name, part in masked_parts(model).items():

        def keep(_: nn.Module, inputs: Any, named: Any, name: str = name) -> None:
            calls.setdefault(name, (inputs, named))

        handles.append(part.register_forward_pre_hook(keep, with_kwargs=True))
    try:
        run(model, args, kwargs) if handles else None
    finally:
        for handle in handles:
            handle.remove()
    for name, (inputs, named) in calls.items():
        part = model.get_submodule(name)
        norms = {f"{name}.{inner}".lstrip("."): norm for inner, norm in norms_of(part).items()}
        yield from _mixed_features(part, norms, partial(run, part), (inputs, named), untried)
        if name:  # the whole model has been tried
            yield from _orders(norms, partial(run, part), inputs, named, untried)


def masked_parts(model: nn.Module) -> dict[str, nn.Module]:
    """The innermost modules with two masked weights or more, and norms on them."""
    found: dict[str, nn.Module] = {}
    for name, module in reversed(list(model.named_modules())):
        inside = any(other.startswith(f"{name}.".lstrip(".")) for other in found)
        if not inside and norms_of(module) and len(_masks(module)) > 1:
            found[name] = module
    return found


def norms_of(module: nn.Module) -> dict[str, Norm]:
    return {name: norm for name, norm in module.named_modules() if isinstance(norm, Norm)}


def _masks(module: nn.Module) -> list[Tensor]:
    """Buffers of zeros and ones that have the shape of a weight next to or below them."""
    masks = []
    for owner in module.modules():
        shapes = {parameter.shape for parameter in owner.parameters() if parameter.ndim > 1}
        for name, buffer in owner._buffers.items():
            pruned = name.endswith("_mask") and f"{name.removesuffix('mask')}orig" in owner._parameters
            if buffer is not None and buffer.shape in shapes and not pruned and _is_mask(buffer):
                masks.append(buffer)
    return masks


def _is_mask(buffer: Tensor) -> bool:
    zeros, ones = buffer == 0, buffer == 1
    return bool(zeros.any() and ones.any() and (zeros | ones).all())


def _looking_ahead(norms: Mapping[str, Norm], run: Run, inputs: Any, axis: int, size: int) -> list[str]:
    """The norms through which outputs on one side of a place depend on it, if they do not without norms.

    Two neighbouring places are tried: between two patches an order shows at one of them, too.
    """

    def moved(place: int) -> list[tuple[float, float]]:
        """The share of entries before and after the place that depend on it, for each output."""
        draws = (partial(replaced, axis, size, place, draw) for draw in range(TRIES))
        still = _still([run(*one) for one in (inputs, *(tree_map(draw, inputs) for draw in draws))])
        return [
            (_share(~mask.narrow(axis, 0, place)), _share(~mask.narrow(axis, place + 1, size - place - 1)))
            for mask in still
            if mask.ndim > axis and mask.shape[axis] == size
        ]

    middle = size // 2
    with without(norms.values()):
        here, neighbour = moved(middle), moved(middle - 1)
    if len(here) != len(neighbour):
        return []
    forward = [i for i in range(len(here)) if here[i][0] == neighbour[i][0] == 0 < here[i][1]]
    backward = [i for i in range(len(here)) if here[i][1] == neighbour[i][1] == 0 < here[i][0]]
    if not forward and not backward:
        return []

    def mixes() -> bool:
        now = moved(middle)
        return any(now[i][0] > FEW for i in forward) or any(now[i][1] > FEW for i in backward)

    return culprits(norms, mixes)


def _mixed_features(
    module: nn.Module, norms: Mapping[str, Norm], run: Run, inputs: Any, untried: list[str]
) -> Iterator[str]:
    """Norms over features that masks of matrices keep apart."""
    first = first_tensor(inputs)
    if first is None or first.ndim < 2 or all(mask.ndim > 2 for mask in _masks(module)):
        return
    axis = first.ndim - 1
    size = first.shape[axis]
    blamed: dict[str, None] = {}
    for place in range(0, size, -(-size // PLACES)):
        given = [inputs, *(tree_map(partial(replaced, axis, size, place, d), inputs) for d in range(TRIES))]
        try:
            with without(norms.values()):
                apart = _still([run(*one) for one in given])

            def mixes(given: Any = given, apart: Any = apart) -> bool:
                pairs = zip(apart, _still([run(*one) for one in given]), strict=False)
                return any(a.shape == b.shape and bool((a & ~b).sum() > FEW * a.sum()) for a, b in pairs)

            blamed |= dict.fromkeys(culprits(norms, mixes))
        except Exception as reason:  # of any kind: it is the caller's model that raises
            untried.append(failure("features that masks keep apart", reason))
            return
    if blamed:
        yield f"{', '.join(blamed)}: mixes features that masks keep apart; {way_out(list(blamed))}"


def _still(runs: list[list[Tensor]]) -> list[Tensor]:
    """For each floating output, which entries are the same in all runs."""
    masks = []
    for first, *others in zip(*runs, strict=False):
        if first.is_floating_point() and first.numel() and all(t.shape == first.shape for t in others):
            rounding = SAME * first.abs().nan_to_num(posinf=0).max()
            masks.append(torch.stack([~((first - t).abs() > rounding) for t in others]).all(0))
    return masks


def _share(mask: Tensor) -> float:
    return float(mask.double().mean()) if mask.numel() else 0.0
