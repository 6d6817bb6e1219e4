"""What a norm over the last axis leaves on its result, for a ReLU that would rather start from there."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

ROWS = "nap_rows"  # on the norm's result


class Rows(NamedTuple):
    """What a norm over the last axis was given, and what it does: a LayerNorm (`centre`) or an RMSNorm."""

    y: Tensor
    unit: Tensor | None  # the size of the weights in front, to which eps is relative
    scale: Tensor | None
    offset: Tensor | None
    eps: float
    centre: bool


def leave(result: Tensor, rows: Rows) -> Tensor:
    """The norm's result, with what the norm was given on it."""
    setattr(result, ROWS, rows)
    return result
