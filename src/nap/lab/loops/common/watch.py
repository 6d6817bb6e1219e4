"""What is noted of updates on the device: means, and the first loss or gradient that is not finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nap.lab.loops.common.guard import Guard, guarded
from nap.lab.runner.work import NotFinite


class Seen(NamedTuple):
    """What a watch remembers, on the device."""

    culprits: Tensor  # what was not finite when something first was not
    position: Tensor  # updates since the last reading
    sums: Tensor  # of loss and gradient norm
    broken: Tensor  # as a `Guard` has it, and the next
    bad_at: Tensor


class Watch:
    """Follows the loss and the gradients of the parameters that `names` lists, update by update."""

    def __init__(self, names: Sequence[str], device: torch.device):
        self._suspects = ["the loss", *(f"the gradient of {name}" for name in names)]
        self._guard = Guard(1, device)
        self.broken = self._guard.broken
        self._culprits = torch.zeros(len(self._suspects), dtype=torch.bool, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._sums = torch.zeros(2, device=device)  # of loss and gradient norm
        self.tensors = Seen(self._culprits, self._position, self._sums, *self._guard.tensors)

    def note_(self, loss: Tensor, norms: Tensor) -> Tensor:
        """See an update before it is made; the norm of all gradients together."""
        if len(norms) != len(self._suspects) - 1:
            raise ValueError(f"{len(norms)} gradients for the {len(self._suspects) - 1} parameters watched")
        seen, norm = watched(self.tensors, loss, norms)
        for tensor, now in zip(self.tensors, seen, strict=True):
            tensor.copy_(now)
        return norm

    def check(self) -> None:
        """Raise where an update was not finite. Waits for the device."""
        if self.broken.item():
            _, step = self._guard.first()
            which = self._suspects[int(self._culprits.int().argmax())]
            raise NotFinite(
                f"{which} is not finite at update {step + 1} of this interval; the update was not made. "
                "Lower --learning-rate, or leave this arm out"
            )

    def read(self) -> dict[str, float]:
        """Means over the updates since the last call."""
        made = max(1, int(self._position))
        loss, gradient = (self._sums / made).tolist()
        self._sums.zero_()
        self._position.zero_()
        return {"loss": loss, "gradient_norm": gradient}

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self._sums, "position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sums.copy_(state["sums"])
        self._position.copy_(state["position"])


def watched(before: Seen, loss: Tensor, norms: Tensor) -> tuple[Seen, Tensor]:
    """What a watch remembers after an update, and the norm of all gradients together."""
    norm = torch.linalg.vector_norm(norms)
    bad = ~torch.cat([loss.view(1), norms]).isfinite()
    culprits = torch.where(before.broken > 0, before.culprits, bad)
    guard = guarded(before.broken, before.bad_at, loss.view(1), norm.view(1), before.position)
    sums = before.sums + torch.stack([loss, norm])
    return Seen(culprits, before.position + 1, sums, *guard), norm
