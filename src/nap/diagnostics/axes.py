"""On which axis of a tensor the units lie: followed through one forward from where a layer put them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from nap.diagnostics.activations import ACTIVATIONS
from nap.norms.norm import Norm, has_parts

PRODUCERS = (nn.Linear, nn.modules.conv._ConvNd)
NORMS = (Norm, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)
CARRIERS = (*ACTIVATIONS, *NORMS, nn.Identity, nn.modules.dropout._DropoutNd)  # they keep every axis
_MARK = "_nap_unit_axis"  # on a tensor, so that it ends with the tensor


def is_weighted(module: nn.Module) -> bool:
    """Whether a module computes features with weights of its own: a Linear, a convolution, an LSTM, …"""
    own = next(module.parameters(recurse=False), None)
    return isinstance(module, PRODUCERS) or (own is not None and not has_parts(module))


class UnitAxes:
    """Follows the axis of the units through one forward, from each layer's output in order.

    >>> import torch
    >>> axes, conv = UnitAxes(), nn.Conv2d(3, 8, 2, stride=2)
    >>> image = conv(torch.ones(1, 3, 8, 8)); axes.produced("conv", conv, image)
    >>> axes.of("tokens", image.flatten(2)), axes.of("tokens", image.flatten(2).transpose(1, 2))
    (1, 2)
    """

    def __init__(self) -> None:
        self._latest: tuple[str, Tensor, int] | None = None  # a layer, its output, the axis of its units

    def produced(self, name: str, module: nn.Module, output: Tensor) -> None:
        """A Linear puts its units on the last axis, a convolution in front of the positions."""
        positions = 0 if isinstance(module, nn.Linear) else len(module.kernel_size)  # type: ignore[arg-type]
        axis = output.ndim - 1 - positions
        setattr(output, _MARK, axis)
        self._latest = (name, output, axis)

    def carried(self, source: Any, output: Any) -> None:
        """An elementwise module keeps the axis of its input."""
        axis = getattr(source, _MARK, None)
        if axis is not None and isinstance(output, Tensor) and output.shape == source.shape:
            setattr(output, _MARK, axis)

    def lost(self) -> None:
        """A layer of another kind ran; its axis is not known."""
        self._latest = None

    def of(self, name: str, features: Tensor) -> int | None:
        """The axis of the units: as followed, else the one of the latest layer's width; None: unknown.

        In (batch, features) there is no choice, and each flattened feature counts as a unit. Beyond
        that a width that no axis has, or more than one, is an error.
        """
        if hasattr(features, _MARK):
            return int(getattr(features, _MARK))
        if features.ndim <= 2:
            return -1
        if self._latest is None:
            return None
        layer, output, axis = self._latest
        width, shape = output.shape[axis], tuple(features.shape)
        fitting = [k for k in range(1, features.ndim) if shape[k] == width]
        if len(fitting) == 1 or (fitting and width == 1):
            return fitting[0]
        others = [k for k in range(output.ndim) if k != axis]
        if not fitting and features.ndim == output.ndim and all(shape[k] == output.shape[k] for k in others):
            return axis  # the units were split, as by a gate
        which = f"more than one axis ({fitting})" if fitting else "no axis"
        raise ValueError(
            f"it is not clear where the units of {name} lie: {layer} has {width} of them, and {which} of "
            f"{shape} has that size; say it with Recorder(model, unit_axis={{{name!r}: AXIS}})"
        )
