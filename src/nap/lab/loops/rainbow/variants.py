"""Rainbow and what the paper makes of it: with norms, with NaP, with a learning-rate schedule.

The library does the normalising and projecting; this file hands it the network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

import nap
from nap.lab.models.rainbow_net import RainbowNet
from nap.schedules import linear_value, warmup_cosine_value

EPS = 1e-5  # of the norms; one relative to the weights would read them three times more in each update
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
    every: int = 1  # updates between two projections
    offsets: bool = True  # of the inserted norms
    weight_decay: float = 0.0  # AdamW's, of weights; biases, scales and offsets have none

    def rate(self, peak: float, updates: int) -> Callable[[int], float]:
        """The learning rate of each update, counted from 0, in a training of so many."""
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

    def build(self, make: Callable[[], RainbowNet], example: torch.Tensor) -> Built:
        """A network of this variant, fresh from the global random state. `example` is a batch of states."""
        net = make()
        if self.norm:
            affine: Literal["scale_offset", "scale"] = "scale_offset" if self.offsets else "scale"
            nap.normalize_(net, (example, net.noise(1)), eps=EPS, affine=affine)
        projector = None
        if self.project:
            projector = nap.Projector(
                net,
                affine=self.affine,
                output=self.output,
                branches="project",
                decay=self.decay,
                noise=self.noise,
            )
        joint = self.project and self.noise == "joint"
        return Built(net, projector, self.every, self.weight_decay, joint)


@dataclass(frozen=True)
class Built:
    """A network, what keeps its weights at their first norms, and what else an update is to do."""

    net: RainbowNet
    projector: nap.Projector | None
    every: int = 1
    weight_decay: float = 0.0
    joint_noise: bool = False  # noisy layers have one radius


RAINBOW = Variant("Rainbow")
LAYER_NORM = Variant("LayerNorm", norm=True)
NAP = Variant("NaP", norm=True, project=True)
NAP_LINEAR = Variant("NaP + schedule", norm=True, project=True, schedule="linear")
FOUR = (RAINBOW, LAYER_NORM, NAP, NAP_LINEAR)
