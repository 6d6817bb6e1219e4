"""Which norms that step 1 put in are computed together with the BatchNorm after them, and making it so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nap.conversion.trial import detached_copy, examples_of, fixed_randomness
from nap.norms.joined import LINK, JoinedBatchNorm2d, Link
from nap.norms.norm import CHILD, Norm


def join_batch_norms_(model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Computes norms that `normalize_` put in front of a BatchNorm together with it.

    The model's function stays as it is but for rounding. Under `torch.compile` a converted ResNet needs fewer
    passes over its images; without it nothing changes. `args` are example inputs, as for `normalize_`.

    Returns the names of the layers whose norms were joined, each with that of its BatchNorm: those that are
    called once, one right after the other.

    >>> import nap
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 3))
    >>> applied = nap.normalize_(net, torch.randn(2, 3, 8, 8))
    >>> join_batch_norms_(net, torch.randn(2, 3, 8, 8))
    {'0': '1'}
    """
    pairs = _neighbours(model, args, kwargs)
    for layer, batch_norm in pairs.items():
        link = Link()
        model.get_submodule(layer).__dict__[LINK] = link
        joined = model.get_submodule(batch_norm)
        joined.__dict__[LINK] = link
        joined.__class__ = JoinedBatchNorm2d
    return pairs


def _neighbours(model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None) -> dict[str, str]:
    """Layers with a norm over whole images → the BatchNorm that its result enters, each called once."""
    twin = detached_copy(model)
    names = {module: name for name, module in twin.named_modules()}
    calls: Counter[nn.Module] = Counter()
    results: list[tuple[Tensor, nn.Module]] = []
    pairs: list[tuple[nn.Module, nn.Module]] = []

    def note(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        calls[module] += 1
        results.append((output, module))

    def look(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        calls[module] += 1
        pairs.extend((layer, module) for result, layer in results if result is inputs[0])

    for module in list(names):
        norm = getattr(module, CHILD, None)
        if isinstance(norm, Norm) and norm.layout == "sample" and norm.spatial == 2 and norm.gain == 1.0:
            module.register_forward_hook(note)
        elif type(module) is nn.BatchNorm2d:
            module.register_forward_pre_hook(look)
    for inputs, named in examples_of(args, kwargs)[:1]:
        with torch.no_grad(), fixed_randomness(twin):
            twin(*inputs, **named)
    once = [(a, b) for a, b in pairs if calls[a] == calls[b] == 1]
    taken = Counter(a for a, _ in once)
    return {names[a]: names[b] for a, b in once if taken[a] == 1}
