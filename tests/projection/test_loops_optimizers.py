"""Optimizers of every kind under one projector, copies of them, and float32 copies of 16-bit weights."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from lightning_runs import Classifier, data, trainer
from nap.integrations.lightning import NaPCallback
from nap.projection.project import Projector
from projection_nets import net, sgd, step, worst

# --- kinds


def test_muon_for_matrices_and_adam_for_the_rest() -> None:
    model = net()
    matrices = [p for p in model.parameters() if p.ndim == 2]
    muon = torch.optim.Muon(matrices, lr=0.1)
    adam = torch.optim.AdamW([p for p in model.parameters() if p.ndim != 2], lr=0.01)
    projector = Projector(model).attach(muon, adam)  # the second holds nothing that is projected
    for seed in range(4):
        step(model, muon, seed)
        adam.step()
        assert worst(projector) <= 1e-6
    assert set(projector.updates.values()) == {4}


def test_a_step_with_a_closure_is_one_update() -> None:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    projector = Projector(model).attach(optimizer)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (model(torch.ones(4, 6)) - 1).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
        assert worst(projector) <= 1e-6
    assert set(projector.updates.values()) == {2}


def test_schedules_and_clipping_leave_the_projection_last() -> None:
    model = net()
    optimizer = sgd(model.parameters())
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    optimizer.register_step_post_hook(lambda *_: None)  # hooks of others are no projectors
    projector = Projector(model).attach(optimizer)
    for _ in range(3):
        (10 * model(torch.randn(8, 6))).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        assert worst(projector) <= 1e-6


# --- copies: hooks are not part of an optimizer's state, so one line attaches again


def copied(whole: Any, way: str) -> Any:
    if way == "deepcopy":
        return copy.deepcopy(whole)
    file = io.BytesIO()
    torch.save(whole, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_a_copied_optimizer_goes_on_after_one_line(way: str) -> None:
    model = net()
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.05)
    projector = Projector(model, every=2).attach(optimizer)
    for seed in range(3):
        step(model, optimizer, seed)
    other, second, beside = copied((model, optimizer, projector), way)
    assert beside.attached == ()  # which tells that there is something to do
    assert not second._optimizer_step_post_hooks
    beside.attach(second)
    for seed in range(3, 6):
        step(model, optimizer, seed)
        step(other, second, seed)
    assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert beside.updates == projector.updates


def test_an_optimizer_that_loads_a_state_keeps_its_projector() -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    projector = Projector(model).attach(optimizer)
    step(model, optimizer)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(model, optimizer)
    assert projector.attached == (optimizer,)
    assert worst(projector) <= 1e-6


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:The number of training batches")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_a_copied_callback_attaches_by_itself(tmp_path: Any) -> None:
    model, callback = Classifier(), NaPCallback(every=4)
    trainer(tmp_path, callback).fit(model, data())
    other, second = copy.deepcopy((model, callback))
    trainer(tmp_path, second).fit(other, data())
    assert callback.projector is not None
    assert second.projector is not None
    assert_close(second.state_dict()["radii"], callback.state_dict()["radii"], rtol=0, atol=0)
    assert set(second.projector.updates.values()) == {12}
    assert set(callback.projector.updates.values()) == {6}
    assert worst(second.projector) <= 1e-6  # the twelfth is the fourth of four


# --- 16 bits


def test_sixteen_bits_with_a_float32_copy_that_is_trained() -> None:
    master = net()
    model = copy.deepcopy(master).to(torch.bfloat16)
    optimizer = torch.optim.Adam(master.parameters(), lr=0.05)
    with pytest.raises(ValueError, match=r"holds no parameter of the plan.*or the Projector on the copy"):
        Projector(model).attach(optimizer)
    projector = Projector(master).attach(optimizer)
    for seed in range(20):
        x = torch.randn(16, 6, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)
        (model(x) - 1).square().mean().backward()
        for own, coarse in zip(master.parameters(), model.parameters(), strict=True):
            own.grad, coarse.grad = coarse.grad.float(), None
        optimizer.step()
        for own, coarse in zip(master.parameters(), model.parameters(), strict=True):
            coarse.data.copy_(own)
        assert worst(projector) <= 1e-6
    ratios = [model.get_parameter(name).float().norm() / r for name, r in projector._radii.items()]
    assert max(abs(ratio.item() - 1) for ratio in ratios) < 4e-3


def test_autocast_keeps_float32_weights() -> None:
    model = net()
    optimizer = sgd(model.parameters())
    projector = Projector(model).attach(optimizer)
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(8, 6)).square().mean()
        loss.backward()
        optimizer.step()
        assert worst(projector) <= 1e-6
