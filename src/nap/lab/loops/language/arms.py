"""What the arms of the sequence experiments do to a plain transformer; values, not code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

import nap
from nap.projection.policies import Choice


@dataclass(frozen=True)
class SequenceArm:
    """One way to train a transformer: what a line in a figure stands for."""

    name: str
    norm: bool = False  # normalization layers before nonlinearities, RMSNorm on queries and keys
    kind: Literal["layer", "rms"] = "layer"  # of those before nonlinearities
    project: bool = False
    scale: bool = True  # the norms that were put in have a learnable scale (and offset)
    weight_decay: float = 0.0  # AdamW's
    output: Choice = "project"  # of three roles: stored with each run, whatever the library's default is
    embeddings: Choice = "project"
    branches: Choice = "project"

    def build(
        self, make: Callable[[], nn.Module], tokens: torch.Tensor
    ) -> tuple[nn.Module, nap.Projector | None]:
        """A fresh network, from the global random state, and what keeps its weights at their norms.

        Without norms every weight can be projected too (§C.3 does so): that fixes the scale of the function.
        """
        model = make()
        if self.norm:
            affine: Literal["scale_offset", "none"] = "scale_offset" if self.scale else "none"
            nap.normalize_(model, tokens, norm=self.kind, affine=affine)
            nap.join_relus_(model, tokens)
        if not self.project:
            return model, None
        return model, nap.Projector(
            model, output=self.output, embeddings=self.embeddings, branches=self.branches
        )


BASELINE = SequenceArm("baseline")
NORM_ONLY = SequenceArm("norm only", norm=True)
NAP = SequenceArm("NaP", norm=True, project=True)
NAP_NO_SCALE = SequenceArm("NaP, no scale", norm=True, project=True, scale=False)
NORM_ONLY_RMS = SequenceArm("norm only, RMSNorm", norm=True, kind="rms")
NAP_RMS = SequenceArm("NaP, RMSNorm", norm=True, kind="rms", project=True)
PROJECTION_ONLY = SequenceArm("projection only", project=True)


def decayed(weight_decay: float) -> SequenceArm:
    """The baseline with weight decay.

    >>> decayed(0.1).name
    'weight decay 0.1'
    """
    return SequenceArm(f"weight decay {weight_decay:g}", weight_decay=weight_decay)
