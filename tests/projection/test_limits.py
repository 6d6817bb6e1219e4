"""`Projector(update="relative")` and `Projector(brake=...)`: one contract for every optimizer."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import nap
from limited_runs import LR, learn, limited_run, weights
from nap.conversion.placement import Plan
from nap.projection.project import Projector
from nap.rates.relative import UpdateRatios, relative_steps
from nap.weights import PLAN_ATTRIBUTE, Role, Weight, WeightTable
from optimizers import KINDS, Lion, Shampoo
from projection_nets import F64, net, step, traced, worst


def angle(a: Tensor, b: Tensor) -> float:
    a, b = a / a.norm(), b / b.norm()
    return 2 * math.atan2((a - b).norm().item(), (a + b).norm().item())


@pytest.mark.parametrize("kind", KINDS)
def test_each_step_turns_a_weight_by_the_closed_form_and_moves_all_else_as_it_is(kind: str) -> None:
    model, optimizers, projector = limited_run(kind, range(3), update="relative")
    before, twin = weights(model), copy.deepcopy(model)
    free = KINDS[kind](twin, LR)
    for own, other in zip(optimizers, free, strict=True):
        other.load_state_dict(copy.deepcopy(own.state_dict()))
    learn(model, optimizers, range(3, 4))
    learn(twin, free, range(3, 4))
    after, unlimited = weights(model), weights(twin)
    for name in after:
        if name not in projector.norm_ratios():
            assert_close(after[name], unlimited[name], rtol=0, atol=0)
            continue
        theta = angle(before[name], unlimited[name] - before[name])
        expected = math.atan2(LR * math.sin(theta), 1 + LR * math.cos(theta))
        assert angle(before[name], after[name]) == pytest.approx(expected, rel=1e-9)
    assert worst(projector) <= 1e-14
    assert set(projector.updates.values()) == {4}


@pytest.mark.parametrize("kind", KINDS)
def test_updates_ten_times_as_long_lead_to_the_same_weights(kind: str) -> None:
    model, _, _ = limited_run(kind, range(3), update="relative")
    louder, _, _ = limited_run(kind, range(3), update="relative", louder=10.0)
    assert_close(weights(louder), weights(model), rtol=1e-9, atol=1e-9)
    free, _, _ = limited_run(kind, range(3))
    loud_and_free, _, _ = limited_run(kind, range(3), louder=10.0)
    assert (free.get_parameter("0.weight") - loud_and_free.get_parameter("0.weight")).norm() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_a_brake_of_one_projects_and_of_zero_does_nothing(kind: str) -> None:
    projected, _, _ = limited_run(kind, range(6))
    assert_close(weights(limited_run(kind, range(6), brake=1)[0]), weights(projected), rtol=0, atol=0)
    nearly, _, projector = limited_run(kind, range(6), brake=1 - 1e-12)
    assert_close(weights(nearly), weights(projected), rtol=1e-9, atol=1e-9)
    assert worst(projector) <= 1e-11
    free = net().double()
    learn(free, KINDS[kind](free, LR), range(6))
    assert_close(weights(limited_run(kind, range(6), brake=0)[0]), weights(free), rtol=0, atol=0)


def test_a_brake_slows_the_growth_of_norms() -> None:
    grown = [
        max(limited_run("AdamW", range(30), brake=b)[2].norm_ratios().values()) for b in (0.0, 0.5, 0.9, 1.0)
    ]
    assert grown[0] > 1.05
    assert grown == sorted(grown, reverse=True)
    assert grown[2] - 1 < 0.25 * (grown[0] - 1)


def test_a_schedule_is_one_of_relative_steps_and_they_are_reported_and_measured() -> None:
    model = net().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.04)
    Projector(model, update="relative").attach(optimizer)
    schedule = nap.schedules.linear(optimizer, total_steps=10, end_value=0.0)
    ratios = UpdateRatios(model, every=1).attach(optimizer)
    for seed in range(10):
        rate = optimizer.param_groups[0]["lr"]
        reported = nap.effective_learning_rates(model, optimizer)
        assert reported == pytest.approx(dict.fromkeys(reported, rate))
        assert relative_steps(model, optimizer) == pytest.approx(reported)
        assert nap.global_effective_learning_rate(model, optimizer) == pytest.approx(rate)
        step(model, optimizer, seed)
        assert ratios.last == pytest.approx(reported, rel=0.05)  # a chord, with a radial part
        schedule.step()


def test_what_has_no_radius_is_reported_at_the_rate_of_its_own() -> None:
    model = traced(net())
    optimizer = Lion(model.parameters(), lr=LR, weight_decay=0.0)
    Projector(model, update="relative", output="free").attach(optimizer)
    head = model.get_parameter("6.weight")
    rates = nap.effective_learning_rates(model, optimizer)
    assert rates == pytest.approx({"0.weight": LR, "3.weight": LR, "6.weight": LR / head.norm().item()})
    steps = relative_steps(model, optimizer)
    assert steps["0.weight"] == pytest.approx(LR)
    assert steps["6.weight"] == pytest.approx(LR / head.norm().item() * head.numel() ** 0.5)
    with pytest.raises(ValueError, match=r"6\.weight.*other weights relative ones.*no single rate"):
        nap.global_effective_learning_rate(model, optimizer)


def test_an_optimizer_that_nobody_knows_needs_no_explanation_where_all_steps_are_relative() -> None:
    model = net()
    optimizer = Shampoo(model.parameters(), lr=LR)
    with pytest.raises(ValueError, match="Shampoo is not an optimizer known here"):
        nap.effective_learning_rates(model, optimizer)
    Projector(model, update="relative").attach(optimizer)
    assert list(nap.effective_learning_rates(model, optimizer).values()) == pytest.approx([LR] * 3)


def test_a_weight_of_zeros_grows_by_steps_of_its_rate_times_the_radius() -> None:
    model: Any = nn.Sequential(nn.Linear(6, 8, bias=False), nn.LayerNorm(8), nn.Linear(8, 4, bias=False))
    nn.init.zeros_(model[2].weight)
    model = model.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    projector = Projector(model, update="relative").attach(optimizer)
    radius = {row.name: row.radius for row in projector.plan.rows}["2.weight"] or math.nan
    assert projector.plan.names("grow") == ["2.weight"]
    step(model, optimizer)
    assert model[2].weight.norm().item() == pytest.approx(LR * radius)
    for seed in range(1, 200):
        step(model, optimizer, seed)
    assert projector.norm_ratios() == pytest.approx({"0.weight": 1.0, "2.weight": 1.0}, abs=1e-3)


def test_stacked_members_take_the_steps_that_each_takes_alone() -> None:
    def trained(experts: Tensor, stacked: int) -> Tensor:
        model = nn.Module()
        model.experts = nn.Parameter(experts.clone())
        row = Weight("experts", Role.SCALE_INVARIANT, stacked=stacked)
        setattr(model, PLAN_ATTRIBUTE, Plan(weights=WeightTable({"experts": row})))
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
        Projector(model, update="relative").attach(optimizer)
        for _ in range(5):
            optimizer.zero_grad()
            weight: Any = model.experts
            (weight.sin() * torch.arange(1.0, 13.0, dtype=F64).view(4, 3)).sum().backward()
            optimizer.step()
        return weight.detach()

    experts = torch.randn(3, 4, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    experts *= torch.tensor([1.0, 10.0, 0.1], dtype=F64).view(3, 1, 1)
    together = trained(experts, 1)
    for member, alone in zip(together, experts, strict=True):
        assert_close(member, trained(alone, 0))


def test_means_and_noise_share_a_step_and_tied_weights_take_one() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mu, self.sigma = (nn.Parameter(torch.randn(6, 6, dtype=F64)) for _ in range(2))
            self.also = self.mu

    torch.manual_seed(0)
    model: Any = Noisy()
    rows = {
        "mu": Weight("mu", Role.SCALE_INVARIANT, part="mean", beside="sigma"),
        "sigma": Weight("sigma", Role.SCALE_INVARIANT, part="noise", beside="mu"),
    }
    setattr(model, PLAN_ATTRIBUTE, Plan(weights=WeightTable(rows)))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    projector = Projector(model, update="relative").attach(optimizer)
    both = torch.stack([model.mu, model.sigma]).detach().clone()
    (model.mu.sin() * 3 + model.sigma.cos() + model.also).sum().backward()
    gradient = torch.stack([model.mu.grad, model.sigma.grad])
    optimizer.step()
    expected = both - LR * both.norm() * gradient / gradient.norm()
    expected *= both.norm() / expected.norm()
    assert_close(torch.stack([model.mu, model.sigma]).detach(), expected)
    assert projector.updates == {"mu": 1, "sigma": 1}
    rates = nap.effective_learning_rates(model, optimizer)
    assert rates == pytest.approx({"mu": LR, "sigma": LR})
