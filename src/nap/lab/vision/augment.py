"""Random crops and flips of a batch, on the device that holds the images: no loader, no worker processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor


@dataclass(frozen=True, eq=False)
class Crops:
    """Images with a black edge, uint8 (N, H + 2·edge, W + 2·edge, C), and how to look at them.

    `mean` and `std` are those of each channel, in levels from 0 to 255.
    """

    padded: Tensor
    mean: Tensor
    std: Tensor
    edge: int
    flip: bool

    @classmethod
    def of(cls, pixels: Tensor, mean: Tensor, std: Tensor, *, edge: int = 4, flip: bool = True) -> Crops:
        """Of images (N, C, H, W)."""
        padded = torch.nn.functional.pad(pixels, (edge,) * 4).permute(0, 2, 3, 1).contiguous()
        return cls(padded, mean.to(pixels.device).float(), std.to(pixels.device).float(), edge, flip)

    def places(self, shape: Sequence[int], generator: Generator) -> Tensor:
        """For so many crops: their tops, their lefts, and whether they are mirrored; int64 (3, *shape)."""
        where: dict[str, Any] = {"generator": generator, "device": generator.device}
        cuts = torch.randint(2 * self.edge + 1, (2, *shape), **where)
        mirrored = torch.randint(2, (1, *shape), **where)
        return torch.cat([cuts, mirrored if self.flip else torch.zeros_like(mirrored)])

    def drawn(self, index: Tensor, places: Tensor) -> Tensor:
        """These images, each cut out at its place and perhaps mirrored, (B, C, H, W) in channels-last."""
        tops, lefts, mirrored = places
        return self.at(index, tops, lefts, mirrored > 0)

    def plain(self, index: Tensor) -> Tensor:
        """These images as they are."""
        middle = torch.full_like(index, self.edge)
        return self.at(index, middle, middle, None)

    def at(self, index: Tensor, tops: Tensor, lefts: Tensor, mirrored: Tensor | None) -> Tensor:
        """These images, cut out at the given places."""
        height, width = (size - 2 * self.edge for size in self.padded.shape[1:3])
        rows = tops[:, None] + torch.arange(height, device=index.device)
        columns = lefts[:, None] + torch.arange(width, device=index.device)
        if mirrored is not None:
            columns = torch.where(mirrored[:, None], columns.flip(1), columns)
        cut = self.padded[index[:, None, None], rows[:, :, None], columns[:, None, :]]
        return ((cut.float() - self.mean) / self.std).permute(0, 3, 1, 2)
