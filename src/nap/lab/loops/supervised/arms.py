"""What the arms of the stationary image experiments do to a plain network; values, not code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

import nap
from nap.lab.loops.supervised.classifier import Rates, Recipe
from nap.projection.policies import Choice

EPS = 1e-5  # absolute: as fast as a norm written by hand, and weights on their sphere never come near it


@dataclass(frozen=True)
class VisionArm:
    """One way to train a network: what a line of the table stands for."""

    name: str
    norm: bool = False
    project: bool = False
    output: Choice = "project"  # stored with each run, whatever the library's default is
    branches: Choice = "project"  # the last convolution of each residual branch
    translated: bool = False  # weights that a norm follows get the rates that weight decay makes of the plan

    def rates(self, planned: Callable[[int], float], steps: int, recipe: Recipe) -> Rates:
        """The learning rates of each update, of which there are `steps`."""
        if not self.translated:
            return lambda step: (planned(step), planned(step))
        found = nap.schedules.weight_decay_rates(
            map(planned, range(steps)), recipe.weight_decay, momentum=recipe.momentum
        ).tolist()
        return lambda step: (found[step], planned(step))

    def build(
        self, make: Callable[[], nn.Module], images: Tensor, **options: Any
    ) -> tuple[nn.Module, nap.Projector | None]:
        """A fresh network, from the global random state, and what keeps its weights at their norms.

        `options` are more of those of `nap.normalize_`.
        """
        model = make()
        if self.norm:
            # on sums, so that each BatchNorm has one to join
            nap.normalize_(model, images, eps=EPS, residual="sum", **options)
            nap.join_batch_norms_(model, images)
        if not self.project:
            return model, None
        return model, nap.Projector(model, output=self.output, branches=self.branches)


BASELINE = VisionArm("baseline")
NORM_ONLY = VisionArm("norm only", norm=True)
NAP = VisionArm("NaP", norm=True, project=True)
TRANSLATED = VisionArm("NaP translated", norm=True, project=True, translated=True)
