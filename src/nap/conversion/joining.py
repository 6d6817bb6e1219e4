"""Which norms that step 1 put in are computed together with the BatchNorm after them, and making it so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nap.conversion.trial import detached_copy, examples_of, explained, fixed_randomness
from nap.norms.joined import TELLS, JoinedBatchNorm2d
from nap.norms.norm import CHILD, Norm
from nap.weights import PLAN_ATTRIBUTE


def join_batch_norms_(model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Computes norms that `normalize_` put in front of a BatchNorm together with it.

    The model's function stays as it is but for rounding. Under `torch.compile` a converted ResNet needs fewer
    passes over its images; without it nothing changes. `args` and `kwargs` are example inputs, as for
    `normalize_`; a copy of the model is called with them, in eval and in train mode.

    Returns the names of the layers whose norms were joined, each with that of its BatchNorm: those that are
    called once, one right after the other. Change nothing between the two afterwards; a hook on the
    BatchNorm that alters its input in place would be passed by.

    >>> import nap
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 3))
    >>> applied = nap.normalize_(net, torch.randn(2, 3, 8, 8))
    >>> join_batch_norms_(net, torch.randn(2, 3, 8, 8))
    {'0': '1'}
    """
    if not hasattr(model, PLAN_ATTRIBUTE):
        raise ValueError(
            f"this {type(model).__name__} has no norms of step 1; call nap.normalize_ on it first"
        )
    found = [
        _neighbours(detached_copy(model).train(mode), *example)
        for example in examples_of(args, kwargs)
        for mode in (False, True)
    ]
    pairs = {layer: norm for layer, norm in found[0].items() if all(one.get(layer) == norm for one in found)}
    for layer, batch_norm in pairs.items():
        model.get_submodule(layer).__dict__[TELLS] = True
        model.get_submodule(batch_norm).__class__ = JoinedBatchNorm2d
    return pairs


def _neighbours(twin: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, str]:
    """Layers with a norm over whole images → the BatchNorm that its result enters, each called once."""
    names = {module: name for name, module in twin.named_modules()}
    calls: Counter[nn.Module] = Counter()
    results: list[tuple[Tensor, int, nn.Module]] = []
    pairs: list[tuple[nn.Module, nn.Module]] = []

    def note(module: nn.Module, inputs: Any, output: Tensor) -> None:
        calls[module] += 1
        results.append((output, output._version, module))

    def look(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        calls[module] += 1
        entered = inputs[0] if inputs else named["input"]
        for result, version, layer in results:
            if result is entered and version == entered._version:  # else it was changed in place since
                pairs.append((layer, module))

    for module in names:
        norm = getattr(module, CHILD, None)
        if isinstance(norm, Norm) and norm.layout == "sample" and norm.spatial == 2 and norm.gain == 1.0:
            module.register_forward_hook(note)
        elif type(module) is nn.BatchNorm2d:
            module.register_forward_pre_hook(look, with_kwargs=True)
    with torch.no_grad(), fixed_randomness(twin), explained(twin):
        twin(*args, **kwargs)
    once = [(a, b) for a, b in pairs if calls[a] == calls[b] == 1]
    taken = Counter(a for a, _ in once)
    return {names[a]: names[b] for a, b in once if taken[a] == 1}
