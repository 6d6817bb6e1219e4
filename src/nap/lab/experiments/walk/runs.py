"""The random walks: every walk of a config in one run."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nap.lab.experiments.experiment import Run
from nap.lab.experiments.walk import MODELS, Gate, Model, WalkConfig
from nap.lab.runner.work import NotFinite


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
