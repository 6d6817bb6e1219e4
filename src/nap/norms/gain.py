"""A learnable number in front of a layer: a matrix at full norm computes what a small one did.

g·W at ‖W‖ = its fan-in radius, where the original was W₀ = g·W. The matrix is projected, the gain learns the
scale. It multiplies what enters the layer, so that a bias stays as it is; of a look-up table, what comes out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nap.norms.compiling import guard_hooks

GAIN = "nap_gain"  # the name under which a gain hangs on its layer
GAIN_HOOK: Any = "nap gain"


class Gain(nn.Module):
    """x ↦ g·x with one learnable g.

    >>> Gain(0.25)(torch.ones(2))
    tensor([0.2500, 0.2500], grad_fn=<MulBackward0>)
    """

    weight: nn.Parameter

    def __init__(
        self, start: float, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ):
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), start, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.to(x.dtype)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A converted model comes out of a file, or is copied: its hooks come with it."""
        super().__setstate__(state)
        guard_hooks()

    def extra_repr(self) -> str:
        return "one number"


def scale_input(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Forward pre-hook: the input of a layer through its gain."""
    if not args:
        raise TypeError(
            f"this {type(module).__name__} has a gain on its input, which must come first and unnamed: "
            "call it as module(x)"
        )
    entered, *rest = args
    return getattr(module, GAIN)(entered), *rest


def scale_rows(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    """Forward hook: the rows that were looked up, through the gain of their table."""
    return getattr(module, GAIN)(output)
