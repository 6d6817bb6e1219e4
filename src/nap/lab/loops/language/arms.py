"""The arms of transformer experiments: which norms, projection and weight decay; values, not code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Choice = Literal["project", "grow", "free"]  # as in nap.projection.policies, which needs torch


@dataclass(frozen=True)
class TransformerArm:
    """One way to train a transformer: what a line in a figure stands for."""

    name: str
    norm: bool = False  # normalization layers before nonlinearities, RMSNorm on queries and keys
    kind: Literal["layer", "rms"] = "layer"  # of those before nonlinearities
    project: bool = False
    scale: bool = True  # the inserted norms have a learnable scale (and offset)
    weight_decay: float = 0.0  # AdamW's
    output: Choice = "project"  # policies of three roles: stored with each run, whatever the default is
    embeddings: Choice = "project"
    branches: Choice = "project"


BASELINE = TransformerArm("baseline")
NORM_ONLY = TransformerArm("norm only", norm=True)
NAP = TransformerArm("NaP", norm=True, project=True)
NAP_NO_SCALE = TransformerArm("NaP, no scale", norm=True, project=True, scale=False)
NORM_ONLY_RMS = TransformerArm("norm only, RMSNorm", norm=True, kind="rms")
NAP_RMS = TransformerArm("NaP, RMSNorm", norm=True, kind="rms", project=True)
PROJECTION_ONLY = TransformerArm("projection only", project=True)


def with_weight_decay(weight_decay: float) -> TransformerArm:
    """The baseline with weight decay.

    >>> with_weight_decay(0.1).name
    'weight decay 0.1'
    """
    return TransformerArm(f"weight decay {weight_decay:g}", weight_decay=weight_decay)
