"""Rainbow and what the paper makes of it: with norms, with NaP, with a learning-rate schedule.

A variant is settings alone; `networks.build` makes a network of it. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

LAST_RATE = 1e-6  # §4.2: where schedules end
FIRST_RATE, WARM_UP = 1e-8, 1000  # Appendix B.2: the cosine's warm-up


@dataclass(frozen=True)
class Variant:
    """One arm of the Rainbow experiments."""

    name: str
    norm: bool = False
    project: bool = False
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    end_at: float = 0.5  # fraction of training at which the line ends
    affine: Literal["free", "joint", "decay"] = "free"  # scales and offsets, where weights are projected
    output: Literal["project", "free"] = "project"
    decay: float = 1e-3  # how far scales and offsets are pulled back at each update, if they are
    noise: Literal["joint", "separate", "free"] = "separate"  # radii of noisy layers' means and noise
    last_share: float = 0.0  # of the peak rate: where schedules end; 0: at the paper's rate
    project_every_updates: int = 1
    offsets: bool = True  # of the inserted norms
    weight_decay: float = 0.0  # AdamW's, of weights; biases, scales and offsets have none

    def rate(self, peak: float, updates: int) -> Callable[[int], float]:
        """The learning rate of each update, counted from 0, in a training of so many."""
        from nap.schedules import linear_value, warmup_cosine_value  # here: they come with torch

        last = peak * self.last_share if self.last_share else LAST_RATE
        if self.schedule == "linear":
            value = partial(linear_value, total_steps=updates, end_value=last, end_at=self.end_at)
        elif self.schedule == "cosine":
            value = partial(
                warmup_cosine_value,
                warmup_steps=min(WARM_UP, updates // 10),
                total_steps=updates,
                init_value=FIRST_RATE,
                end_value=last,
            )
        else:
            return lambda update: peak
        return lambda update: value(update, peak)


RAINBOW = Variant("Rainbow")
LAYER_NORM = Variant("LayerNorm", norm=True)
NAP = Variant("NaP", norm=True, project=True)
NAP_LINEAR = Variant("NaP + schedule", norm=True, project=True, schedule="linear")
FOUR = (RAINBOW, LAYER_NORM, NAP, NAP_LINEAR)
