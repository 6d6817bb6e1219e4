"""A trainer begins where it is told, tallies before it updates, and refuses updates that are not finite."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nap.lab.datasets.streams import batches
from nap.lab.loops.population.continual_run import ContinualWork, Row
from nap.lab.loops.population.settings import NAP, NO_NORM, Arm
from nap.lab.loops.population.trainer import Recipe, Trainer
from nap.lab.runner import NotFinite, RunFolder, run_work
from nap.methods import Method, Training
from plain_loop import PlainLoop
from tiny_runs import (
    ARMS,
    CPU,
    DIGITS,
    TINY,
    assert_same_parameters,
    continual,
    copied,
    finished,
    on_disk_and_back,
    watched,
)

SEEDS = [0, 1, 2]


@pytest.mark.parametrize("name", ["no norm", "NaP + ReDo", "NaP + Langevin", "NaP, SGD"])
def test_making_a_learner_leaves_no_trace(name: str) -> None:
    """It takes a trial step to make the optimizer's state."""
    trainer = continual(ARMS[name]).trainer
    assert_same_parameters(trainer.parameters, trainer.initial, 0.0)
    for parameter in trainer.parameters.values():
        assert all((value == 0).all() for value in trainer.optimizer.state[parameter].values())
    assert trainer.method.state_dict() in ({}, {"updates": 0})


def test_accuracy_and_loss_are_of_the_network_before_each_update() -> None:
    trainer = continual(NO_NORM, learning_rate=1e3, batch_size=48).trainer
    index = torch.arange(48).expand(3, 1, -1)
    trainer.labels.copy_(DIGITS.labels.expand(3, -1))
    with torch.no_grad():
        losses, logits = trainer.losses(trainer.parameters, trainer.inputs(index[:, 0]), trainer.labels)
    means = trainer.train_epoch(index)
    torch.testing.assert_close(means.loss, losses)
    assert torch.equal(means.accuracy, (logits.argmax(2) == trainer.labels).double().mean(1))
    assert (trainer.train_epoch(index).loss > 100 * means.loss).all()  # and the update was made


def test_networks_of_other_shapes_compile_in_the_same_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced here as for a GPU, where alone it is used; what makes machine code of it is left out."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    for channels in (4, 6), (6, 8):
        work = continual(NAP, network="cnn", channels=channels, strategy="batched", compile_=True)
        work.step()
        assert work.trainer.recipe.compile_


def test_methods_see_the_step_s_own_batch() -> None:
    class Witness(Method):
        host_side = True

        def __init__(self) -> None:
            self.seen: list[Tensor] = []

        def after_step_(self, training: Training, inputs: Any = None) -> None:
            self.seen.append(inputs)

    run, witness = continual(NO_NORM), Witness()
    images, recipe = run.trainer.images, Recipe(1e-3)
    trainer = Trainer(
        run.trainer.skeleton, run.trainer.initial, images, recipe, method=witness, batch_size=16
    )
    index = batches(SEEDS, 1, 0, count=len(images), batch_size=16)
    trainer.train_epoch(index)
    assert torch.equal(torch.stack(witness.seen, 1), images[index])


def test_images_that_do_not_fill_a_batch_are_refused() -> None:
    trainer = continual(NO_NORM).trainer
    with pytest.raises(ValueError, match="15 images do not fill a batch of 16"):
        Trainer(trainer.skeleton, trainer.initial, trainer.images[:15], Recipe(1e-3), batch_size=16)


def when_met(task: int, epoch: int) -> Tensor:
    """The step of the epoch at which each member meets each image, (K, N)."""
    index = batches(SEEDS, task, epoch, count=len(DIGITS), batch_size=TINY.batch_size)
    steps = torch.arange(index.shape[1]).repeat_interleave(TINY.batch_size)
    return torch.empty(3, len(DIGITS), dtype=torch.int64).scatter_(1, index.flatten(1), steps.expand(3, -1))


def an_image_met_first_by(member: int, step: int, *, task: int, epoch: int) -> int:
    met = when_met(task, epoch)
    others = met[[k for k in range(3) if k != member]]
    return int(((met[member] == step) & (others > step).all(0)).nonzero()[0])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    "name",
    [
        *("no norm", "LayerNorm", "NaP, free", "NaP, joint", "L2", "shrink and perturb", "SGD"),
        *("NaP", "ReDo", "Langevin"),
    ],
)
def test_a_bad_image_stops_all_members_before_the_update_that_it_would_spoil(name: str, value: float) -> None:
    """Here it is the second step of the second epoch: one update of that epoch is made, not two."""
    arm = ARMS[name]
    run = continual(arm)
    image = an_image_met_first_by(1, step=1, task=1, epoch=1)
    notes = watched(run)
    run.step()
    run.trainer.images[image] = value
    with pytest.raises(NotFinite, match=r"the loss of member 1 is not finite at step 5;"):
        run.step()
    assert run.done == 1
    assert_same_parameters(run.trainer.parameters, after_one_update_of_epoch(run, arm, notes), 1e-10)


def after_one_update_of_epoch(run: ContinualWork, arm: Arm, notes: Any) -> dict[str, Tensor]:
    """Parameters of ordinary loops, one a member, after the whole first epoch and one step of the second."""
    found = []
    for member, seed in enumerate(SEEDS):
        plain = PlainLoop(arm, run.settings, DIGITS, seed, notes, member=member)
        labels = plain.stream.labels(seed, 1, DIGITS)
        plain.epoch_(1, 0, plain.images, labels)
        plain.epoch_(1, 1, plain.images, labels, steps=1)
        found.append(dict(plain.model.named_parameters()))
    return {name: torch.stack([of[name] for of in found]) for name in found[0]}


@pytest.mark.parametrize("name", ["no norm", "NaP, free"])
def test_one_bad_member_stops_all_and_spoils_none(name: str) -> None:
    run = continual(ARMS[name])
    run.step()
    with torch.no_grad():
        run.trainer.parameters["head.bias"][2, 4] = torch.nan
    before = copied(run.trainer.parameters)
    memory = [
        v.clone() for p in run.trainer.parameters.values() for v in run.trainer.optimizer.state[p].values()
    ]
    with pytest.raises(NotFinite, match=r"the loss of member 2 .* step 4;"):
        run.step()
    for name, p in run.trainer.parameters.items():
        torch.testing.assert_close(p.detach(), before[name], rtol=1e-15, atol=0, equal_nan=True)
    after = [v for p in run.trainer.parameters.values() for v in run.trainer.optimizer.state[p].values()]
    assert all(torch.equal(a, b) for a, b in zip(memory, after, strict=True))


def scaled_member_1(**factors: float) -> ContinualWork:
    """A run in float32 whose member 1 has some tensors multiplied."""
    run = continual(NO_NORM, dtype=torch.float32)
    for name, factor in factors.items():
        run.trainer.parameters[name.replace("_", ".")].data[1] *= factor
    return run


def test_the_tensor_whose_gradient_overflows_is_named() -> None:
    """The loss is finite: a tiny first layer and two huge ones, so that its gradient is what overflows."""
    run = scaled_member_1(body_1_weight=1e-20, body_1_bias=1e-20, body_3_weight=1e25, head_weight=1e20)
    with pytest.raises(
        NotFinite, match=r"the gradient of body\.1\.weight of member 1 is not finite at step 1;"
    ):
        run.step()


def test_a_finite_loss_is_not_blamed() -> None:
    run = scaled_member_1(head_weight=1e25)
    with pytest.raises(NotFinite, match=r"gradient"):
        run.step()


def test_a_run_that_refused_can_take_up_an_earlier_state() -> None:
    expected = finished(continual(NAP))
    run = continual(NAP)
    state, good = on_disk_and_back(run.state_dict()), run.trainer.images[5].clone()
    run.trainer.images[5] = torch.nan
    with pytest.raises(NotFinite):
        run.step()
    run.trainer.images[5] = good
    run.load_state_dict(state)
    assert finished(run) == expected


def test_a_refused_run_resumes_from_a_finite_checkpoint(tmp_path: Path) -> None:
    expected = finished(continual(NAP))
    about: dict[str, Any] = {"experiment": "fig1", "scale": "demo", "run": "nap", "config": TINY}
    often: dict[str, Any] = {"device": CPU, "checkpoint_every_seconds": 0.0, "save_share": 1e6}

    def spoil(work: Any) -> None:
        if work.done == 3:
            work.trainer.images[5] = torch.nan

    with RunFolder.open(tmp_path, **about) as folder:
        with pytest.raises(NotFinite, match=r"step 1[0-2];"):
            run_work(continual(NAP), folder, on_progress=spoil, **often)
        assert folder.manifest()[0].finished is None
        mended, rows, began = continual(NAP), list[Row](), list[int]()
        run_work(
            mended, folder, on_progress=lambda work: began.append(work.done), on_rows=rows.extend, **often
        )
    assert began[0] == 3
    assert [{key: row[key] for key in expected[-1]} for row in rows] == expected[6:]
