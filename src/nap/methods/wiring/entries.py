"""Which entries of a parameter belong to which unit, for the layers and norms of torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nap.methods.wiring.sparsity import along_axis


@dataclass(frozen=True)
class Entries:
    """The entries of one parameter that belong to units of one layer."""

    parameter: str
    unit: Tensor  # the unit's index for each entry, −1 for none; broadcasts to the parameter's shape

    def where(self, chosen: Tensor) -> Tensor:
        """A mask over the parameter's entries: those of the chosen units, given as (..., U) booleans."""
        none = torch.zeros_like(chosen[..., :1])
        return torch.cat([chosen, none], -1)[..., self.unit.to(chosen.device)]

    def sums(self, values: Tensor, units: int, *, stacked: bool = False) -> Tensor:
        """Sum of the parameter-shaped `values` over each unit's entries, of shape (..., U)."""
        rows = values.reshape(len(values) if stacked else 1, -1)
        shape = values.shape[1:] if stacked else values.shape
        unit = self.unit.to(values.device).expand(shape).reshape(-1)
        bins = rows.new_zeros(len(rows), units + 1)
        total = bins.index_add(1, torch.where(unit < 0, units, unit), rows)[:, :units]
        return total if stacked else total[0]


def features_of(module: nn.Module) -> int:
    """Number of output features of a Linear or convolution."""
    return module.out_features if isinstance(module, nn.Linear) else module.out_channels  # type: ignore[return-value]


def row_units(module: nn.Module) -> Tensor:
    """The output feature that each weight entry of a Linear or convolution computes; broadcasts."""
    size = features_of(module)
    if not isinstance(module, nn.modules.conv._ConvTransposeNd):
        return torch.arange(size).view(-1, *[1] * (module.weight.ndim - 1))  # type: ignore[operator]
    groups = module.groups
    per_group = torch.arange(size).view(groups, 1, -1)  # weight: (in, out/groups, ...)
    rows = per_group.expand(groups, module.in_channels // groups, -1).reshape(module.in_channels, -1)
    return rows.view(*rows.shape, *[1] * (module.weight.ndim - 2))


def column_units(module: nn.Module, columns: Tensor) -> Tensor:
    """The unit that each weight entry reads, from the unit of each input feature; broadcasts."""
    if isinstance(module, nn.Linear):
        return columns.view(1, -1)
    assert isinstance(module, nn.modules.conv._ConvNd)
    kernel = [1] * (module.weight.ndim - 2)
    if module.transposed:
        return columns.view(-1, 1, *kernel)
    per_group = columns.view(module.groups, 1, -1)  # weight: (out, in/groups, ...)
    rows = per_group.expand(module.groups, module.out_channels // module.groups, -1)
    return rows.reshape(module.out_channels, -1, *kernel)


def norm_units(unit: Tensor, parameter: Tensor) -> Tensor | None:
    """The unit of each entry of a norm's scale or offset; None if they are not per unit."""
    if parameter.ndim > 1:  # LayerNorm over several trailing axes
        tail = unit.reshape(-1, parameter.numel())
        return tail.amax(0).view(parameter.shape) if bool((tail == tail[0]).all()) else None
    for axis in range(1, unit.ndim):
        found = along_axis(unit, axis) if unit.shape[axis] == len(parameter) else None
        if found is not None:
            return found
    return None
