"""The run of Figure 2: free networks and their projected twins, all in one population."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from nap.lab.datasets.images import Images, load
from nap.lab.datasets.streams import batches
from nap.lab.experiments.experiment import Run
from nap.lab.experiments.fig2 import MODES, Fig2Config
from nap.lab.experiments.fig2.coupling import Coupling
from nap.lab.loops.population.continual_run import best_strategy, network_factory, skeleton_of
from nap.lab.loops.population.settings import LAYER_NORM, continual
from nap.lab.loops.population.stacking import initial_values
from nap.lab.loops.population.trainer import Recipe, Trainer
from nap.methods import Method
from nap.rates.twins import TwinMode
from nap.weights import Role, weight_groups

TWIN_MODES = {mode: cast(TwinMode, mode.replace(" ", "-")) for mode in MODES}  # arm → as in nap.rates.twins


class TwinRun:
    """The `Work` of Figure 2: `step` is an epoch of every network."""

    unit = "epochs"

    def __init__(self, config: Fig2Config, data: Images, device: torch.device):
        dtype = getattr(torch, config.precision)
        images = data.normalised(dtype).to(device)
        make = network_factory(continual(config), images.shape[1:], data.classes)
        self.config, self.seeds = config, list(range(config.seeds))
        self.skeleton = skeleton_of(make, LAYER_NORM, Method(), images[:2].cpu(), dtype).to(device)
        initial = initial_values(self.skeleton, make, self.seeds, device)
        initial = {name: p.repeat(1 + len(MODES), *[1] * (p.ndim - 1)) for name, p in initial.items()}
        table = weight_groups(self.skeleton)
        coupled = [row.name for row in table.of(Role.SCALE_INVARIANT, Role.NORMALISED)]
        self.coupling = Coupling(coupled, initial, list(TWIN_MODES.values()))
        size = sum(p.numel() for p in self.skeleton.parameters())
        strategy = best_strategy(config.network, device, size, len(next(iter(initial.values()))))
        recipe = Recipe(config.learning_rate, strategy=strategy, graph=device.type == "cuda")
        self.trainer = Trainer(
            self.skeleton,
            initial,
            images,
            recipe,
            method=self.coupling,
            projector=self.coupling,
            batch_size=config.batch_size,
        )
        self.trainer.labels.copy_(data.labels.expand_as(self.trainer.labels))
        self.total, self.done = config.epochs, 0
        self.steps_per_unit = self.trainer.steps_per_epoch * self.trainer.members

    def step(self) -> list[dict[str, Any]]:
        steps = self.trainer.steps_per_epoch
        own = batches(
            self.seeds, 1, self.done, count=len(self.trainer.images), batch_size=self.config.batch_size
        )
        means = self.trainer.train_epoch(own.repeat(1 + len(MODES), 1, 1), steps_before=self.done * steps)
        self.done += 1
        free, distances = self.coupling.group, self._distances()
        growth = 1 / self.coupling.multipliers(self.trainer.parameters).double().cpu()
        rows = []
        for number, mode in enumerate(MODES, start=1):
            columns = {
                "loss_free": free(means.loss, 0),
                "loss_projected": free(means.loss, number),
                "accuracy_free": free(means.accuracy, 0),
                "accuracy_projected": free(means.accuracy, number),
                "loss_gap": (free(means.loss, number) - free(means.loss, 0)).abs(),
                "accuracy_gap": (free(means.accuracy, number) - free(means.accuracy, 0)).abs(),
                "function_distance": distances[number - 1],
                "norm_growth": growth,
                "rate_multiplier": torch.ones_like(growth) if mode == "none" else 1 / growth,
            }
            lists = {name: values.tolist() for name, values in columns.items()}
            rows += [
                {"experiment": "fig2", "arm": mode, "seed": seed, "step": self.done * steps}
                | {name: values[k] for name, values in lists.items()}
                for k, seed in enumerate(self.seeds)
            ]
        return rows

    @torch.no_grad()
    def _distances(self) -> Tensor:
        """‖f(x) − f̃(x)‖/‖f(x)‖ on the probe batch, (modes, seeds)."""
        x = self.trainer.images[: self.config.probe]
        outputs = self.trainer.forward(self.trainer.parameters, x.expand(self.trainer.members, *x.shape))
        groups = outputs.unflatten(0, (1 + len(MODES), len(self.seeds))).flatten(2)
        return ((groups[1:] - groups[0]).norm(dim=2) / groups[0].norm(dim=1)).double().cpu()

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "learner": self.trainer.state_dict(), "radii": dict(self.coupling.radii)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trainer.load_state_dict(state["learner"])
        for name, radius in state["radii"].items():
            self.coupling.radii[name].copy_(radius)
        self.done = state["done"]


def runs(config: Fig2Config) -> list[Run]:
    """One run: the free networks are shared by all modes."""

    def start(device: torch.device) -> TwinRun:
        return TwinRun(config, load(config.data, count=config.images or None), device)

    return [Run("twins", config, start)]
