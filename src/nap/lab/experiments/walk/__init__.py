"""Random walks of pre-activations as a model of dying ReLUs (Appendix C.4, "ReLU revival").

A layer's d pre-activations v walk under gradients that are pure noise z ~ N(0, I):

    GD              v ← v + max(v, 0) ⊙ z                       RMSProp: the sign of each update
    GD + norm       v ← v + zᵀ ∇_v max(v/‖v‖, 0)
    ... + centring  v ← v + zᵀ ∇_v max(u/‖u‖, 0),  u = v − mean(v)

A unit is dead while the input of its ReLU (v, or u with centring) is not positive. Three things the
paper leaves open are settings: where the walk starts; the first equation's max(v, 0) where the
derivative of a ReLU would be 1[v > 0] (`gate`); and the size of a step, since dividing by ‖v‖ ≈ √d
also makes steps √d times smaller, which `norm="rms"` undoes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from nap.lab.experiments.experiment import Experiment
from nap.validation import check_range

Gate = Literal["value", "relu"]


class Model(NamedTuple):
    """One of the six walks."""

    arm: str
    sign: bool  # RMSProp-like: every coordinate's update has the same size
    norm: bool
    centring: bool


MODELS = (
    Model("GD", sign=False, norm=False, centring=False),
    Model("RMSProp", sign=True, norm=False, centring=False),
    Model("GD + norm", sign=False, norm=True, centring=False),
    Model("RMSProp + norm", sign=True, norm=True, centring=False),
    Model("GD + norm + centring", sign=False, norm=True, centring=True),
    Model("RMSProp + norm + centring", sign=True, norm=True, centring=True),
)


@dataclass(frozen=True)
class WalkConfig:
    """Settings of the random walks."""

    seeds: int
    """Independent walks of each model."""
    width: int
    """Units of the layer (the paper does not say how many)."""
    steps: int = 1000
    """Steps of each walk."""
    step_size: float = 1.0
    """Factor on every update (the paper's is 1)."""
    start: Literal["normal", "alive"] = "normal"
    """First pre-activations: N(0, 1), so that half are dead, or their absolute values."""
    gate: Gate = "value"
    """GD without norm multiplies z by max(v, 0) as printed, or by a ReLU's derivative 1[v > 0]."""
    norm: Literal["l2", "rms"] = "l2"
    """Divide by ‖v‖ as printed, or by the root mean square, as RMSNorm and LayerNorm do."""
    record_every: int = 10
    """Steps between two rows."""
    trajectories: int = 8
    """Units of seed 0 whose path is recorded."""

    def __post_init__(self) -> None:
        check_range(self, "seeds", self.seeds, 1)
        check_range(self, "width", self.width, 2)
        check_range(self, "steps", self.steps, 1)
        check_range(self, "step_size", self.step_size, 1e-6, 1e6)
        check_range(self, "record_every", self.record_every, 1, self.steps)
        check_range(self, "trajectories", self.trajectories, 0, self.width)


PAPER = WalkConfig(seeds=100, width=1024, record_every=20)
SMALL = WalkConfig(seeds=32, width=512)
DEMO = WalkConfig(seeds=8, width=256)

EXPERIMENT = Experiment(
    name="walk",
    order=14,
    package=__name__,
    title="random walks of dead units (Appendix C.4)",
    shows="Without a norm dead units only accumulate; a norm slows that under GD and ends it under RMSProp.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
)
