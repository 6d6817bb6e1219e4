"""Relative steps of layers: equal where that is asked for, through training, and measured as they are."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

import nap
from nap.conversion.placement import Plan
from nap.rates.relative import UpdateRatios, equal_step_groups, relative_steps
from nap.weights import PLAN_ATTRIBUTE, Role, Weight, WeightTable


def network() -> nn.Sequential:
    """Layers whose norms differ widely."""
    torch.manual_seed(0)
    wide = nn.Linear(16, 16)
    with torch.no_grad():
        wide.weight.mul_(8)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), wide, nn.ReLU(), nn.Linear(16, 3)).double()
    nap.normalize_(model, torch.zeros(2, 6, dtype=torch.float64))
    return model


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, updates: int) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(updates):
        x = torch.randn(32, 6, dtype=torch.float64, generator=generator)
        y = torch.randint(3, (32,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("kind", "update"), [(torch.optim.Adam, "normalised"), (torch.optim.SGD, "raw")], ids=["Adam", "SGD"]
)
def test_all_weights_take_the_step_that_one_rate_gives_in_the_mean(kind: type, update: str) -> None:
    model = network()
    one = relative_steps(model, kind(model.parameters(), lr=0.01))
    each = relative_steps(model, kind(equal_step_groups(model, 0.01, update=update)))
    assert max(one.values()) / min(one.values()) > 4
    first = next(iter(each.values()))
    assert each == pytest.approx(dict.fromkeys(each, first))
    assert first == pytest.approx(math.exp(sum(map(math.log, one.values())) / len(one)))


def test_all_weights_take_the_step_that_was_asked_for_and_a_role_its_share() -> None:
    model = network()
    groups = equal_step_groups(model, 0.01, step=0.002, factors={"output": 0.5})
    steps = relative_steps(model, torch.optim.Adam(groups))
    (output,) = [row.name for row in nap.weight_groups(model).of(Role.OUTPUT)]
    assert steps == pytest.approx({name: 0.001 if name == output else 0.002 for name in steps})
    assert groups[-1]["lr"] == 0.01


def test_under_relative_updates_the_rate_is_the_step_of_what_has_a_radius() -> None:
    model = network()
    projector = nap.Projector(model, output="free", update="relative")
    groups = equal_step_groups(model, 0.01, step=0.002, update="relative", plan=projector.plan)
    optimizer = torch.optim.Adam(groups)
    projector.attach(optimizer)
    ratios = UpdateRatios(model, every=1).attach(optimizer)
    learn(model, optimizer, 1)
    (output,) = [row.name for row in nap.weight_groups(model).of(Role.OUTPUT)]
    assert optimizer.param_groups[-1]["lr"] == 0.01
    assert output in optimizer.param_groups[-1]["param_names"]
    limited = {name: step for name, step in ratios.last.items() if name != output}
    assert limited == pytest.approx(dict.fromkeys(limited, 0.002), rel=0.01)


def test_the_mean_of_the_ratios_is_that_of_all_measured() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ratios, seen = UpdateRatios(model, every=1).attach(optimizer), []
    for _ in range(4):
        learn(model, optimizer, 1)
        seen.append(ratios.last)
    expected = {name: sum(step[name] for step in seen) / 4 for name in seen[0]}
    assert ratios.mean == pytest.approx(expected)


def test_a_role_takes_the_share_that_was_asked_for() -> None:
    model = network()
    steps = relative_steps(model, torch.optim.Adam(equal_step_groups(model, 0.01, factors={"output": 0.25})))
    (output,) = [row.name for row in nap.weight_groups(model).of(Role.OUTPUT)]
    others = [step for name, step in steps.items() if name != output]
    assert steps[output] == pytest.approx(0.25 * others[0])


def test_every_trainable_parameter_is_in_just_one_group() -> None:
    model = network()
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.Adam(equal_step_groups(model, 0.01))
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters() if p.requires_grad)


def test_steps_stay_equal_under_projection_and_a_schedule() -> None:
    """With sign steps every entry moves by lr exactly, so what is measured is what was asked for."""

    class Sign(torch.optim.Optimizer):
        def step(self, closure=None):
            with torch.no_grad():
                for group in self.param_groups:
                    for parameter in group["params"]:
                        parameter -= group["lr"] * parameter.grad.sign()

    model = network()
    projector = nap.Projector(model, output="project")
    optimizer = Sign(equal_step_groups(model, 0.001, plan=projector.plan), {"lr": 0.001})
    projector.attach(optimizer)
    schedule = nap.schedules.linear(optimizer, total_steps=40, end_value=1e-4)
    ratios = UpdateRatios(model, every=1).attach(optimizer)
    spreads = []
    for _ in range(20):
        learn(model, optimizer, 1)
        schedule.step()
        spreads.append(max(ratios.last.values()) / min(ratios.last.values()))
    assert max(spreads) < 1.3  # entries whose gradient is exactly zero do not move


def test_experts_in_one_tensor_take_the_step_of_one_by_itself() -> None:
    torch.manual_seed(0)
    expert = torch.randn(8, 4)

    def rates(weight: torch.Tensor, stacked: int) -> list[float]:
        first, experts = nn.Linear(4, 4, bias=False), nn.Module()
        nn.init.constant_(first.weight, 0.5)
        experts.weight = nn.Parameter(weight)
        model = nn.Sequential(first, experts)
        row = Weight("1.weight", Role.WEIGHT, stacked=stacked)
        setattr(model, PLAN_ATTRIBUTE, Plan(weights=WeightTable({"1.weight": row})))
        return [group["lr"] for group in equal_step_groups(model, 0.1, update="raw")]

    assert rates(expert.expand(5, 8, 4).clone(), stacked=1) == pytest.approx(rates(expert, stacked=0))


def test_a_branch_of_zeros_counts_as_one_that_has_grown() -> None:
    first, branch = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    nn.init.constant_(first.weight, 0.5)  # 1/√fan_in, as the zeros will have when they have grown
    nn.init.zeros_(branch.weight)
    model = nn.Sequential(first, nn.LayerNorm(4), branch)
    with pytest.raises(ValueError, match=r"2\.weight is all zeros.*plan=projector\.plan"):
        equal_step_groups(model, 0.1)
    groups = equal_step_groups(model, 0.1, plan=nap.Projector(model).plan)
    assert [group["lr"] for group in groups] == pytest.approx([0.1, 0.1, 0.1])


def test_ratios_are_those_of_the_update_that_was_made() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ratios = UpdateRatios(model, every=3).attach(optimizer)
    assert ratios.last == {}
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    learn(model, optimizer, 1)
    expected = {
        name: ((p.detach() - before[name]).norm() / before[name].norm()).item()
        for name, p in model.named_parameters()
        if name in ratios.last
    }
    assert ratios.last == pytest.approx(expected)
    first = dict(ratios.last)
    learn(model, optimizer, 2)
    assert ratios.last == first, "the second and third update are not measured"
    learn(model, optimizer, 1)
    assert ratios.last != first
    ratios.detach()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: equal_step_groups(m, 0.0), "above 0"),
        (lambda m: equal_step_groups(m, math.nan), "above 0"),
        (lambda m: equal_step_groups(m, 0.1, factors={"head": 1.0}), "no role"),
        (lambda m: equal_step_groups(m, 0.1, factors={"output": -1.0}), "above 0"),
        (lambda m: equal_step_groups(m, 0.1, weights=["nothing"]), "no parameter 'nothing'"),
        (lambda m: equal_step_groups(m, 0.1, weights=[]), "no trainable weight"),
        (lambda m: equal_step_groups(m, 0.1, step=1.5), r"step is 1\.5.*below 1"),
        (lambda m: equal_step_groups(m, 0.1, step=0.1, update="relative"), r"needs plan=projector\.plan"),
        (lambda m: equal_step_groups(m, 0.1, step=0.1, update="raw"), "cannot be had with update='raw'"),
        (lambda m: UpdateRatios(m, every=0), "at least 1"),
        (lambda m: UpdateRatios(m).attach(torch.optim.SGD([torch.zeros(2)], lr=1.0)), "holds no weight"),
        (lambda m: UpdateRatios(m).attach(None), "not been made yet"),
    ],
)
def test_wrong_calls_are_named(call: Callable[[nn.Module], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call(network())
