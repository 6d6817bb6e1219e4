"""The watch for losses and gradients that are not finite, kept on the device: no step waits for it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Guard:
    """Remembers at which step each member of a population first had a loss or gradient that is not finite.

    `broken` is 0 until then and 1 ever after. It is what a fused optimizer calls `found_inf`: where it
    is not 0, the optimizer skips its step, that of all members and of all later calls.
    """

    def __init__(self, members: int, device: torch.device):
        self.broken = torch.zeros((), dtype=torch.float32, device=device)  # as fused optimizers want it
        self._bad_at = torch.full((members,), -1, dtype=torch.int64, device=device)
        self.tensors = [self.broken, self._bad_at]

    def note_(self, losses: Tensor, gradient_norms: Tensor, step: Tensor) -> None:
        """See what a step gives, before its update."""
        broken, bad_at = guarded(self.broken, self._bad_at, losses, gradient_norms, step)
        self.broken.copy_(broken)
        self._bad_at.copy_(bad_at)

    def reset_(self) -> None:
        """As if nothing had been seen."""
        self.broken.zero_()
        self._bad_at.fill_(-1)

    def first(self) -> tuple[int, int]:
        """The member that broke first, and its step."""
        step, member = min((at, k) for k, at in enumerate(self._bad_at.tolist()) if at >= 0)
        return member, step


def guarded(
    broken: Tensor, bad_at: Tensor, losses: Tensor, gradient_norms: Tensor, step: Tensor
) -> tuple[Tensor, Tensor]:
    """What the tensors of a guard are after a step."""
    bad = ~(losses.isfinite() & gradient_norms.isfinite())
    found = torch.maximum(broken, bad.any().to(broken.dtype))
    return found, torch.where(bad & (bad_at < 0), step, bad_at)


def culprit(loss: Tensor, gradients: Mapping[str, Tensor]) -> str:
    """What of one member is not finite: the loss, or a gradient (the first such, else the largest).

    >>> culprit(torch.tensor(2.0), {"a": torch.ones(3), "b": torch.tensor([1e30, 0.0])})
    'the gradient of b'
    """
    if not loss.isfinite():
        return "the loss"
    sizes = {name: g.abs().max().nan_to_num(torch.inf).item() for name, g in gradients.items()}
    return f"the gradient of {max(sizes, key=lambda name: sizes[name])}"
