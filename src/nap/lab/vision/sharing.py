"""How processes share an image classifier: each has a copy, and an equal share of every batch.

Losses and gradients are those of the whole batch. The statistics of BatchNorm are those of a process's own
share, as is the custom; what is judged and saved has the running ones of process 0.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nap.lab.runs.crew import Crew


class Sharing:
    """What one process of a crew has to do with the others; alone it has nothing to do."""

    def __init__(self, crew: Crew | None = None):
        self.rank, self.size = (0, 1) if crew is None else (crew.rank, crew.size)

    def wrapped(self, model: nn.Module) -> nn.Module:
        """What to call in training, so that gradients are means over all processes."""
        if self.size == 1:
            return model
        device = next(model.parameters()).device
        return nn.parallel.DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
        )

    def sum(self, numbers: Tensor) -> Tensor:
        """Sums over all processes."""
        if self.size > 1:
            dist.all_reduce(numbers)
        return numbers

    def whole(self, loss: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Of the whole batch, given those of this process's share: the mean loss, and how many are right."""
        if self.size == 1:
            return loss, right
        mean, count = self.sum(torch.stack([loss.double() / self.size, right.double()]))
        return mean.to(loss.dtype), count.to(right.dtype)

    def alike_(self, model: nn.Module) -> None:
        """Every process has the running statistics of process 0."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)
