"""Projection of small weights on a CPU, prepared once: there Python takes longer than the arithmetic.

It computes what `project_tensors_` computes, bit by bit, since a run may take either way at any update.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nap.norms.quick import is_watched
from nap.projection.sphere import LARGEST, LONG, SMALLEST, is_plain

_norm_of = torch.linalg.vector_norm


class _Small:
    """One weight, its module's parameters, its values without gradients, and its radius."""

    __slots__ = ("grows", "leaf", "number", "owner", "pointer", "radius", "size", "tail", "values", "weight")

    def __init__(self, owner: dict[str, Any], leaf: str, radius: float, *, grows: bool):
        self.owner, self.leaf, self.radius, self.grows = owner, leaf, radius, grows
        self.weight: Tensor = owner[leaf]
        self.values = self.weight.detach()
        self.pointer, self.size = self.weight.data_ptr(), self.weight.numel()
        self.tail = tuple(range(1, self.weight.ndim))
        self.number = np.float32 if self.weight.dtype == torch.float32 else np.float64

    def norm(self) -> float:
        """‖W‖ by the same two sums as `norms_over`."""
        rows = _norm_of(self.values, 2, self.tail, True) if self.tail else self.values
        return _norm_of(rows, 2, (0,), True).item()


class SmallWeights:
    """W ← ρ·W/‖W‖ for weights of a model on a CPU, each with a single norm."""

    def __init__(self, weights: list[_Small]):
        self._weights = weights

    @classmethod
    def of(
        cls,
        slots: Mapping[str, tuple[nn.Module, str]],
        radii: Mapping[str, Tensor],
        growing: Collection[str],
    ) -> SmallWeights | None:
        """These weights, by module and name in it; None where one is large, elsewhere or of several norms."""
        weights: list[_Small] = []
        for name, (module, leaf) in slots.items():
            weight, radius = module._parameters[leaf], radii.get(name)
            if weight is None or radius is None or radius.numel() != 1 or not is_plain(weight):
                return None
            fits = weight.ndim > 0 and 0 < weight.numel() <= LONG
            if not fits or weight.dtype not in (torch.float32, torch.float64):
                return None
            weights.append(_Small(module._parameters, leaf, radius.item(), grows=name in growing))
        return cls(weights) if weights else None

    def project_(self) -> bool:
        """Project all weights. False, with nothing done, if one was replaced, frozen or has no norm."""
        if is_watched():  # by a mode that wants to see tensors
            return False
        norms: list[float] = []
        for one in self._weights:
            weight = one.weight
            if one.owner.get(one.leaf) is not weight or not weight.requires_grad:
                return False
            if weight.data_ptr() != one.pointer or weight.numel() != one.size:
                return False
            norm = one.norm()
            if not SMALLEST < norm < LARGEST:
                return False
            norms.append(norm)
        for one, norm in zip(self._weights, norms, strict=True):
            radius = one.radius
            if norm > radius or not one.grows:
                one.values.mul_(float(one.number(radius) / one.number(norm)))
        return True
