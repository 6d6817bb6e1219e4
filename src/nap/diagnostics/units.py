"""Units that compute nothing any more (appendix "Non-stationary MNIST"; Sokar et al., 2023).

A unit is a feature of a hidden layer. In features of shape (B, U) and (B, T, U) the units lie on the
last axis; in (B, C, H, W) and beyond a unit is a channel, axis 1, and each position counts as one more
sample, so a channel is dead only if it is zero everywhere. `unit_axis` overrules that, as (B, C, L)
features of a Conv1d need (`unit_axis=1`).

A batch that holds NaN or infinity reads NaN: a broken network must not look healthy.
"""

from __future__ import annotations

import torch
from torch import Tensor


def linearized_units(features: Tensor, *, unit_axis: int | None = None) -> Tensor:
    """Fraction of units that are zero for all inputs or nonzero for all inputs of the batch.

    Such a ReLU unit is a linear function of its input on this batch.

    >>> linearized_units(torch.tensor([[0.0, 1.0, 2.0, 0.0], [0.0, 1.0, 0.0, 3.0]]))
    tensor(0.5000)
    """
    samples = by_units(features, unit_axis)
    active = samples != 0
    return or_nan(fraction(active.all(0) | ~active.any(0)), samples)


def dead_units(features: Tensor, *, unit_axis: int | None = None) -> Tensor:
    """Fraction of units that are zero for all inputs of the batch.

    >>> dead_units(torch.tensor([[0.0, 1.0, 2.0, 0.0], [0.0, 1.0, 0.0, 3.0]]))
    tensor(0.2500)
    """
    samples = by_units(features, unit_axis)
    return or_nan(fraction((samples == 0).all(0)), samples)


def dormant_units(features: Tensor, tau: float = 0.025, *, unit_axis: int | None = None) -> Tensor:
    """Fraction of units whose dormancy score is at most τ (Sokar et al., 2023); τ = 0: dead units.

    >>> dormant_units(torch.tensor([[0.0, 1.0, 0.01, 3.0]]))
    tensor(0.5000)
    """
    samples = by_units(features, unit_axis)
    return or_nan(fraction(dormancy_scores(wide(samples).abs().mean(0)) <= tau), samples)


def dormancy_scores(activity: Tensor) -> Tensor:
    """Each unit's mean |activation| over the mean of its layer, from `activity` of shape (..., U).

    All units of a layer without any activity score 0.

    >>> dormancy_scores(torch.tensor([1.0, 0.0, 5.0]))
    tensor([0.5000, 0.0000, 2.5000])
    """
    mean = activity.mean(-1, keepdim=True)
    return torch.where(mean == 0, 0.0, activity / mean)


def by_units(features: Tensor, unit_axis: int | None = None) -> Tensor:
    """The features as a matrix (samples, units), by the rule at the top of this module."""
    if features.ndim < 2:
        raise ValueError(
            f"features of shape {tuple(features.shape)} have no batch axis beside the unit axis; "
            "pass (batch, units), (batch, time, units) or (batch, channels, height, width)"
        )
    if features.numel() == 0:
        raise ValueError(
            f"features of shape {tuple(features.shape)} are empty, and nothing can be said of units "
            "that saw no input; pass at least one sample"
        )
    if unit_axis is None:
        unit_axis = 1 if features.ndim >= 4 else -1
    return features.movedim(unit_axis, -1).reshape(-1, features.shape[unit_axis])


def wide(values: Tensor) -> Tensor:
    """The values in float32 at least: half precision overflows in sums of squares."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def fraction(which: Tensor) -> Tensor:
    return which.float().mean()


def or_nan(value: Tensor, samples: Tensor) -> Tensor:
    """The value, or NaN if any of the samples it was computed from is NaN or infinite."""
    return torch.where(samples.isfinite().all(), value, torch.nan)
