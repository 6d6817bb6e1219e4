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
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nap.lab.experiments.experiment import Experiment, Run
from nap.lab.runner.work import NotFinite
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


def relu_input(v: Tensor, *, centring: bool) -> Tensor:
    """What the ReLU sees, up to a positive factor: v, or v less its mean."""
    return v - v.mean(-1, keepdim=True) if centring else v


def gated(v: Tensor, z: Tensor, gate: Gate) -> Tensor:
    """The update without norm: max(v, 0) ⊙ z, or 1[v > 0] ⊙ z."""
    return v.clamp(min=0) * z if gate == "value" else (v > 0) * z


def pulled_back(v: Tensor, z: Tensor, *, centring: bool) -> Tensor:
    """zᵀ ∇_v max(u/‖u‖, 0), where u is v, or v less its mean.

    With g = 1[u > 0] ⊙ z this is (g − û ûᵀg)/‖u‖, û = u/‖u‖, less its mean where there is centring.
    Dead units move, too: by −û_i ûᵀg/‖u‖, all of them along one direction.

    >>> pulled_back(torch.tensor([3.0, -4.0]), torch.tensor([1.0, 1.0]), centring=False)
    tensor([0.1280, 0.0960])
    """
    u = relu_input(v, centring=centring)
    length = u.norm(dim=-1, keepdim=True)
    g, direction = (u > 0) * z, u / length
    update = (g - direction * (g * direction).sum(-1, keepdim=True)) / length
    return relu_input(update, centring=centring)


def update_of(model: Model, v: Tensor, z: Tensor, config: WalkConfig) -> Tensor:
    """What one step adds to v (..., width)."""
    if model.norm:
        update = pulled_back(v, z, centring=model.centring)
        update = update * config.width**0.5 if config.norm == "rms" else update
    else:
        update = gated(v, z, config.gate)
    return config.step_size * (update.sign() if model.sign else update)


class Walk:
    """Every walk of a config: all seeds at once, the models on the same noise. A `Work`."""

    unit = "steps"

    def __init__(self, config: WalkConfig, device: torch.device):
        self.config, self.device = config, device
        self.total, self.done = config.steps, 0
        self.steps_per_unit = len(MODELS) * config.seeds
        first = self._normal(0)
        self.v = {model.arm: first.abs() if config.start == "alive" else first for model in MODELS}
        self.dead = {model.arm: self._dead(model) for model in MODELS}  # when last recorded

    def step(self) -> list[dict[str, Any]]:
        rows = self._rows() if self.done == 0 else []
        z = self._normal(self.done + 1)
        updates = {model.arm: update_of(model, self.v[model.arm], z, self.config) for model in MODELS}
        for arm, update in updates.items():
            if not update.isfinite().all():
                raise NotFinite(f"step {self.done + 1} of {arm!r}: its update is not finite")
        self.v = {arm: v + updates[arm] for arm, v in self.v.items()}
        self.done += 1
        if self.done % self.config.record_every == 0 or self.done == self.total:
            rows += self._rows()
        return rows

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "v": dict(self.v), "dead": dict(self.dead)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]
        self.v = {arm: v.to(self.device) for arm, v in state["v"].items()}
        self.dead = {arm: dead.to(self.device) for arm, dead in state["dead"].items()}

    def _normal(self, step: int) -> Tensor:
        """N(0, I) for each seed (seeds, width): a function of seed and step alone; step 0 is the start."""
        draws = [
            np.random.default_rng((seed, step)).standard_normal(self.config.width)
            for seed in range(self.config.seeds)
        ]
        return torch.from_numpy(np.stack(draws)).to(self.device)

    def _dead(self, model: Model) -> Tensor:
        return relu_input(self.v[model.arm], centring=model.centring) <= 0

    def _rows(self) -> list[dict[str, Any]]:
        return [row for model in MODELS for row in (*self._counts(model), *self._paths(model))]

    def _counts(self, model: Model) -> list[dict[str, Any]]:
        """One row a seed; `revived` is the share of the units dead at the last row that live now."""
        before, now = self.dead[model.arm], self._dead(model)
        self.dead[model.arm] = now
        squares = relu_input(self.v[model.arm], centring=model.centring).square()
        metrics = {
            "dead": now.double().mean(-1),
            "revived": (before & ~now).sum(-1) / before.sum(-1).clamp(min=1),
            "largest_share": squares.amax(-1) / squares.sum(-1),  # of ‖u‖²: 1 if the winner took all
        }
        columns = {name: values.tolist() for name, values in metrics.items()}
        return [
            {"experiment": "walk", "arm": model.arm, "seed": seed, "step": self.done}
            | {name: values[seed] for name, values in columns.items()}
            for seed in range(self.config.seeds)
        ]

    def _paths(self, model: Model) -> list[dict[str, Any]]:
        u = relu_input(self.v[model.arm][0], centring=model.centring)[: self.config.trajectories]
        common = {"experiment": "walk", "kind": "trajectory", "arm": model.arm, "seed": 0, "step": self.done}
        return [common | {"index": index, "value": value} for index, value in enumerate(u.tolist())]


def runs(config: WalkConfig) -> list[Run]:
    """One run: six models by all seeds are still a small piece of work."""
    return [Run("walks", config, lambda device: Walk(config, device))]


EXPERIMENT = Experiment(
    name="walk",
    title="random walks of dead units (Appendix C.4)",
    shows="Without a norm dead units only accumulate; a norm slows that under GD and ends it under RMSProp.",
    scales={
        "demo": WalkConfig(seeds=8, width=256),
        "small": WalkConfig(seeds=32, width=512),
        "paper": WalkConfig(seeds=100, width=1024, record_every=20),
    },
    runs=runs,
    needs={"demo": "", "small": "", "paper": ""},
    folder="walk",
)
