"""Weights that became zero, infinite or NaN in training, and have no direction to project any more."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nap.projection.names import shortened
from nap.projection.sphere import norms_like

_FEW = 64
LOOK_EVERY = 100  # projections, where a look makes the host wait for its device


def is_undone(when: Tensor | None) -> bool:
    """Whether an update is known not to be made: then nothing was lost in it."""
    return when is not None and when.device.type == "cpu" and not bool(when)


def _all_usable(norms: Tensor) -> bool:
    if norms.numel() <= _FEW:  # then Python is quicker than four kernels
        return all(0 < norm < math.inf for norm in norms.flatten().tolist())
    return bool(((norms > 0) & norms.isfinite()).all())


class Lost:
    """Warns once of each weight without a direction, by name.

    On a CPU at once; elsewhere every hundredth projection is looked at, so that no step waits for the device.
    """

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._projections = 0

    def is_due(self, norms: Sequence[Tensor]) -> bool:
        """Whether to look at the weights that were just projected; `norms` are theirs, where known."""
        if torch.compiler.is_compiling():
            return False
        self._projections += 1
        if norms and all(norm.device.type == "cpu" for norm in norms):
            return not all(map(_all_usable, norms))
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        no_values = any(norm.is_meta for norm in norms)
        return self._projections % LOOK_EVERY == 0 and not capturing and not no_values

    def warn(self, weights: Mapping[str, Tensor], radii: Mapping[str, Tensor]) -> None:
        """Name those that have no direction to keep and were not named before."""
        new = []
        for name, weight in weights.items():
            norm = norms_like(radii[name], weight)
            if name not in self._told and not bool(((norm > 0) & norm.isfinite()).all()):
                new.append(name)
        self._told.update(new)
        if new:
            warnings.warn(
                f"{', '.join(shortened(new))}: became zero, infinite or NaN in training (all, a row or "
                "an expert), so there is no direction to project, and it stays as it is; go back to a "
                "checkpoint from before, and lower the learning rate or clip gradients",
                stacklevel=4,
            )
