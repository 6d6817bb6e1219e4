"""Whether inserted norms run in train mode, too: a module may use its weights in another way there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nap.conversion.trial import detached_copy, failure, fixed_randomness, wake_
from nap.norms.norm import CHILD
from nap.tracing.values import held_tensors


def idle_norms(model: nn.Module, args: Any, kwargs: Mapping[str, Any], untried: list[str]) -> Iterator[str]:
    """Norms of layers that do not run in train mode though the weights of their layers are used there.

    So LoRA layers do that merge their weights in eval mode and call another function in train mode.
    """
    twin = wake_(detached_copy(model)).train()
    norms = {name: norm for name, norm in twin.named_modules() if name.rpartition(".")[2] == CHILD}
    ran: set[str] = set()
    for name, norm in norms.items():
        norm.register_forward_pre_hook(lambda *_, name=name: ran.add(name))
    try:
        with torch.enable_grad(), fixed_randomness(twin):
            loss = _sum(held_tensors(twin(*args, **kwargs)))
    except Exception as reason:  # of any kind: it is the caller's model that raises
        untried.append(failure("in train mode", reason))
        return
    if loss is None:
        return
    for name in norms.keys() - ran:
        layer = name.removesuffix(CHILD).removesuffix(".")
        weights = [p for p in twin.get_submodule(layer).parameters() if p.ndim > 1 and p.requires_grad]
        gradients = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
        if any(gradient is not None and gradient.any() for gradient in gradients):
            yield (
                f"{name} does not run in train mode, where the weights of its layer are used without a call "
                f"of it; leave the layer as it is, with exclude=[{layer!r}]"
            )


def _sum(tensors: Any) -> Tensor | None:
    floating = [t for t in tensors if t.requires_grad and t.is_floating_point()]
    return torch.stack([t[t.isfinite()].sum().double() for t in floating]).sum() if floating else None
