"""A LayerNorm and the BatchNorm that follows it, computed together: no more memory traffic than BatchNorm.

Both are a factor and a shift for each sample and channel, and the statistics of both follow from the mean and
variance of each (sample, channel) (`nap.kernels.statistics`). So the images are read once for the statistics
of both, and once more to apply both; what comes after, such as a ReLU, torch's compiler fuses to that.

A norm that was told to leaves what it knows on its result, as an attribute of that tensor. The BatchNorm
takes it up from there, and what the norm gave is then never computed, unless someone else uses it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from nap.kernels import statistics

TELLS = "nap_tells"  # in the __dict__ of a layer, or a BatchNorm, whose norm leaves what it knows
KNOWN = "nap_known"  # on the norm's result


class Known(NamedTuple):
    """What a norm knows of its images, besides its result."""

    images: Tensor  # (N, C, …), before the norm
    mean: Tensor  # of each sample's channels, as the variance
    variance: Tensor
    affine: statistics.Affine  # what the norm does to them

    def applied(self) -> Tensor:
        """What the norm gives."""
        return statistics.apply(self.images, self.affine)

    @property
    def per_channel(self) -> int:
        """Numbers in each channel."""
        return self.images.numel() // self.images.shape[1]


def telling(known: Known, dtype: torch.dtype) -> Tensor:
    """What the norm gives, with what it knows on it."""
    result = known.applied().to(dtype)
    setattr(result, KNOWN, known)
    return result


class FusedBatchNorm2d(nn.BatchNorm2d):
    """A BatchNorm that takes up what the norm before it knows; without that it is as any other."""

    def forward(self, input: Tensor) -> Tensor:
        known = self._known(input)
        if known is None or (self.training and known.per_channel == 1):  # the latter torch refuses
            return super().forward(input)
        parameters = _widened(self.weight), _widened(self.bias)
        affine = statistics.batch_norm(known.affine, *self._statistics(known), *parameters, self.eps)
        return statistics.apply(known.images, affine).to(input.dtype)

    def _known(self, input: Tensor) -> Known | None:
        return getattr(input, KNOWN, None)

    def _statistics(self, known: Known) -> tuple[Tensor, Tensor]:
        """Mean and variance of each channel: of these images in training, else as they ran."""
        if not self.training and self.running_mean is not None and self.running_var is not None:
            return self.running_mean, self.running_var
        mean, variance = statistics.of_channels(known.affine, known.mean, known.variance)
        if self.training and self.running_mean is not None and self.running_var is not None:
            count = known.per_channel
            self._follow(mean.detach(), variance.detach() * count / (count - 1))
        return mean, variance

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor) -> None:
        """Move the averages towards this mean, and this variance: squares over one less than their number."""
        share: float | Tensor = 0.0 if self.momentum is None else self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                share = 1.0 / self.num_batches_tracked.to(mean.dtype)
        assert self.running_mean is not None
        assert self.running_var is not None
        for running, now in ((self.running_mean, mean), (self.running_var, variance)):
            running.copy_(running + share * (now - running))


def _widened(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.to(torch.promote_types(parameter.dtype, torch.float32))
