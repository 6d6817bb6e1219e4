"""One arm of a continual experiment, all seeds at once: task after task, a row for each.

Everything random is a function of (seed, task, epoch), so a run that resumes after any epoch goes on as
if nothing had happened, and a seed gives the same rows in any population.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import nap
from nap.lab.datasets.images import Images
from nap.lab.datasets.streams import Stream, batches
from nap.lab.loops.common.cuda_graph import graph_and_compile
from nap.lab.loops.common.optimizer import reset_
from nap.lab.loops.population import diagnostics
from nap.lab.loops.population.settings import Arm, Continual, OneNetwork, Strengths
from nap.lab.loops.population.stacking import PopulationProjector, Strategy, build, initial_values
from nap.lab.loops.population.trainer import EpochMeans, Recipe, Trainer
from nap.lab.models.nets import cnn, mlp
from nap.methods import L2, L2Init, Langevin, LeakyReLU, Method, ReDo, ShrinkAndPerturb

Row = dict[str, Any]
_START, _EPOCH, _CHANGE = range(3)  # purposes of random numbers: none is used twice
WORTH_COMPILING = 200_000  # updates from which half a minute of torch.compile pays


@dataclass(frozen=True)
class ArmRun:
    """All that determines the rows of one arm."""

    arm: Arm
    settings: Continual
    tags: Mapping[str, Any] = field(default_factory=dict)  # more fields of each row


class ContinualWork:
    """The `Work` of one arm: `step` is an epoch of every seed."""

    unit = "epochs"

    def __init__(
        self,
        run: ArmRun,
        data: Images,
        device: torch.device,
        *,
        seeds: Sequence[int] | None = None,
        dtype: torch.dtype = torch.float32,
        graph: bool | None = None,
        compile_: bool | None = None,
        strategy: Strategy | None = None,
    ):
        settings, self.arm, self.tags = run.settings, run.arm, dict(run.tags)
        self.settings = settings
        first = settings.first_seed
        self.seeds = list(range(first, first + settings.seeds)) if seeds is None else list(seeds)
        images = data.normalised(dtype)
        self.data, self.stream = data, Stream(settings.stream)
        self.make = network_factory(settings, images.shape[1:], data.classes)
        method = METHODS[self.arm.method](settings, settings.learning_rate)
        skeleton = skeleton_of(self.make, self.arm, method, images[:2], dtype).to(device)
        initial = self._initial(skeleton, task=1, device=device)
        self.projector = None
        if self.arm.project != "never":
            self.projector = PopulationProjector(
                skeleton,
                initial,
                output=self.arm.output,
                affine=self.arm.affine,
                decay=settings.decay if self.arm.decay is None else self.arm.decay,
            )
        size = sum(p[0].numel() for p in initial.values())
        chosen = strategy or best_strategy(settings.network, device, size, len(self.seeds))
        updates = settings.tasks * settings.epochs * (len(images) // settings.batch_size)
        updates = updates if chosen == "batched" else 0  # a loop over members is not worth compiling
        graph, compile_ = graph_and_compile(device, updates, WORTH_COMPILING, graph=graph, compile_=compile_)
        recipe = Recipe(settings.learning_rate, self.arm.optimizer, chosen, graph=graph, compile_=compile_)
        self.trainer = Trainer(
            skeleton,
            initial,
            images.to(device),
            recipe,
            method=method,
            projector=self.projector if self.arm.project == "step" else None,
            batch_size=settings.batch_size,
            permutes_pixels=settings.stream == "permuted pixels",
        )
        self.probe = torch.arange(min(settings.probe, len(images)), device=device).expand(len(self.seeds), -1)
        self.total = settings.tasks * settings.epochs
        self.steps_per_unit = self.trainer.steps_per_epoch * len(self.seeds)
        self.done = 0
        self._epochs: list[EpochMeans] = []
        self._start: dict[str, Tensor] = {}

    @property
    def task(self) -> int:
        """The task of the next epoch, from 1."""
        return self.done // self.settings.epochs + 1

    def step(self) -> list[Row]:
        task, epoch = self.task, self.done % self.settings.epochs
        rows: list[Row] = []
        if epoch == 0:
            self._load_task_(task)
            rows = self._initial_rows() if task == 1 else []
            self._change_task_(task)
        for seed, generator in zip(self.seeds, self.trainer.generators, strict=True):
            generator.manual_seed(_seed(_EPOCH, seed, task, epoch))
        size = self.settings.batch_size
        index = batches(self.seeds, task, epoch, count=len(self.data), batch_size=size)
        means = self.trainer.train_epoch(index, steps_before=self.done * self.trainer.steps_per_epoch)
        self._epochs.append(means)
        self.done += 1
        return rows + (self._rows(task) if epoch + 1 == self.settings.epochs else [])

    def state_dict(self) -> dict[str, Any]:
        return {
            "done": self.done,
            "learner": self.trainer.state_dict(),
            "tallies": [{name: value.clone() for name, value in vars(e).items()} for e in self._epochs],
            "start": dict(self._start),
            "radii": dict(self.projector.radii) if self.projector else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trainer.load_state_dict(state["learner"])
        self._epochs = [EpochMeans(**means) for means in state["tallies"]]
        self._start = state["start"]
        for name, radius in state["radii"].items():
            assert self.projector is not None
            self.projector.radii[name].copy_(radius)
        self.done = state["done"]
        if self.done < self.total:
            self._load_task_(self.task)

    def _initial(self, skeleton: nn.Module, task: int, device: torch.device) -> dict[str, Tensor]:
        seeds = [_seed(_START, seed, task if self.arm.fresh else 1) for seed in self.seeds]
        return initial_values(skeleton, self.make, seeds, device)

    def _load_task_(self, task: int) -> None:
        self.trainer.labels.copy_(self.stream.labels(self.seeds, task, self.data))
        order = self.stream.pixel_order(self.seeds, task, self.data)
        if self.trainer.pixel_order is not None and order is not None:
            self.trainer.pixel_order.copy_(order)

    def _change_task_(self, task: int) -> None:
        trainer = self.trainer
        self._epochs = []
        if task > 1:
            for seed, generator in zip(self.seeds, trainer.generators, strict=True):
                generator.manual_seed(_seed(_CHANGE, seed, task))
            trainer.method.at_task_change_(trainer.training)
            if self.projector is not None:
                self.projector.project_(trainer.parameters)
            if self.arm.fresh:
                trainer.load_parameters_(self._initial(trainer.skeleton, task, trainer.images.device))
            if self._resets_optimizer:
                reset_(trainer.optimizer)
        x, y = trainer.inputs(self.probe), trainer.labels.gather(1, self.probe)
        self._start = {"start_gradient_norm": diagnostics.gradient_norms(trainer, x, y).double().cpu()}

    @property
    def _resets_optimizer(self) -> bool:
        state = self.settings.optimizer_state
        return state == "reset" or (state == "legacy" and self.arm.fresh)

    def _initial_rows(self) -> list[Row]:
        """Task 0: the networks before their first update, so that growth is measured from there."""
        return self._labelled(0, self._diagnostics())

    def _rows(self, task: int) -> list[Row]:
        def mean(name: str) -> Tensor:
            return torch.stack([getattr(epoch, name) for epoch in self._epochs]).mean(0)

        means = {"accuracy": mean("accuracy"), "final_accuracy": self._epochs[-1].accuracy}
        means |= {"loss": mean("loss"), "gradient_norm": mean("gradient_norm")}
        return self._labelled(task, means | self._start | self._diagnostics())

    def _diagnostics(self) -> dict[str, Tensor]:
        trainer, x = self.trainer, self.trainer.inputs(self.probe)
        numbers = {
            **diagnostics.norm_numbers(trainer),
            **diagnostics.scale_drift(trainer),
            **diagnostics.jacobian_norms(trainer, x[:, :128]),
            **diagnostics.unit_numbers(trainer, x),
        }
        if x.is_cuda:
            torch.cuda.empty_cache()  # training needs far less: leave the rest to processes beside this one
        return numbers

    def _labelled(self, task: int, numbers: Mapping[str, Tensor]) -> list[Row]:
        lists = {name: value.double().tolist() for name, value in numbers.items()}
        return [
            {"arm": self.arm.name, **self.tags, "seed": seed, "task": task}
            | {name: of[k] for name, of in lists.items()}
            for k, seed in enumerate(self.seeds)
        ]


def skeleton_of(
    make: Callable[[], nn.Module], arm: Arm, method: Method, example: Tensor, dtype: torch.dtype
) -> nn.Module:
    """The architecture of an arm: activations exchanged, then norms put in, then units found."""
    model = build(make, seed=0).to(dtype)
    if arm.method == "leaky ReLU":
        method.prepare_(model, example)
    if arm.norm != "none":
        nap.normalize_(model, example, norm=arm.norm, affine="scale_offset" if arm.learnable else "none")
    if arm.method != "leaky ReLU":
        method.prepare_(model, example)
    return model


def best_strategy(network: str, device: torch.device, numbers: int, members: int) -> Strategy:
    """Batched products or one member after the other, whichever is faster (benchmarks/population.py).

    Convolutions go one by one. Batched products of an MLP win on a GPU, and on a CPU where a network
    (of so many `numbers`) is small enough for the cost of calls to matter.
    """
    small = numbers <= 2**17 and members > 1
    return "batched" if network == "mlp" and (device.type == "cuda" or small) else "loop"


def _seed(*key: int) -> int:
    """A seed for torch that is a function of these numbers."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)


METHODS: Mapping[str, Callable[[Strengths, float], Method]] = {  # of strengths and learning rate
    "none": lambda s, lr: Method(),
    "L2": lambda s, lr: L2(s.l2),
    "L2 Init": lambda s, lr: L2Init(s.l2_init),
    "shrink and perturb": lambda s, lr: ShrinkAndPerturb(s.shrink, s.perturb),
    "ReDo": lambda s, lr: ReDo(tau=s.redo_tau, every=s.redo_every),
    "leaky ReLU": lambda s, lr: LeakyReLU(s.leak),
    "Langevin": lambda s, lr: Langevin(std=s.noise * lr),
}


def network_factory(settings: OneNetwork, shape: Sequence[int], classes: int) -> Callable[[], nn.Module]:
    """Builds a network of these settings for images of `shape` (C, H, W) at each call."""
    if settings.network == "mlp":
        return lambda: mlp(shape, classes, width=settings.width, depth=settings.depth)
    return lambda: cnn(shape, classes, channels=settings.channels, hidden=settings.width)
