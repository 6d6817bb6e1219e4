"""A continual run is an ordinary loop, keeps what its arm promises, and resumes after any epoch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from nap.lab.loops.population.continual_run import ContinualWork
from nap.lab.loops.population.settings import FRESH, FRESH_NO_NORM, LAYER_NORM, NAP, RESCALED, Arm
from nap.projection.sphere import norms_of
from plain_loop import PlainLoop
from tiny_runs import (
    ARMS,
    DIGITS,
    METHOD_ARMS,
    assert_same_numbers,
    assert_same_parameters,
    continual,
    finished,
    on_disk_and_back,
    watched,
)

SEED = 7
NAP_ARMS = {name: arm for name, arm in ARMS.items() if arm.project == "step"}


def assert_run_is_the_plain_loop(arm: Arm, **changes: Any) -> None:
    run = continual(arm, seeds=[SEED], **changes)
    notes = watched(run)
    rows = finished(run)
    plain = PlainLoop(arm, run.settings, DIGITS, SEED, notes)
    assert_same_numbers(rows, plain.rows(), 1e-10)
    ours = {name: p[0] for name, p in run.trainer.parameters.items()}
    assert_same_parameters(ours, dict(plain.model.named_parameters()), 1e-10)


@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("arm", ARMS.values(), ids=ARMS)
def test_a_run_is_an_ordinary_loop(arm: Arm, network: str) -> None:
    """In parameters after two tasks, and in every number of its rows, by `nap.diagnostics` on a module."""
    assert_run_is_the_plain_loop(arm, network=network)


@pytest.mark.parametrize("stream", ["permuted labels", "permuted pixels"])
def test_a_run_is_an_ordinary_loop_in_every_stream(stream: str) -> None:
    assert_run_is_the_plain_loop(NAP, stream=stream)


@pytest.mark.parametrize("state", ["keep", "reset"])
@pytest.mark.parametrize("arm", [LAYER_NORM, NAP, FRESH], ids=lambda arm: arm.name)
def test_a_run_is_an_ordinary_loop_that_keeps_or_resets_its_optimizer(arm: Arm, state: str) -> None:
    assert_run_is_the_plain_loop(arm, optimizer_state=state, tasks=3)


@pytest.mark.parametrize("arm", [NAP, FRESH], ids=lambda arm: arm.name)
def test_resetting_the_optimizer_makes_a_difference(arm: Arm) -> None:
    """Else the test above would pass with a setting that nobody reads."""
    kept, reset = (finished(continual(arm, optimizer_state=state)) for state in ("keep", "reset"))
    first = [row for row in kept if row["task"] == 1]
    assert first == [row for row in reset if row["task"] == 1]
    assert kept != reset


@pytest.mark.parametrize("name", [name for name, arm in METHOD_ARMS.items() if arm.method != "none"])
def test_every_method_leaves_its_mark(name: str) -> None:
    """Else agreement with a loop that does nothing would prove nothing."""
    method = METHOD_ARMS[name]
    plain = replace(method, method="none")
    runs = [continual(arm, seeds=[0]) for arm in (method, plain)]
    for run in runs:
        finished(run)
    ours, theirs = (torch.cat([p.flatten() for p in run.trainer.parameters.values()]) for run in runs)
    assert (ours - theirs).norm() > 1e-3 * theirs.norm()


def departures(run: ContinualWork, parameters: dict[str, Tensor]) -> Tensor:
    """How far weights are from their radii, relatively: every weight of every member."""
    assert run.projector is not None
    ratios = [norms_of(parameters[name], stacked=1) / rho for name, rho in run.projector.radii.items()]
    return (torch.stack([ratio.flatten() for ratio in ratios]) - 1).abs()


@pytest.mark.parametrize("arm", NAP_ARMS.values(), ids=NAP_ARMS)
def test_under_nap_weights_keep_their_first_norms(arm: Arm) -> None:
    assert_weights_keep_their_first_norms(arm, torch.float64, 1e-12)


@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_under_nap_weights_keep_their_first_norms_in_single_precision(network: str) -> None:
    assert_weights_keep_their_first_norms(NAP, torch.float32, 1e-6, network=network, tasks=5)


def test_under_nap_weights_are_at_their_first_norms_when_redo_ends_an_epoch() -> None:
    assert_weights_keep_their_first_norms(METHOD_ARMS["NaP + ReDo"], torch.float64, 1e-12, redo_every=3)


def assert_weights_keep_their_first_norms(
    arm: Arm, dtype: torch.dtype, tolerance: float, **changes: Any
) -> None:
    run = continual(arm, dtype=dtype, **changes)
    assert run.projector is not None
    assert ("head.weight" in run.projector.radii) == (arm.output == "project")
    for name, rho in run.projector.radii.items():
        assert torch.equal(rho, norms_of(run.trainer.initial[name], stacked=1))
    while run.done < run.total:
        run.step()
        assert departures(run, run.trainer.parameters).max() <= tolerance


def test_rescaled_weights_are_back_at_their_first_norms_when_a_task_starts() -> None:
    run = continual(RESCALED, tasks=3)
    notes = watched(run)
    finished(run)
    at_task_starts = [departures(run, start).max() for start in notes.starts[:: run.settings.epochs]]
    within_tasks = [departures(run, start).min() for start in notes.starts[1 :: run.settings.epochs]]
    assert max(at_task_starts) <= 1e-12
    assert min(within_tasks) > 1e-4


def test_without_projection_norms_grow() -> None:
    run = continual(LAYER_NORM)
    finished(run)
    for name in ("body.1.weight", "body.3.weight"):
        assert (run.trainer.parameters[name].norm() > 1.001 * run.trainer.initial[name].norm()).all()


@pytest.mark.parametrize("arm", [FRESH, FRESH_NO_NORM], ids=lambda arm: arm.name)
def test_a_fresh_arm_starts_every_task_from_nothing_it_learnt(arm: Arm) -> None:
    slow, fast = (continual(arm, tasks=3, learning_rate=lr) for lr in (1e-3, 1e-1))
    notes = [watched(run) for run in (slow, fast)]
    for run in (slow, fast):
        finished(run)
    starts = notes[0].starts[::2]
    assert_same_parameters(starts[0], slow.trainer.initial, 0.0)
    for start, other in zip(starts, notes[1].starts[::2], strict=True):
        assert_same_parameters(start, other, 0.0)  # whatever was learnt before
        bound = start["body.1.weight"][0, 0].numel() ** -0.5
        assert start["body.1.weight"].abs().max() <= bound  # torch's initialisation of a Linear
        assert start["body.1.weight"].abs().max() > 0.95 * bound
    firsts = torch.cat([start["body.1.weight"].flatten(1) for start in starts])
    assert torch.pdist(firsts).min() > 1  # of each task and member another one
    for memory in notes[0].memories[::2]:
        assert all((value == 0).all() for value in memory)
    assert any((value != 0).any() for value in notes[0].memories[1])


@pytest.mark.parametrize("stream", ["random labels", "permuted labels"])
def test_labels_change_with_the_task_and_only_then(stream: str) -> None:
    run = continual(NAP, stream=stream, tasks=3)
    notes = watched(run)
    finished(run)
    for first, second in zip(notes.labels[::2], notes.labels[1::2], strict=True):
        assert torch.equal(first, second)
    lines = torch.cat(notes.labels[::2])  # tasks × members
    alike = (lines[:, None] == lines[None]).double().mean(2)
    assert (alike - torch.eye(len(lines))).max() < 0.5


def test_pixels_change_with_the_task_and_labels_stay() -> None:
    run = continual(NAP, stream="permuted pixels")
    notes, orders = watched(run), []
    while run.done < run.total:
        run.step()
        assert run.trainer.pixel_order is not None
        orders.append(run.trainer.pixel_order.clone())
    assert all(torch.equal(of_task, DIGITS.labels.expand(3, -1)) for of_task in notes.labels)
    assert torch.equal(orders[0], orders[1])
    assert (orders[0] != orders[2]).double().mean() > 0.9
    assert (orders[0][0] != orders[0][1]).double().mean() > 0.9


def assert_resumes_after_any_epoch(arm: Arm, **changes: Any) -> None:
    """One run unbroken; another that is laid down after each epoch and taken up by a new process."""
    unbroken = continual(arm, dtype=torch.float32, **changes)
    expected = finished(unbroken)
    run, rows = continual(arm, dtype=torch.float32, **changes), []
    while run.done < run.total:
        rows += run.step()
        state = on_disk_and_back(run.state_dict())
        run = continual(arm, dtype=torch.float32, **changes)
        run.load_state_dict(state)
    assert rows == expected
    assert_same_parameters(run.trainer.parameters, unbroken.trainer.parameters, 0.0)


@pytest.mark.parametrize("arm", ARMS.values(), ids=ARMS)
def test_a_run_resumes_after_any_epoch_bit_for_bit(arm: Arm) -> None:
    assert_resumes_after_any_epoch(arm)


@pytest.mark.parametrize("name", ["LayerNorm, rescaled each task", "fresh", "NaP + ReDo"])
def test_a_convolutional_run_resumes_bit_for_bit(name: str) -> None:
    assert_resumes_after_any_epoch(ARMS[name], network="cnn")


def test_a_run_on_permuted_pixels_resumes_bit_for_bit() -> None:
    assert_resumes_after_any_epoch(NAP, stream="permuted pixels")


def test_radii_come_from_the_checkpoint_not_from_the_weights_of_the_day() -> None:
    run = continual(NAP)
    run.step()
    state = on_disk_and_back(run.state_dict())
    state["radii"]["body.1.weight"] *= 2
    resumed = continual(NAP)
    resumed.load_state_dict(state)
    resumed.step()
    ratio = (
        resumed.trainer.parameters["body.1.weight"].norm() / run.trainer.parameters["body.1.weight"].norm()
    )
    assert abs(ratio - 2) < 1e-12


def test_no_random_numbers_are_used_twice() -> None:
    """Not by two members, tasks or epochs, and not at a change of task and in an epoch."""
    run = continual(METHOD_ARMS["shrink and perturb"], tasks=3)
    notes = watched(run)
    finished(run)
    seeds = [seed for members in notes.draws + notes.draws_at_changes for seed in members]
    assert len(set(seeds)) == len(seeds) == 3 * (6 + 2)
