"""Random crops and flips of a batch, on the device that holds the images: no loader, no worker processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from nap.lab.loops.supervised.settings import PaddingMode


@dataclass(frozen=True, eq=False)
class PaddedImages:
    """Padded images, uint8 (N, H + 2·padding, W + 2·padding, C), and how they are cropped and normalised.

    `mean` and `std` are those of each channel, in levels from 0 to 255.
    """

    padded: Tensor
    mean: Tensor
    std: Tensor
    padding: int
    flip: bool

    @classmethod
    def of(
        cls,
        pixels: Tensor,
        mean: Tensor,
        std: Tensor,
        *,
        padding: int = 4,
        flip: bool = True,
        padding_mode: PaddingMode = "zeros",
    ) -> PaddedImages:
        """Of images (N, C, H, W)."""
        mean, std = mean.to(pixels.device).float(), std.to(pixels.device).float()
        padded = pad(pixels, padding, padding_mode, mean).permute(0, 2, 3, 1).contiguous()
        return cls(padded, mean, std, padding, flip)

    def sample(self, shape: Sequence[int], generator: Generator) -> Tensor:
        """Parameters of random crops: tops, lefts and whether they are flipped, int64 (3, *shape)."""
        options: dict[str, Any] = {"generator": generator, "device": generator.device}
        corners = torch.randint(2 * self.padding + 1, (2, *shape), **options)
        flipped = torch.randint(2, (1, *shape), **options)
        return torch.cat([corners, flipped if self.flip else torch.zeros_like(flipped)])

    def random_crop(self, index: Tensor, crops: Tensor) -> Tensor:
        """The images at `index`, cropped and flipped by these parameters, (B, C, H, W) in channels-last."""
        tops, lefts, flipped = crops
        return self._crop(index, tops, lefts, flipped > 0)

    def center_crop(self, index: Tensor) -> Tensor:
        """The images at `index` as they are."""
        corner = torch.full_like(index, self.padding)
        return self._crop(index, corner, corner, None)

    def _crop(self, index: Tensor, tops: Tensor, lefts: Tensor, flipped: Tensor | None) -> Tensor:
        height, width = (size - 2 * self.padding for size in self.padded.shape[1:3])
        rows = tops[:, None] + torch.arange(height, device=index.device)
        columns = lefts[:, None] + torch.arange(width, device=index.device)
        if flipped is not None:
            columns = torch.where(flipped[:, None], columns.flip(1), columns)
        cropped = self.padded[index[:, None, None], rows[:, :, None], columns[:, None, :]]
        return ((cropped.float() - self.mean) / self.std).permute(0, 3, 1, 2)


def pad(pixels: Tensor, padding: int, mode: PaddingMode, mean: Tensor) -> Tensor:
    """Images (N, C, H, W) padded with zeros (black), with the mean level, or with their reflection.

    >>> pad(torch.tensor([[[[1, 2, 3]]]]).expand(1, 1, 3, 3), 1, "reflect", torch.zeros(1))[0, 0, 0]
    tensor([2, 1, 2, 3, 2])
    """
    height, width = pixels.shape[-2:]
    if mode == "reflect":
        if padding >= min(height, width):
            raise ValueError(
                f"images of {height}×{width} pixels cannot be padded by {padding} with their reflection; "
                "lower --crop-padding"
            )
        rows, columns = (_reflected(size, padding).to(pixels.device) for size in (height, width))
        return pixels[..., rows, :][..., columns]
    level = mean.round() if mode == "mean" else torch.zeros_like(mean)
    shape = (*pixels.shape[:2], height + 2 * padding, width + 2 * padding)
    padded = level.to(pixels.dtype).view(-1, 1, 1).expand(shape).clone()
    padded[..., padding : padding + height, padding : padding + width] = pixels
    return padded


def _reflected(size: int, padding: int) -> Tensor:
    """The positions that a padded axis shows.

    >>> _reflected(3, 1)
    tensor([1, 0, 1, 2, 1])
    """
    last = size - 1
    return last - (torch.arange(-padding, size + padding).abs() - last).abs()
