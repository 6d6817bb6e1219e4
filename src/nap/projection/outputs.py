"""Output layers that start small: nothing normalises them, so their radius is the scale of the logits."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

from torch import Tensor

from nap.projection.plan import ProjectionPlan
from nap.projection.refusals import refuse
from nap.weights import Role, WeightTable

# RMS entries of an output layer, of 1/√fan_in. PyTorch's Linear starts at 0.58. On digits with random labels
# (widths 32 and 256, 2500 updates of Adam) a projected one ended with 0.2 to 0.3 nats more loss at a quarter
# of that, with 0.4 to 0.6 at an eighth.
SMALL = 0.14
NEAR_ZERO = 0.03


def check_output(plan: ProjectionPlan, table: WeightTable, parameters: Mapping[str, Tensor]) -> None:
    """Refuse output layers that start near zero, and warn where all are small: entries below 1/√fan_in.

    Policy heads start at 0.01/√fan_in: refused. The tied tables of language models, at 0.02, are small up to
    a width of 49, and near zero up to two.
    """
    sizes = {}  # RMS entry · √fan_in = ‖W‖/√outputs
    for row in plan.rows:
        if row.role is Role.OUTPUT and row.radius is not None:
            weight, shape = table[row.name], parameters[row.name].shape
            outputs = math.prod(shape[axis] for axis in {*range(weight.stacked), weight.out_axis})
            sizes[row.name] = row.radius / math.sqrt(outputs)
    if near_zero := [name for name, size in sizes.items() if size < NEAR_ZERO]:
        why = "an output layer that starts near zero: projected, it stays there and never grows confident"
        refuse(near_zero, why, _way_out(near_zero))
    if sizes and max(sizes.values()) < SMALL:  # all: σ of a noisy layer is small beside its μ, and meant so
        start = f"starts small, entries of {max(sizes.values()):.2g}/√fan_in (PyTorch's own: 0.58)"
        why = f"an output layer that {start}: projected, it stays small, and so do the logits"
        text = f"{', '.join(sizes)}: {why}; {_way_out([*sizes])}, or start it larger"
        warnings.warn(text, stacklevel=3)


def _way_out(names: list[str]) -> str:
    return f"let it grow with output='free' or exclude={names!r}, or pin it there with output='project'"
