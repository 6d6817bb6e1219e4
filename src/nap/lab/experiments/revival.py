"""Dead units of an MLP after sudden changes of its task: who comes back (§3.1, Appendix C.4)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from nap.lab.experiments.arm_runs import arm_run, at_task_changes
from nap.lab.experiments.experiment import Experiment, Run
from nap.lab.loops.population import measure
from nap.lab.loops.population.arms import Arm
from nap.lab.loops.population.continual import ContinualRun, Row
from nap.lab.loops.population.settings import OneNetwork, OptimizerState, TaskChanges, continual
from nap.validation import check_range

NORMS = {"none": "none", "LayerNorm": "layer", "RMSNorm": "rms"}


@dataclass(frozen=True)
class Revival(OneNetwork, TaskChanges):
    """Settings of the revival experiment."""

    sgd_learning_rate: float = 0.1
    """learning rate of the arms that use SGD"""

    def __post_init__(self) -> None:
        OneNetwork.__post_init__(self)
        TaskChanges.__post_init__(self)
        check_range(self, "sgd_learning_rate", self.sgd_learning_rate, 1e-12, 1e3)


class RevivalRun(ContinualRun):
    """A row after every epoch: how many units are dead, and how many of those dead before live again."""

    _dead: Tensor | None = None

    def step(self) -> list[Row]:
        task, epoch = self.task, self.done % self.settings.epochs
        super().step()
        before, now = self._dead, measure.dead_masks(self.learner, self.learner.inputs(self.probe)).cpu()
        before = now if before is None else before
        self._dead = now
        numbers = {
            "dead_units": now.double().mean(1),
            "revived": (before & ~now).sum(1) / before.sum(1).clamp(min=1),
            "died": (~before & now).double().mean(1),
            "accuracy": self._tallies[-1].accuracy,
        }
        lists = {name: value.tolist() for name, value in numbers.items()}
        steps = self.learner.steps_per_epoch
        common = {"step": self.done * steps, "step_in_task": (epoch + 1) * steps}
        return [
            {"arm": self.arm.name, **self.tags, "seed": seed, "task": task, **common}
            | {name: of[k] for name, of in lists.items()}
            for k, seed in enumerate(self.seeds)
        ]

    def _rows(self, task: int) -> list[Row]:
        return []

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"dead": self._dead}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._dead = state["dead"]


def runs(config: Revival) -> list[Run]:
    """Optimizers × norms × treatments of the optimizer at a change of task."""
    return [run for optimizer in ("Adam", "SGD") for norm in NORMS for run in _runs(config, norm, optimizer)]


def _runs(config: Revival, norm: str, optimizer: Any) -> list[Run]:
    rate = config.learning_rate if optimizer == "Adam" else config.sgd_learning_rate
    word: Any = NORMS[norm]
    arm = Arm(f"{'no norm' if norm == 'none' else norm}, {optimizer}", norm=word, optimizer=optimizer)
    tags = {"experiment": "revival", "norm": norm, "optimizer": optimizer}

    def run(name: str, state: OptimizerState, more: dict[str, str]) -> Run:
        settings = continual(config, learning_rate=rate, optimizer_state=state)
        return arm_run(name, arm, settings, tags | more, kind=RevivalRun)

    return [run(*each) for each in at_task_changes(arm.name, config.optimizer_state)]


PAPER = Revival(data="mnist", images=0, width=512, depth=2, tasks=20, epochs=10, learning_rate=1e-3)
SMALL = replace(PAPER, data="cifar10", images=2048, tasks=20, epochs=20)
DEMO = replace(SMALL, data="digits", images=1024, width=128, batch_size=64, tasks=10, epochs=15, seeds=5)

EXPERIMENT = Experiment(
    name="revival",
    title="dead units after task changes (Appendix C.4)",
    shows="With a norm in front of the nonlinearity, units that died at a change of task come back to life.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    runs=runs,
    needs={"demo": "digits", "small": "cifar10", "paper": "mnist"},
    folder="revival",
)
