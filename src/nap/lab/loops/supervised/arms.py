"""What the arms of the stationary image experiments do to a plain network; values, not code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nap.projection.policies import Choice


@dataclass(frozen=True)
class VisionArm:
    """One way to train a network: what a line of the table stands for."""

    name: str
    norm: bool = False
    project: bool = False
    output: Choice = "project"  # stored with each run, whatever the library's default is
    branches: Choice = "project"  # the last convolution of each residual branch
    translated: bool = False  # weights that a norm follows get the rates that weight decay makes of the plan


BASELINE = VisionArm("baseline")
NORM_ONLY = VisionArm("norm only", norm=True)
NAP = VisionArm("NaP", norm=True, project=True)
TRANSLATED = VisionArm("NaP translated", norm=True, project=True, translated=True)
