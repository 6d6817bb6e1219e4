"""Projection of small weights on a CPU, prepared once: there Python takes longer than the arithmetic.

It computes what `project_tensors_` computes, bit by bit, since a run may take either path at any update.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nap.norms.quick import is_watched
from nap.norms.small import SmallWeight, is_small
from nap.projection.sphere import LARGEST, SMALLEST, is_plain


class _Projected:
    """One weight, its module's parameters, its values without gradients, its radius and its factor."""

    __slots__ = (
        "factor",
        "grows",
        "leaf",
        "norm",
        "number",
        "owner",
        "pointer",
        "radius",
        "size",
        "values",
        "weight",
    )

    def __init__(self, owner: dict[str, Any], leaf: str, radius: float, *, grows: bool):
        self.owner, self.leaf, self.radius, self.grows = owner, leaf, radius, grows
        self.weight: Tensor = owner[leaf]
        self.values, self.size = self.weight.detach(), self.weight.numel()
        self.pointer = self.weight.data_ptr()
        self.norm = SmallWeight(self.weight).norm
        self.number = np.empty(1, np.float32 if self.weight.dtype == torch.float32 else np.float64)
        self.factor = torch.from_numpy(self.number)[0]


class SmallWeights:
    """W ← ρ·W/‖W‖ for weights of a model on a CPU, each with a single norm."""

    def __init__(self, weights: list[_Projected]):
        self._weights = weights

    @classmethod
    def of(
        cls,
        slots: Mapping[str, tuple[nn.Module, str]],
        radii: Mapping[str, Tensor],
        growing: Collection[str],
    ) -> SmallWeights | None:
        """These weights, by module and name in it; None where one is large, elsewhere or of several norms."""
        weights: list[_Projected] = []
        for name, (module, leaf) in slots.items():
            weight, radius = module._parameters[leaf], radii.get(name)
            if weight is None or radius is None or radius.numel() != 1 or not is_plain(weight):
                return None
            if weight.ndim == 0 or not is_small(weight):
                return None
            weights.append(_Projected(module._parameters, leaf, radius.item(), grows=name in growing))
        return cls(weights) if weights else None

    def project_(self) -> bool:
        """Project all weights. False, with nothing done, if one was replaced, frozen or has no norm."""
        if is_watched():  # by a mode that wants to see tensors
            return False
        factors: list[tuple[_Projected, float]] = []
        for one in self._weights:
            weight = one.weight
            if one.owner.get(one.leaf) is not weight or not weight.requires_grad:
                return False
            if weight.data_ptr() != one.pointer or weight.numel() != one.size:
                return False
            norm = one.norm()
            if not SMALLEST < norm < LARGEST:
                return False
            if norm > one.radius or not one.grows:
                factors.append((one, one.radius / norm))
        for one, factor in factors:
            one.number[0] = factor
            one.values.mul_(one.factor)
        return True
