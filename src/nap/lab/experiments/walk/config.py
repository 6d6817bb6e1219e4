"""Settings of walk at three scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

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
