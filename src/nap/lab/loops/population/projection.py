"""Step 2 of NaP for a population: the plan of `nap.Projector`, a radius per member."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

import nap
from nap.lab.loops.population.stacking import Stacked
from nap.projection.affine import decay_scale_offset, joint_scale_offset
from nap.projection.plan import pairs_of
from nap.projection.sphere import norms_of, project_tensors_


class PopulationProjector:
    """Keeps every member's weights at the norms of `initial`; which weights, `nap.Projector` decides."""

    def __init__(
        self,
        skeleton: nn.Module,
        initial: Stacked,
        *,
        output: Literal["project", "free"] = "project",
        affine: Literal["free", "joint", "decay"] = "free",
        decay: float = 1e-3,
    ):
        self.plan = nap.Projector(
            skeleton, output=output, branches="project", affine=affine, decay=decay
        ).plan
        if growing := self.plan.names("grow"):
            raise ValueError(
                f"{', '.join(growing)}: all zeros, and a population has no such weights; start them"
            )
        self.radii = {name: norms_of(initial[name], stacked=1) for name in self.plan.names("project")}
        table = nap.weight_groups(skeleton)
        self._pairs = pairs_of([table[name] for name in self.plan.names("joint", "decay")])
        self._rule: Any = partial(joint_scale_offset, stacked=1)
        if affine == "decay":
            self._rule = partial(decay_scale_offset, decay=decay)

    def project_(self, parameters: Stacked) -> None:
        """Weights onto their spheres, then scales and offsets by their rule."""
        self.project_weights_(parameters)
        self.project_affine_(parameters)

    def project_weights_(self, parameters: Stacked) -> None:
        """Every member back onto its radii."""
        project_tensors_([parameters[name] for name in self.radii], list(self.radii.values()))

    @torch.no_grad()
    def project_affine_(self, parameters: Stacked) -> None:
        """Scales and offsets by their rule."""
        for names in self._pairs:
            old: list[Tensor | None] = [None if name is None else parameters[name] for name in names]
            for was, new in zip(old, self._rule(*old), strict=True):
                if was is not None and new is not None:
                    was.copy_(new)
