"""Which layers hand the result of their norm straight to another module: what could be computed together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nap.conversion.trial import detached_copy, examples_of, explained, fixed_randomness
from nap.norms.norm import CHILD, HOOK, Norm
from nap.weights import PLAN_ATTRIBUTE


def neighbours(
    model: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any] | None,
    *,
    gives: Callable[[Norm], bool],
    takes: Callable[[nn.Module], bool],
    alone: bool = False,
) -> dict[str, str]:
    """Layers whose norm `gives` → the module that `takes` what it gave, unchanged; each is called once.

    So it must be for every example, in eval and in train mode. `alone`: and nothing else uses what it gave.
    A norm on the input of such a module counts, too: that module → itself. Where hooks of others could
    change what is given, nothing is found.
    """
    if not hasattr(model, PLAN_ATTRIBUTE):
        raise ValueError(
            f"this {type(model).__name__} has no norms of step 1; call nap.normalize_ on it first"
        )
    with torch.inference_mode(False):  # whose tensors do not tell when they are changed
        found = [
            _pairs(detached_copy(model).train(mode), *example, gives, takes, alone)
            for example in examples_of(args, kwargs)
            for mode in (False, True)
        ]
    pairs = {
        layer: taker for layer, taker in found[0].items() if all(one.get(layer) == taker for one in found)
    }
    return pairs | {
        name: name
        for name, module in model.named_modules()
        if takes(module) and _is_last(HOOK, module._forward_pre_hooks) and _carries(module, gives)
    }


def _carries(module: nn.Module, gives: Callable[[Norm], bool]) -> bool:
    norm = getattr(module, CHILD, None)
    return isinstance(norm, Norm) and gives(norm)


def _is_last(hook: Any, hooks: Mapping[Any, Any]) -> bool:
    """Whether this is the last of the hooks: none after it can change what it gave."""
    return next(reversed([*hooks]), None) == hook


def _pairs(
    twin: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    gives: Callable[[Norm], bool],
    takes: Callable[[nn.Module], bool],
    alone: bool,
) -> dict[str, str]:
    names = {module: name for name, module in twin.named_modules()}
    calls: Counter[nn.Module] = Counter()
    results: list[tuple[Tensor, int, nn.Module]] = []
    uses = _Uses()
    pairs: list[tuple[nn.Module, nn.Module]] = []

    def note(module: nn.Module, inputs: Any, output: Tensor) -> None:
        calls[module] += 1
        results.append((output, output._version, module))
        uses.counts[id(output)] = 0

    def look(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        calls[module] += 1
        entered = inputs[0] if inputs else named["input"]
        for result, version, layer in results:
            if result is entered and version == entered._version:  # else it was changed in place since
                pairs.append((layer, module))

    for module in names:
        if _carries(module, gives) and _is_last(HOOK, module._forward_hooks):
            module.register_forward_hook(note)
        elif takes(module) and not module._forward_pre_hooks:
            module.register_forward_pre_hook(look, with_kwargs=True)
    watching = uses if alone else nullcontext()
    with torch.no_grad(), fixed_randomness(twin), explained(twin), watching:
        for left in tree_leaves(twin(*args, **kwargs)):
            uses.note(left)
    once = [(a, b) for a, b in pairs if calls[a] == calls[b] == 1]
    taken = Counter(a for a, _ in once)
    shared = {layer for result, _, layer in results if uses.counts[id(result)] > 1}
    return {names[a]: names[b] for a, b in once if taken[a] == 1 and not (alone and a in shared)}


class _Uses(TorchDispatchMode):
    """Counts by how many operations each of some tensors is used; that it is returned counts, too."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[int, int] = {}  # by identity; the tensors are kept alive elsewhere

    def note(self, x: Any) -> None:
        if id(x) in self.counts:
            self.counts[id(x)] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for x in tree_leaves((args, kwargs)):
            self.note(x)
        return func(*args, **(kwargs or {}))
