"""Losses and gradients that are not finite, detected on the device: no step waits for the answer.

`NonFiniteGuard` is for K networks at once. `UpdateMonitor` is for one: it also names the gradient, and keeps
the means of loss and gradient norm that a row reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nap.lab.runner.work import NotFinite


class NonFiniteGuard:
    """Remembers at which step each member of a population first had a loss or gradient that is not finite.

    `broken` is 0 until then and 1 ever after. A fused optimizer takes it as its `found_inf`: where that is
    not 0, it skips the step, that of all members and of all later calls.
    """

    def __init__(self, members: int, device: torch.device):
        self.broken = torch.zeros((), dtype=torch.float32, device=device)  # as fused optimizers want it
        self._bad_at = torch.full((members,), -1, dtype=torch.int64, device=device)
        self.tensors = [self.broken, self._bad_at]

    def note_(self, losses: Tensor, gradient_norms: Tensor, step: Tensor) -> None:
        """Check a step before its update."""
        broken, bad_at = guard_after(self.broken, self._bad_at, losses, gradient_norms, step)
        self.broken.copy_(broken)
        self._bad_at.copy_(bad_at)

    def reset_(self) -> None:
        self.broken.zero_()
        self._bad_at.fill_(-1)

    def first(self) -> tuple[int, int]:
        """The member that broke first, and its step."""
        step, member = min((at, k) for k, at in enumerate(self._bad_at.tolist()) if at >= 0)
        return member, step


def guard_after(
    broken: Tensor, bad_at: Tensor, losses: Tensor, gradient_norms: Tensor, step: Tensor
) -> tuple[Tensor, Tensor]:
    """The tensors of a guard after a step."""
    bad = ~(losses.isfinite() & gradient_norms.isfinite())
    broken = torch.maximum(broken, bad.any().to(broken.dtype))
    return broken, torch.where(bad & (bad_at < 0), step, bad_at)


class MonitorState(NamedTuple):
    """The tensors of an `UpdateMonitor`."""

    culprits: Tensor  # which of the loss and the gradients were not finite at the first bad update
    position: Tensor  # updates since the last reading
    sums: Tensor  # of loss and gradient norm
    broken: Tensor  # as in a guard, and the next
    bad_at: Tensor


class UpdateMonitor:
    """Follows the loss and the gradients of the parameters that `names` lists, update by update."""

    def __init__(self, names: Sequence[str], device: torch.device):
        self._suspects = ["the loss", *(f"the gradient of {name}" for name in names)]
        self._guard = NonFiniteGuard(1, device)
        self.broken = self._guard.broken
        self._culprits = torch.zeros(len(self._suspects), dtype=torch.bool, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._sums = torch.zeros(2, device=device)
        self.tensors = MonitorState(self._culprits, self._position, self._sums, *self._guard.tensors)

    def note_(self, loss: Tensor, norms: Tensor) -> Tensor:
        """Check an update before it is made; returns the norm of all gradients together."""
        if len(norms) != len(self._suspects) - 1:
            raise ValueError(f"{len(norms)} gradients for the {len(self._suspects) - 1} parameters watched")
        state, norm = monitor_after(self.tensors, loss, norms)
        for tensor, value in zip(self.tensors, state, strict=True):
            tensor.copy_(value)
        return norm

    def check(self) -> None:
        """Raise if an update was not finite. Waits for the device."""
        if self.broken.item():
            _, step = self._guard.first()
            culprit = self._suspects[int(self._culprits.int().argmax())]
            raise NotFinite(
                f"{culprit} is not finite at update {step + 1} of this interval; the update was not made. "
                "Lower --learning-rate, or leave this arm out"
            )

    def read(self) -> dict[str, float]:
        """Means over the updates since the last call."""
        updates = max(1, int(self._position))
        loss, gradient = (self._sums / updates).tolist()
        self._sums.zero_()
        self._position.zero_()
        return {"loss": loss, "gradient_norm": gradient}

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self._sums, "position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sums.copy_(state["sums"])
        self._position.copy_(state["position"])


def monitor_after(before: MonitorState, loss: Tensor, norms: Tensor) -> tuple[MonitorState, Tensor]:
    """The tensors of a monitor after an update, and the norm of all gradients together."""
    norm = torch.linalg.vector_norm(norms)
    bad = ~torch.cat([loss.view(1), norms]).isfinite()
    culprits = torch.where(before.broken > 0, before.culprits, bad)
    guard = guard_after(before.broken, before.bad_at, loss.view(1), norm.view(1), before.position)
    sums = before.sums + torch.stack([loss, norm])
    return MonitorState(culprits, before.position + 1, sums, *guard), norm


def culprit(loss: Tensor, gradients: Mapping[str, Tensor]) -> str:
    """What is not finite in one member: the loss, or a gradient (the first such, else the largest).

    >>> culprit(torch.tensor(2.0), {"a": torch.ones(3), "b": torch.tensor([1e30, 0.0])})
    'the gradient of b'
    """
    if not loss.isfinite():
        return "the loss"
    sizes = {name: g.abs().max().nan_to_num(torch.inf).item() for name, g in gradients.items()}
    return f"the gradient of {max(sizes, key=lambda name: sizes[name])}"
