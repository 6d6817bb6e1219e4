"""Step 2 of NaP for K agents: what each agent's `nap.Projector` has planned, a radius a parameter and agent.

Agents without a projector stay as they are. Parameters that share a radius (means and noise of a noisy layer,
scale and offset of a norm) are scaled by one factor, so that one product serves all agents and parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

import nap
from nap.lab.loops.rainbow.learner import Learner
from nap.lab.loops.rainbow.stacked.blocks import Blocks
from nap.projection.plan import pairs_of


class Radii:
    """The radii of K agents, who shares one, and the pull on scales and offsets."""

    def __init__(self, learners: Sequence[Learner], blocks: Blocks):
        self.blocks = blocks
        places = {name: place for place, name in enumerate(blocks.names)}
        shape = (len(blocks.names), len(learners))
        radii = torch.zeros(shape, dtype=torch.float64)
        keep, pulled_to = torch.ones(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
        sharing = torch.zeros(len(learners), shape[0], shape[0], dtype=torch.float64)
        for k, learner in enumerate(learners):
            for names, radius in _spheres(learner):
                rows = [places[name] for name in names]
                radii[rows, k] = radius
                sharing[k, torch.tensor(rows).unsqueeze(1), rows] = 1.0
            for name, pull in _pulls(learner):
                keep[places[name], k] = 1 - pull
                pulled_to[places[name], k] = pull if name.endswith("weight") else 0.0
        self._radii, self._sharing = radii.to(blocks.device), sharing.to(blocks.device)
        self._keep, self._pulled_to = keep.to(blocks.device), pulled_to.to(blocks.device)
        self._any, self._pulls = bool((radii > 0).any()), bool((keep < 1).any())

    @torch.no_grad()
    def project_(self, weights: Tensor) -> None:
        """W ← ρ·W/‖W‖ (Algorithm 1), and scales and offsets by their rule.

        What has no direction, and what is free, stays as it is.
        """
        if self._any:
            squares = torch.einsum("kst,tk->sk", self._sharing, self.blocks.squares(weights))
            usable = (squares > 0) & squares.isfinite()
            factors = torch.where(usable, self._radii / squares.sqrt(), 1.0)
            weights.mul_(self.blocks.of_parameters(factors.to(weights.dtype)))
        if self._pulls:
            weights.mul_(self.blocks.of_parameters(self._keep.to(weights.dtype)))
            weights.add_(self.blocks.of_parameters(self._pulled_to.to(weights.dtype)))


def _spheres(learner: Learner) -> Iterator[tuple[tuple[str, ...], float]]:
    """Names of parameters that share a radius, and the radius."""
    if (projector := learner.projector) is None:
        return
    if growing := projector.plan.names("grow"):
        raise ValueError(
            f"{', '.join(growing)}: all zeros or to grow, which a stack of agents cannot do; train them apart"
        )
    state, table = projector.state_dict(), nap.weight_groups(learner.online)
    radii = {name: float(radius) for name, radius in state["radii"].items()}
    joint = state["settings"].get("noise") == "joint"
    noises = [row for row in table.values() if row.part == "noise" and row.name in radii]
    for mean, noise in [(row.beside, row.name) for row in noises if row.beside in radii and joint]:
        assert mean is not None, "it has a radius"
        yield (mean, noise), radii.pop(mean)  # the radius of the two together is that of each
        radii.pop(noise)
    yield from (((name,), radius) for name, radius in radii.items())
    for pair in pairs_of([table[name] for name in projector.plan.names("joint")]):
        names = tuple(name for name in pair if name is not None)
        yield names, math.sqrt(dict(learner.online.named_parameters())[names[0]].numel())


def _pulls(learner: Learner) -> Iterator[tuple[str, float]]:
    """Scales and offsets that are pulled towards (1, 0), and how far at each projection."""
    if learner.projector is not None:
        settings = learner.projector.state_dict()["settings"]
        yield from ((name, settings["decay"]) for name in learner.projector.plan.names("decay"))
