"""What the integrations share: a projector that starts late, its state as JSON, mistakes, the monitor."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import nap
from nap.integrations.late import LateProjector, from_json, to_json
from nap.integrations.monitor import Monitor


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))


def converted() -> nn.Sequential:
    model = plain()
    nap.normalize_(model, torch.zeros(2, 4))
    return model


def step(model: nn.Module, optimizer: Any, seed: int = 0) -> None:
    optimizer.zero_grad()
    model(torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))).square().sum().backward()
    optimizer.step()


# --- mistakes with the core


@pytest.mark.parametrize("late_optimizer", [False, True])
def test_a_projector_built_before_conversion_is_refused(late_optimizer: bool) -> None:
    model = plain()
    projector, optimizer = nap.Projector(model), torch.optim.Adam(model.parameters())
    nap.normalize_(model, torch.zeros(2, 4))
    if late_optimizer:
        optimizer = torch.optim.Adam(model.parameters())
    words = r"0\.nap_norm\.weight \(new\).*0\.bias \(gone\).*build it after nap\.normalize_"
    with pytest.raises(ValueError, match=words):
        projector.attach(optimizer)
    assert not optimizer._optimizer_step_post_hooks


def test_a_model_converted_twice_is_as_it_was() -> None:
    model = converted()
    before, roles = {name: p.clone() for name, p in model.named_parameters()}, str(nap.weight_groups(model))
    assert nap.normalize_(model, torch.zeros(2, 4)).placements == ()
    assert_close(dict(model.named_parameters()), before, rtol=0, atol=0)
    assert str(nap.weight_groups(model)) == roles


def test_an_optimizer_that_is_not_there_yet_is_named() -> None:
    with pytest.raises(ValueError, match=r"the optimizer is None.*nap\.integrations has callbacks"):
        nap.Projector(plain()).attach(None)


# --- starting late


def test_radii_outlast_a_stop_and_go_with_the_model() -> None:
    model, late = converted(), LateProjector(every=100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    first = late.start(model, [optimizer])
    before = late.state_dict()["radii"]
    step(model, optimizer)
    late.stop()
    assert first.attached == ()
    assert late.start(model, [optimizer]) is first
    assert_close(late.state_dict()["radii"], before, rtol=0, atol=0)
    other = converted()
    assert late.start(other, [torch.optim.SGD(other.parameters(), lr=0.5)]) is not first
    assert first.attached == ()


def test_a_state_waits_for_the_start_and_survives_json() -> None:
    model = converted().double()
    first = LateProjector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    first.start(model, [optimizer])
    step(model.float(), optimizer)
    state = from_json(json.loads(json.dumps(to_json(first.state_dict()))))
    assert_close(state["radii"], first.state_dict()["radii"], rtol=0, atol=0)  # float64 as well
    assert {r.dtype for r in state["radii"].values()} == {torch.float64}
    again = LateProjector()
    again.load_state_dict(state)
    assert again.state_dict().keys() == state.keys()
    late = again.start(model, [torch.optim.SGD(model.parameters(), lr=0.5)], resumed=True)
    assert late.updates == dict.fromkeys(["0.weight", "2.weight", "4.weight"], 1)
    assert from_json(to_json(LateProjector().state_dict())) == {}


def test_a_resumed_run_without_radii_is_refused() -> None:
    model, late = converted(), LateProjector()
    with pytest.raises(ValueError, match=r"no radii, for it was written without NaPCallback.*yourself"):
        late.start(model, [torch.optim.SGD(model.parameters(), lr=0.5)], resumed=True)


# --- monitor


def test_the_monitor_measures_what_the_step_left() -> None:
    model, rows = converted(), list[dict[str, float]]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    nap.Projector(model, every=10).attach(optimizer)
    x = torch.randn(32, 4)
    monitor = Monitor(model, {"input": x}, rows.append, every=2).attach(optimizer)
    model.train()
    for seed in range(5):
        step(model, optimizer, seed)
        if len(rows) == 2:
            expected = nap.effective_learning_rates(model, optimizer)
            assert rows[-1]["nap/rate/0.weight"] == pytest.approx(expected["0.weight"])
            norm = nap.diagnostics.gradient_norm(model).item()
            assert rows[-1]["nap/norm/gradients"] == pytest.approx(norm)
            alive = nap.diagnostics.dead_units(model[:2](x)).item()
            assert rows[-1]["nap/dead/1"] == pytest.approx(alive)
            break
    assert model.training
    monitor.detach()
    for seed in range(5):
        step(model, optimizer, seed)
    assert len(rows) == 2


@pytest.mark.parametrize("fused", [False, True])
def test_the_gradients_of_a_scaler_are_logged_unscaled(fused: bool) -> None:
    norms = []
    for scale in (1.0, 64.0):
        model = converted()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        rows = list[dict[str, float]]()
        Monitor(model, torch.ones(4, 4), rows.append, every=1).attach(optimizer)
        scaler.scale(model(torch.ones(2, 4)).square().sum()).backward()
        scaler.step(optimizer)
        norms.append(rows[-1]["nap/norm/gradients"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_a_wrong_probe_is_an_error_before_training() -> None:
    model = converted()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        Monitor(model, torch.ones(4, 5), print).attach(torch.optim.Adam(model.parameters()))
