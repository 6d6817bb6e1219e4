"""The runs of the revival experiment: a row after every epoch, with the units that died and revived."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nap.lab.experiments.common.runs import arm_run, at_task_changes
from nap.lab.experiments.experiment import Run
from nap.lab.experiments.revival import NORMS, RevivalConfig
from nap.lab.loops.population import diagnostics
from nap.lab.loops.population.continual_run import ContinualWork, Row
from nap.lab.loops.population.settings import Arm, OptimizerState, continual


class RevivalRun(ContinualWork):
    """A row after every epoch: how many units are dead, and how many of those dead before live again."""

    _dead: Tensor | None = None

    def step(self) -> list[Row]:
        task, epoch = self.task, self.done % self.settings.epochs
        super().step()
        before, now = self._dead, diagnostics.dead_masks(self.trainer, self.trainer.inputs(self.probe)).cpu()
        before = now if before is None else before
        self._dead = now
        numbers = {
            "dead_units": now.double().mean(1),
            "revived": (before & ~now).sum(1) / before.sum(1).clamp(min=1),
            "died": (~before & now).double().mean(1),
            "accuracy": self._epochs[-1].accuracy,
        }
        lists = {name: value.tolist() for name, value in numbers.items()}
        steps = self.trainer.steps_per_epoch
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


def runs(config: RevivalConfig) -> list[Run]:
    """Optimizers × norms × treatments of the optimizer at a change of task."""
    return [run for optimizer in ("Adam", "SGD") for norm in NORMS for run in _runs(config, norm, optimizer)]


def _runs(config: RevivalConfig, norm: str, optimizer: Any) -> list[Run]:
    rate = config.learning_rate if optimizer == "Adam" else config.sgd_learning_rate
    word: Any = NORMS[norm]
    arm = Arm(f"{'no norm' if norm == 'none' else norm}, {optimizer}", norm=word, optimizer=optimizer)
    tags = {"experiment": "revival", "norm": norm, "optimizer": optimizer}

    def run(name: str, state: OptimizerState, more: dict[str, str]) -> Run:
        settings = continual(config, learning_rate=rate, optimizer_state=state)
        return arm_run(name, arm, settings, tags | more, kind=RevivalRun)

    return [run(*each) for each in at_task_changes(arm.name, config.optimizer_state)]
