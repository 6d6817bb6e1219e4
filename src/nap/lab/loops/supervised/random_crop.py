"""Random crops and flips of a batch, on the device that holds the images: no loader, no worker processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from nap.lab.loops.supervised.settings import Edges


@dataclass(frozen=True, eq=False)
class PaddedImages:
    """Images with an edge around them, uint8 (N, H + 2·edge, W + 2·edge, C), and how to look at them.

    `mean` and `std` are those of each channel, in levels from 0 to 255.
    """

    padded: Tensor
    mean: Tensor
    std: Tensor
    edge: int
    flip: bool

    @classmethod
    def of(
        cls,
        pixels: Tensor,
        mean: Tensor,
        std: Tensor,
        *,
        edge: int = 4,
        flip: bool = True,
        edges: Edges = "black",
    ) -> PaddedImages:
        """Of images (N, C, H, W)."""
        mean, std = mean.to(pixels.device).float(), std.to(pixels.device).float()
        padded = with_edge(pixels, edge, edges, mean).permute(0, 2, 3, 1).contiguous()
        return cls(padded, mean, std, edge, flip)

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


def with_edge(pixels: Tensor, edge: int, edges: Edges, mean: Tensor) -> Tensor:
    """Images (N, C, H, W) in an edge that is black, of the mean level, or goes on as in a mirror.

    >>> with_edge(torch.tensor([[[[1, 2, 3]]]]).expand(1, 1, 3, 3), 1, "mirror", torch.zeros(1))[0, 0, 0]
    tensor([2, 1, 2, 3, 2])
    """
    height, width = pixels.shape[-2:]
    if edges == "mirror":
        if edge >= min(height, width):
            raise ValueError(
                f"images of {height}×{width} pixels do not go on for {edge} in a mirror; lower --crop"
            )
        rows, columns = (
            (size - 1 - (torch.arange(-edge, size + edge, device=pixels.device).abs() - (size - 1)).abs())
            for size in (height, width)
        )
        return pixels[..., rows, :][..., columns]
    level = mean.round() if edges == "mean" else torch.zeros_like(mean)
    shape = (*pixels.shape[:2], height + 2 * edge, width + 2 * edge)
    padded = level.to(pixels.dtype).view(-1, 1, 1).expand(shape).clone()
    padded[..., edge : edge + height, edge : edge + width] = pixels
    return padded
