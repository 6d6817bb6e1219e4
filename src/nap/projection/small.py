"""Projection of small weights on a CPU, prepared once: there Python takes longer than the arithmetic."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nap.norms.quick import KnownSquare, is_watched, known_square
from nap.projection.sphere import LARGEST, LONG, SMALLEST, is_plain

_norm_of = torch.linalg.vector_norm


class _Small:
    """One weight, its module's parameters, its values without gradients, and its radius."""

    __slots__ = ("grows", "known", "leaf", "owner", "pointer", "radius", "size", "values", "weight")

    def __init__(self, owner: dict[str, Any], leaf: str, radius: float, *, grows: bool):
        self.owner, self.leaf, self.radius, self.grows = owner, leaf, radius, grows
        self.weight: Tensor = owner[leaf]
        self.values, self.pointer, self.size = (
            self.weight.detach(),
            self.weight.data_ptr(),
            self.weight.numel(),
        )
        self.known: KnownSquare | None = None


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
            if weight.dtype not in (torch.float32, torch.float64) or weight.numel() > LONG:
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
            norm = _norm_of(one.values).item()
            if not SMALLEST < norm < LARGEST:
                return False
            norms.append(norm)
        for one, norm in zip(self._weights, norms, strict=True):
            radius = one.radius
            if norm > radius or not one.grows:
                one.values.mul_(radius / norm)
                norm = radius
            if one.known is not None:
                one.known.set(norm * norm)  # and the norm behind it need not measure
            else:
                one.known = known_square(one.weight)
        return True
