"""A projector notices that weights move though the optimizer it follows takes no steps, and says so."""

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nap
from nap.projection.misuse import MisuseWarning

X = torch.linspace(-2, 2, 24).sin().reshape(3, 8)


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimisation as it is usually written: up to a worse place, and a step from there."""

    def __init__(self, params: Any, base: Any, rho: float = 0.05, **options: Any) -> None:
        super().__init__(params, {"rho": rho, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["up"] = up = p.grad * (group["rho"] / (p.grad.norm() + 1e-12))
                p.add_(up)
                p.grad = None

    @torch.no_grad()
    def second_step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(self.state[p]["up"])
        self.base_optimizer.step()
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any]) -> None:  # type: ignore[override]
        closure = torch.enable_grad()(closure)
        closure()
        self.first_step()
        closure()
        self.second_step()


def small() -> tuple[nn.Module, SAM]:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    nap.normalize_(model, X)
    return model, SAM(model.parameters(), torch.optim.SGD, lr=0.5)


def backward(model: nn.Module) -> Tensor:
    loss = model(X).square().mean()
    loss.backward()
    return loss


def train_in_halves(model: nn.Module, optimizer: SAM, steps: int, after: Callable[[], Any] = int) -> None:
    for _ in range(steps):
        backward(model)
        optimizer.first_step()
        backward(model)
        optimizer.second_step()
        after()


def test_steps_in_two_halves_are_noticed_once_and_the_way_out_works() -> None:
    model, optimizer = small()
    projector = nap.Projector(model).attach(optimizer)
    message = r"0\.weight moved .* SAM\.step was not called .*attach\(optimizer\.base_optimizer\)"
    with pytest.warns(MisuseWarning, match=message) as seen:
        train_in_halves(model, optimizer, 6)
    assert len(seen) == 1
    assert set(projector.updates.values()) == {0}
    projector.detach()
    projector.attach(optimizer.base_optimizer)
    train_in_halves(model, optimizer, 6)
    assert set(projector.updates.values()) == {6}
    assert projector.norm_ratios() == pytest.approx(dict.fromkeys(projector.norm_ratios(), 1.0), abs=1e-6)


def test_another_optimizer_in_the_place_of_the_attached_one_is_noticed() -> None:
    model, first = small()
    nap.Projector(model).attach(first.base_optimizer)
    second = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        for _ in range(8):
            backward(model)
            second.step()

    with pytest.warns(MisuseWarning, match=r"another optimizer moves them") as seen:
        train()
    assert len(seen) == 1


def test_a_step_with_a_closure_is_followed() -> None:
    model, optimizer = small()
    projector = nap.Projector(model).attach(optimizer)
    for _ in range(6):
        optimizer.step(lambda: backward(model))
    assert set(projector.updates.values()) == {6}


def test_projecting_by_hand_after_each_update_is_no_reason_to_warn() -> None:
    model, optimizer = small()
    projector = nap.Projector(model).attach(optimizer)
    train_in_halves(model, optimizer, 6, projector.project_)
    assert projector.norm_ratios() == pytest.approx(dict.fromkeys(projector.norm_ratios(), 1.0), abs=1e-6)


def test_usual_loops_are_no_reason_to_warn() -> None:
    model, _ = small()
    optimizer = torch.optim.AdamW(model.parameters())
    projector = nap.Projector(model, every=3).attach(optimizer)
    kept = copy.deepcopy(model.state_dict())
    for k in range(12):
        for _ in range(6 if k % 3 else 1):  # gradients are gathered
            backward(model)
        if k % 4 != 3:  # as if a scaler had skipped the step
            optimizer.step()
        optimizer.zero_grad()
        if k % 2:
            model.load_state_dict(kept)
    assert set(projector.updates.values()) == {9}


def test_a_model_that_was_moved_is_watched_still() -> None:
    model, optimizer = small()
    projector = nap.Projector(model).attach(optimizer.base_optimizer)
    train_in_halves(model, optimizer, 1)
    projector.detach()
    projector.attach(optimizer)
    with pytest.warns(UserWarning, match="moved before each of 4 backward passes"):
        train_in_halves(model, optimizer, 3)


def test_copies_of_the_model_are_not_watched() -> None:
    model, optimizer = small()
    nap.Projector(model).attach(optimizer)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            train_in_halves(twin, SAM(twin.parameters(), torch.optim.SGD, lr=0.1), 4)


@pytest.mark.parametrize("limit", [{"update": "relative"}, {"brake": 0.5}], ids=["relative", "brake"])
def test_limited_updates_that_go_unseen_are_an_error_and_the_way_out_works(limit: dict[str, Any]) -> None:
    model, optimizer = small()
    projector = nap.Projector(model, **limit).attach(optimizer)
    for after in (int, projector.project_):  # projecting by hand limits no update
        with pytest.raises(
            ValueError, match=r"SAM\.step was not called .*attach\(optimizer\.base_optimizer\)"
        ):
            train_in_halves(model, optimizer, 6, after)
    assert set(projector.updates.values()) == {0}
    projector.detach()
    projector.attach(optimizer.base_optimizer)
    train_in_halves(model, optimizer, 6)
    assert set(projector.updates.values()) == {6}


def test_a_limited_step_with_a_closure_is_seen_as_a_whole() -> None:
    """SAM goes up and comes back: what counts is where the weights are before and after."""
    model, optimizer = small()
    optimizer.param_groups[0]["lr"] = 0.02
    projector = nap.Projector(model, update="relative").attach(optimizer)
    for _ in range(6):
        weight = model.get_parameter("0.weight")
        before = weight.detach().clone()
        optimizer.step(lambda: backward(model))
        assert ((weight - before).norm() / before.norm()).item() == pytest.approx(0.02, rel=0.05)
    assert projector.norm_ratios() == pytest.approx(dict.fromkeys(projector.norm_ratios(), 1.0), abs=1e-6)


def test_a_step_that_raised_leaves_nothing_behind() -> None:
    def fails() -> None:
        raise RuntimeError("no batch")

    runs = []
    for failures in (0, 3):
        torch.manual_seed(0)
        model, _ = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        nap.Projector(model, update="relative").attach(optimizer)
        for _ in range(4):
            for _ in range(failures):
                with pytest.raises(RuntimeError, match="no batch"):
                    optimizer.step(fails)
            optimizer.zero_grad()
            backward(model)
            optimizer.step()
        runs.append([p.detach() for p in model.parameters()])
    torch.testing.assert_close(*runs, rtol=0, atol=0)


def test_a_step_around_the_step_that_it_extends_is_limited_as_a_whole() -> None:
    class Longer(torch.optim.SGD):
        @torch.no_grad()
        def step(self) -> None:  # type: ignore[override]
            super().step()  # with hooks of its own, if a plain SGD was ever made
            for p in self.param_groups[0]["params"]:
                p.sub_(0.5 * p.grad)

    model, _ = small()
    torch.optim.SGD(model.parameters(), lr=0.02)
    optimizer = Longer(model.parameters(), lr=0.02)
    projector = nap.Projector(model, update="relative").attach(optimizer)
    weight = model.get_parameter("0.weight")
    before = weight.detach().clone()
    backward(model)
    optimizer.step()
    assert ((weight - before).norm() / before.norm()).item() == pytest.approx(0.02, rel=0.05)
    assert projector.norm_ratios() == pytest.approx(dict.fromkeys(projector.norm_ratios(), 1.0), abs=1e-6)
