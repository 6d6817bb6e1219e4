"""A network of a variant: the library normalises it and makes its projector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

import nap
from nap.lab.loops.rainbow.variants import Variant
from nap.lab.models.rainbow_net import RainbowNet

EPS = 1e-5  # of the norms; one relative to the weights would read them three times more in each update


@dataclass(frozen=True)
class Built:
    """A network, what keeps its weights at their first norms, and what else an update is to do."""

    net: RainbowNet
    projector: nap.Projector | None
    project_every_updates: int = 1
    weight_decay: float = 0.0
    joint_noise: bool = False  # noisy layers have one radius


def build(variant: Variant, make: Callable[[], RainbowNet], example: torch.Tensor) -> Built:
    """A network of this variant, fresh from the global random state. `example` is a batch of states."""
    net = make()
    if variant.norm:
        affine: Literal["scale_offset", "scale"] = "scale_offset" if variant.offsets else "scale"
        nap.normalize_(net, (example, net.noise(1)), eps=EPS, affine=affine)
    projector = None
    if variant.project:
        projector = nap.Projector(
            net,
            affine=variant.affine,
            output=variant.output,
            branches="project",
            decay=variant.decay,
            noise=variant.noise,
        )
    joint = variant.project and variant.noise == "joint"
    return Built(net, projector, variant.project_every_updates, variant.weight_decay, joint)
