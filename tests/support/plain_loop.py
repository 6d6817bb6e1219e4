"""One seed of a continual run as anyone would write it: a module, an optimizer, a projector, a loop."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from statistics import geometric_mean, mean

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

import nap
from nap import diagnostics
from nap.lab.datasets.images import Images
from nap.lab.datasets.streams import Stream, batches, reorder
from nap.lab.loops.population.continual_run import METHODS, network_factory
from nap.lab.loops.population.settings import Arm, Continual
from nap.methods import Training
from nap.weights import WEIGHT_ROLES, Role, weight_groups
from tiny_runs import Notes, Row


class PlainLoop:
    """The run that `notes` are of, told by them where it starts and what its generators draw, no more."""

    def __init__(self, arm: Arm, settings: Continual, data: Images, seed: int, notes: Notes, member: int = 0):
        self.arm, self.settings, self.data, self.seed = arm, settings, data, seed
        self.notes, self.member = notes, member
        self.stream, self.images = Stream(settings.stream), data.normalised(torch.float64)
        self.generator = Generator()
        self.method = METHODS[arm.method](settings, settings.learning_rate)
        self.model = network_factory(settings, self.images.shape[1:], data.classes)().double()
        if arm.method == "leaky ReLU":
            self.method.prepare_(self.model, self.images[:2])
        if arm.norm != "none":
            affine = "scale_offset" if arm.learnable else "none"
            nap.normalize_(self.model, self.images[:2], norm=arm.norm, affine=affine)
        if arm.method != "leaky ReLU":
            self.method.prepare_(self.model, self.images[:2])
        self.start_(0)
        self.projector = None
        if arm.project != "never":
            decay = settings.decay if arm.decay is None else arm.decay
            options = {"output": arm.output, "affine": arm.affine, "decay": decay}
            self.projector = nap.Projector(self.model, **options)  # type: ignore[arg-type]
        # noise comes before the projection, which a hook on the optimizer would come ahead of
        self.by_hand = arm.method == "Langevin"
        if self.projector is not None and arm.project == "step" and not self.by_hand:
            self.projector.attach(self.optimizer)

    def load_(self, epoch: int) -> None:
        """The parameters that the run had before this epoch."""
        for name, p in self.model.named_parameters():
            p.data.copy_(self.notes.starts[epoch][name][self.member])

    def start_(self, epoch: int) -> None:
        """These parameters, and a new optimizer."""
        self.load_(epoch)
        kind = torch.optim.SGD if self.arm.optimizer == "SGD" else torch.optim.Adam
        self.optimizer = kind(self.model.parameters(), lr=self.settings.learning_rate)
        self.training = Training.of(self.model, self.optimizer, generator=self.generator)

    def rows(self) -> Iterator[Row]:
        """What the run's rows should say."""
        order = self.stream.pixel_order(self.seed, 1, self.data)
        images = self.images if order is None else reorder(self.images, order)
        initial = measured(self.model, self.optimizer, images[: self.settings.probe])
        yield {"arm": self.arm.name, "seed": self.seed, "task": 0} | initial
        for task in range(1, self.settings.tasks + 1):
            labels = self.stream.labels(self.seed, task, self.data)
            order = self.stream.pixel_order(self.seed, task, self.data)
            images = self.images if order is None else reorder(self.images, order)
            if task > 1:
                self.change_task_(task)
            probe = images[: self.settings.probe]
            start_gradient_norm = self.gradient_norm(probe, labels[: len(probe)])
            seen = [self.epoch_(task, epoch, images, labels) for epoch in range(self.settings.epochs)]
            accuracy, loss, gradient_norm = (mean(numbers) for numbers in zip(*chain(*seen), strict=True))
            yield {
                "arm": self.arm.name,
                "seed": self.seed,
                "task": task,
                "accuracy": accuracy,
                "final_accuracy": mean(step[0] for step in seen[-1]),
                "loss": loss,
                "gradient_norm": gradient_norm,
                "start_gradient_norm": start_gradient_norm,
            } | measured(self.model, self.optimizer, probe)

    def change_task_(self, task: int) -> None:
        self.generator.manual_seed(self.notes.draws_at_changes[task - 2][self.member])
        self.method.at_task_change_(self.training)
        if self.projector is not None:
            self.projector.project_()
        if self.arm.fresh:
            self.load_((task - 1) * self.settings.epochs)
        fresh_alone = self.settings.optimizer_state == "legacy" and self.arm.fresh
        if self.settings.optimizer_state == "reset" or fresh_alone:
            self.optimizer.state.clear()

    def epoch_(
        self, task: int, epoch: int, images: Tensor, labels: Tensor, *, steps: int | None = None
    ) -> list[tuple[float, ...]]:
        """Accuracy and loss before each update (or the first `steps`), and the norm of its gradient."""
        self.generator.manual_seed(self.notes.draws[(task - 1) * self.settings.epochs + epoch][self.member])
        size = self.settings.batch_size
        index = batches(self.seed, task, epoch, count=len(images), batch_size=size)
        return [self.update_(images[some], labels[some]) for some in index[:steps]]

    def update_(self, x: Tensor, y: Tensor) -> tuple[float, ...]:
        logits = self.model(x)
        loss = F.cross_entropy(logits, y)
        accuracy = (logits.argmax(1) == y).double().mean()
        self.optimizer.zero_grad()
        (loss + self.method.penalty(self.training.parameters, self.training.initial)).backward()
        gradient_norm = diagnostics.gradient_norm(self.model)
        self.method.before_step_(self.training)
        self.optimizer.step()
        self.method.after_step_(self.training, x)
        if self.projector is not None and self.arm.project == "step" and self.by_hand:
            self.projector.project_()
        return accuracy.item(), loss.item(), gradient_norm.item()

    def gradient_norm(self, x: Tensor, y: Tensor) -> float:
        self.model.zero_grad()
        F.cross_entropy(self.model(x), y).backward()
        return diagnostics.gradient_norm(self.model).item()


def measured(model: nn.Module, optimizer: torch.optim.Optimizer, probe: Tensor) -> Row:
    """The numbers that a row has of the network itself, from `nap.diagnostics` on an ordinary module."""
    table, parameters = weight_groups(model), dict(model.named_parameters())
    weights = {row.name: parameters[row.name] for row in table.of(*WEIGHT_ROLES)}
    affine = table.of(Role.AFFINE)
    with torch.no_grad():
        features = model.get_submodule("body")(probe)
    found = {
        "parameter_norm": diagnostics.parameter_norm(model).item(),
        "weight_norm": diagnostics.parameter_norm(weights).item(),
        "jacobian_norm": diagnostics.jacobian_norm(model, probe[:128]).item(),
        "dead_units": diagnostics.dead_units(features.relu()).item(),
        "linearized_units": diagnostics.linearized_units(features.relu()).item(),
        "dormant_units": diagnostics.dormant_units(features).item(),
        "feature_rank": diagnostics.feature_rank(features).item(),
    }
    followed = [row.name for row in table.of(Role.SCALE_INVARIANT, Role.NORMALISED)]
    if followed:
        rates = nap.effective_learning_rates(model, optimizer, weights=followed)
        found["effective_rate"] = geometric_mean(rates.values())
    if affine:
        progressed = [parameters[row.name] - float(row.part == "scale") for row in affine]  # from (1, 0)
        found["affine_drift"] = torch.cat(progressed).square().mean().sqrt().item()
    return found
