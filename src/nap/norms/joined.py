"""A LayerNorm and the BatchNorm that follows it, computed together: no more memory traffic than BatchNorm.

Both are a factor and a shift for each sample and channel, and the statistics of both follow from the mean and
variance of each (sample, channel) (`nap.norms.moments`). So the images are read once for the statistics of
both, and once more to apply both; what comes after, such as a ReLU, is fused to that by torch's compiler.

The norm on a layer's output leaves what it knows in a `Link`. The BatchNorm takes it up if what enters it is
what the norm gave, and what the norm gave is then never computed, unless someone else uses it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from nap.norms import moments

LINK = "nap_link"  # in the __dict__ of both modules, so that copies of a model have links of their own


class Known(NamedTuple):
    """What a norm knows of its images, besides its result."""

    images: Tensor  # (N, C, …), before the norm
    mean: Tensor  # of each sample's channels, as the variance
    variance: Tensor
    affine: moments.Affine  # what the norm does to them

    def applied(self) -> Tensor:
        """What the norm gives."""
        return moments.apply(self.images, self.affine)


class Link:
    """From a norm to the BatchNorm after it; empty but for the time in between."""

    def __init__(self) -> None:
        self.known: Known | None = None
        self.result: Tensor | None = None

    def fill(self, known: Known, result: Tensor) -> Tensor:
        """`result`, which is told to be what the norm gives."""
        self.known, self.result = known, result
        return result

    def take(self, result: Tensor) -> Known | None:
        """What is known of `result`, if the norm gave it; the link is empty from here on."""
        known = self.known if self.result is result else None
        self.known = self.result = None
        return known


class JoinedBatchNorm2d(nn.BatchNorm2d):
    """A BatchNorm that takes up what the norm before it knows; without that it is as any other."""

    def forward(self, input: Tensor) -> Tensor:
        known = self.__dict__[LINK].take(input)
        if known is None:
            return super().forward(input)
        parameters = _wide(self.weight), _wide(self.bias)
        affine = moments.batch_norm(known.affine, *self._statistics(known), *parameters, self.eps)
        return moments.apply(known.images, affine).to(input.dtype)

    def _statistics(self, known: Known) -> tuple[Tensor, Tensor]:
        """Mean and variance of each channel: of these images in training, else as they ran."""
        if not self.training and self.running_mean is not None and self.running_var is not None:
            return self.running_mean, self.running_var
        middle, spread = moments.of_channels(known.affine, known.mean, known.variance)
        if self.training and self.running_mean is not None and self.running_var is not None:
            self._follow(middle.detach(), spread.detach(), known.images.numel() // self.num_features)
        return middle, spread

    @torch.no_grad()
    def _follow(self, middle: Tensor, spread: Tensor, count: int) -> None:
        share: float | Tensor = 0.0 if self.momentum is None else self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                share = 1.0 / self.num_batches_tracked.to(middle.dtype)
        assert self.running_mean is not None
        assert self.running_var is not None
        for running, now in ((self.running_mean, middle), (self.running_var, spread * count / (count - 1))):
            running.copy_(running + share * (now - running))


def _wide(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.to(torch.promote_types(parameter.dtype, torch.float32))
