"""Continual runs that take a tenth of a second: 48 images of digits, 12 updates, every arm of the lab."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from nap.lab.datasets.images import load
from nap.lab.experiments import fig1 as fig1_config
from nap.lab.experiments import fig4
from nap.lab.loops.population.continual_run import ArmRun, ContinualWork, Row
from nap.lab.loops.population.settings import Arm, Continual
from nap.lab.loops.population.trainer import EpochMeans, Trainer
from nap.lab.runner import Work
from nap.methods import Training

CPU = torch.device("cpu")
DIGITS = load("digits", count=48)
TINY = Continual(
    data="digits",
    images=48,
    width=12,
    depth=2,
    channels=(4, 4),
    tasks=2,
    epochs=2,
    batch_size=16,
    learning_rate=1e-2,
    probe=16,
    seeds=3,
    # strong methods, so that each leaves a mark within 12 updates
    l2=1e-2,
    l2_init=1e-2,
    redo_tau=0.3,
    redo_every=5,  # never in the last step of an epoch, after which a run projects once more
    noise=0.3,
)
FIG1_ARMS = {arm.name: arm for arm in fig1_config.PAPERS_ARMS}
METHOD_ARMS = {  # the first two are "no norm" and "NaP" of Figure 1
    run.config.arm.name: run.config.arm for run in fig4.EXPERIMENT.runs(fig4.EXPERIMENT.scales["demo"])
}
OTHER_ARMS = {
    arm.name: arm
    for arm in (
        Arm("SGD", optimizer="SGD"),
        Arm("NaP, SGD", norm="layer", project="step", optimizer="SGD"),
        Arm("NaP, joint", norm="rms", project="step", affine="joint", output="free"),
        Arm("NaP, free", norm="layer", project="step", affine="free"),
    )
}
ARMS = FIG1_ARMS | {n: arm for n, arm in METHOD_ARMS.items() if arm.method != "none"} | OTHER_ARMS


def continual(arm: Arm, *, seeds: Sequence[int] = (0, 1, 2), **changes: Any) -> ContinualWork:
    """A run of these seeds in float64; `changes` are of the tiny settings, or options of the run."""
    options = {key: changes.pop(key) for key in ("dtype", "strategy", "compile_") if key in changes}
    run = ArmRun(arm, replace(TINY, **changes))
    return ContinualWork(run, DIGITS, CPU, seeds=seeds, **{"dtype": torch.float64, **options})


def finished(work: Work) -> list[Row]:
    """The rows of all that is left of a run."""
    rows: list[Row] = []
    while work.done < work.total:
        rows += work.step()
    return rows


def copied(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in parameters.items()}


def on_disk_and_back(state: dict[str, Any]) -> dict[str, Any]:
    """A state as a checkpoint holds it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def module_of(trainer: Trainer, member: int) -> nn.Module:
    """One member as an ordinary module."""
    model = deepcopy(trainer.skeleton)
    model.load_state_dict({name: p[member] for name, p in trainer.parameters.items()}, strict=False)
    return model


def assert_same_numbers(found: Iterable[Row], expected: Iterable[Row], tolerance: float) -> None:
    """Rows agree in everything; numbers to `tolerance`, absolute below 1 and relative above."""
    for row, other in zip(found, expected, strict=True):
        assert row.keys() == other.keys()
        for name, value in other.items():
            if isinstance(value, float):
                error = abs(row[name] - value) / max(1.0, abs(value))
                assert error <= tolerance, f"{name} of {describe(row)}: {row[name]} is not {value}"
            else:
                assert row[name] == value, f"{name} of {describe(row)}: {row[name]} is not {value}"


def assert_same_parameters(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float
) -> None:
    """Each tensor is within `tolerance` of the other's norm."""
    assert found.keys() == expected.keys()
    for name, p in found.items():
        gap, size = (p - expected[name]).norm().item(), expected[name].norm().item()
        assert gap <= tolerance * size, f"{name}: differs by {gap:.1e} of {size:.1e}"


def describe(row: Row) -> str:
    return ", ".join(f"{key} {row[key]}" for key in ("arm", "seed", "task", "step") if key in row)


@dataclass
class Notes:
    """What a run did that its rows do not say, in order."""

    starts: list[dict[str, Tensor]] = field(default_factory=list)  # parameters before each epoch
    memories: list[list[Tensor]] = field(default_factory=list)  # the optimizer's state before each epoch
    labels: list[Tensor] = field(default_factory=list)
    draws: list[list[int]] = field(default_factory=list)  # seeds of the members' generators in each epoch
    draws_at_changes: list[list[int]] = field(default_factory=list)


def watched(run: ContinualWork) -> Notes:
    """Notes that fill as the run goes on."""
    notes, trainer = Notes(), run.trainer
    learn, change = trainer.train_epoch, trainer.method.at_task_change_

    def noted_learn(index: Tensor, **options: Any) -> EpochMeans:
        notes.starts.append(copied(trainer.parameters))
        states = [trainer.optimizer.state[p] for p in trainer.parameters.values()]
        notes.memories.append([value.clone() for state in states for value in state.values()])
        notes.labels.append(trainer.labels.clone())
        notes.draws.append([generator.initial_seed() for generator in trainer.generators])
        return learn(index, **options)

    def noted_change(training: Training) -> None:
        notes.draws_at_changes.append([generator.initial_seed() for generator in trainer.generators])
        change(training)

    trainer.train_epoch = noted_learn  # type: ignore[method-assign]
    trainer.method.at_task_change_ = noted_change  # type: ignore[method-assign]
    return notes
