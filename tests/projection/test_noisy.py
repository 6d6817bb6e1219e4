"""Noisy layers: what normalises μ(x) + σ(x ⊙ ε) ⊙ ε' cancels the common scale of μ and σ, and no other."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import nap
from nap.lab.models.rainbow_net import RainbowNet
from nap.projection.noisy import project_together_

INSIDE, OUTSIDE = 8, 6
X = torch.randn(5, INSIDE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Noisy(nn.Module):
    """A noisy layer in seven spellings; the noise is a buffer, or off in eval mode, or resampled."""

    e_in: Tensor
    e_out: Tensor

    def __init__(self, form: str, inside: int = INSIDE, outside: int = OUTSIDE):
        super().__init__()
        self.form = form
        if form == "layers":
            self.average, self.spread = nn.Linear(inside, outside), nn.Linear(inside, outside)
            nn.init.constant_(self.spread.weight, 0.5 / inside**0.5)
        else:
            self.a = nn.Parameter(torch.randn(outside, inside) / inside**0.5)
            self.b = nn.Parameter(torch.full((outside, inside), 0.5 / inside**0.5))
            self.c, self.d = nn.Parameter(torch.zeros(outside)), nn.Parameter(torch.full((outside,), 0.1))
        self.register_buffer("e_in", torch.randn(inside))
        self.register_buffer("e_out", torch.randn(outside))

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "layers":
            return self.spread(x * self.e_in) * self.e_out + self.average(x)
        if self.form == "eval" and not self.training:
            return F.linear(x, self.a, self.c)
        noise = torch.randn(OUTSIDE, INSIDE).to(x) if self.form == "fresh" else self.e_out.outer(self.e_in)
        if self.form == "distribution":
            return F.linear(x, torch.distributions.Normal(self.a, self.b).rsample(), self.c)
        if self.form == "addcmul":
            return F.linear(x, torch.addcmul(self.a, self.b, noise), self.c)
        if self.form == "two products":
            return F.linear(x, self.a) + F.linear(x, self.b * noise)
        return F.linear(x, self.a + self.b * noise, self.c + self.d * self.e_out)


FORMS = ["layers", "parameters", "addcmul", "two products", "fresh", "eval", "distribution"]


def model_of(form: str) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(Noisy(form), nn.ReLU(), nn.Linear(OUTSIDE, 3)).double()
    nap.normalize_(model, X)
    return model


def halves(model: nn.Module) -> tuple[str, str]:
    (noise,) = [row for row in nap.weight_groups(model).values() if row.part == "noise"]
    assert noise.beside
    return noise.beside, noise.name


def outputs(model: nn.Module) -> Tensor:
    torch.manual_seed(1)  # noise that is resampled
    with torch.no_grad():
        return model(X)


@pytest.mark.parametrize("form", FORMS)
def test_only_the_common_scale_of_means_and_noise_is_cancelled(form: str) -> None:
    model = model_of(form)
    mean, noise = halves(model)
    assert (mean, noise) == (("0.average.weight", "0.spread.weight") if form == "layers" else ("0.a", "0.b"))
    table = nap.weight_groups(model)
    assert "cancels its scale together" in table[noise].reason
    assert table[mean].beside == noise
    before, weights = outputs(model), dict(model.named_parameters())
    for names, same in (((mean, noise), True), ((mean,), False), ((noise,), False)):
        for name in names:
            weights[name].data *= 3.0
        if same:
            assert_close(outputs(model), before, rtol=1e-12, atol=1e-12)
        else:
            assert (outputs(model) - before).abs().max() > 0.01
        for name in names:
            weights[name].data /= 3.0


def trained(model: Any, policy: Any, steps: int = 60) -> tuple[list[dict[str, Tensor]], list[float]]:
    """Weights after each step of Adam with a projection, and how far each projection moved the outputs."""
    projector = nap.Projector(model, noise=policy)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    weights, moved = [], []
    for step in range(steps):
        torch.manual_seed(step)
        loss = (model(X) - 1.0).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        before = outputs(model[:2])
        projector.project_()
        moved.append((outputs(model[:2]) - before).abs().max().item())
        weights.append({name: p.detach().clone() for name, p in model.named_parameters()})
    return weights, moved


@pytest.mark.parametrize("form", ["layers", "parameters", "fresh"])
def test_joint_projection_keeps_the_function_and_lets_noise_shrink(form: str) -> None:
    model = model_of(form)
    mean, noise = halves(model)
    start = {name: model.get_parameter(name).norm() for name in (mean, noise)}
    weights, moved = trained(model, "joint")
    assert max(moved) < 1e-12
    both = [torch.hypot(w[mean].norm(), w[noise].norm()) for w in weights]
    assert_close(torch.stack(both), torch.hypot(*start.values()).expand(len(both)))
    assert abs(weights[-1][noise].norm() / start[noise] - 1) > 0.05  # its share moves


@pytest.mark.parametrize("form", ["layers", "parameters", "fresh"])
def test_separate_projection_pins_the_noise_and_changes_the_function(form: str) -> None:
    model = model_of(form)
    mean, noise = halves(model)
    start = {name: model.get_parameter(name).norm() for name in (mean, noise)}
    weights, moved = trained(model, "separate")
    assert max(moved) > 1e-3
    for name, norm in start.items():
        assert_close(weights[-1][name].norm(), norm)


def test_free_noise_is_left_alone() -> None:
    model = model_of("parameters")
    mean, noise = halves(model)
    projector = nap.Projector(model, noise="free")
    actions = {row.name: (row.action, row.reason) for row in projector.plan.rows}
    assert actions[noise] == ("free", "noise='free'")
    assert actions[mean][0] == "project"
    assert set(projector.norm_ratios()) == {mean, "2.weight"}


def test_the_plan_says_it_and_the_head_of_the_lab_shares_a_radius_too() -> None:
    torch.manual_seed(0)
    net = RainbowNet(3, (8, 8), hidden=16, atoms=5)
    nap.normalize_(net, (torch.rand(2, 4, 8, 8), net.noise(1)))
    plan = nap.Projector(net).plan
    rows = {row.name: row for row in plan.rows}
    for layer in ("advantage", "advantage_head", "value", "value_head"):
        mean, noise = f"{layer}.mu.weight", f"{layer}.sigma.weight"
        both = torch.hypot(net.get_parameter(mean).norm(), net.get_parameter(noise).norm()).item()
        assert rows[mean].radius == rows[noise].radius == pytest.approx(both, rel=1e-6)
        assert rows[mean].reason == f"one norm with {noise}, which may shrink beside it"
    assert "value.sigma.weight" in str(plan)


def test_without_noise_there_is_no_pair() -> None:
    """LoRA, sums of layers, masked weights and gates of learnt values."""

    class Others(nn.Module):
        mask: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.base, self.other = nn.Linear(8, 8), nn.Linear(8, 8)
            self.down, self.up = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
            self.gate, self.weight = nn.Linear(8, 8), nn.Parameter(torch.randn(8, 8))
            self.rho = nn.Parameter(torch.randn(8, 8))
            self.register_buffer("mask", (torch.rand(8, 8) > 0.5).float())

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.base(x) + 0.5 * self.up(self.down(x)))
            x = F.relu(self.base(x) + self.other(x))
            x = F.relu(self.other(x) + self.base(x) * self.gate(x).sigmoid())
            x = F.relu(F.linear(x, self.weight * self.mask))
            return F.linear(x, self.weight + F.softplus(self.rho) * torch.randn(8, 8))

    torch.manual_seed(0)
    table = nap.plan(Others(), torch.randn(4, 8)).weights
    assert not [row for row in table.values() if row.beside]


def test_pairs_in_a_larger_model_and_in_a_copy() -> None:
    inner = model_of("parameters")
    outer = copy.deepcopy(nn.Sequential(inner))
    assert halves(outer) == ("0.0.a", "0.0.b")
    projector = nap.Projector(outer)
    for parameter in outer.parameters():
        parameter.data *= 2.0
    assert projector.norm_ratios()["0.0.b"] == pytest.approx(2.0)
    projector.project_()
    assert projector.norm_ratios()["0.0.b"] == pytest.approx(1.0, abs=1e-6)
    target = copy.deepcopy(outer).requires_grad_(False)
    target.get_parameter("0.0.a").mul_(0.9)
    projector.project_(target)
    both = [target.get_parameter(name).norm() for name in ("0.0.a", "0.0.b")]
    assert_close(torch.hypot(*both), projector.state_dict()["radii"]["0.0.a"].double().squeeze())


def test_rows_share_a_radius_each() -> None:
    model = model_of("parameters")
    mean, noise = halves(model)
    projector = nap.Projector(model, per="row")
    row = torch.hypot(model.get_parameter(mean).norm(dim=1), model.get_parameter(noise).norm(dim=1))
    for name in (mean, noise):
        model.get_parameter(name).data *= torch.arange(1.0, 7.0)[:, None]
    projector.project_()
    now = torch.hypot(model.get_parameter(mean).norm(dim=1), model.get_parameter(noise).norm(dim=1))
    assert_close(now, row)


def test_a_frozen_half_leaves_the_other_its_own_radius() -> None:
    model = model_of("parameters")
    mean, noise = halves(model)
    model.get_parameter(noise).requires_grad_(False)
    radius = model.get_parameter(mean).norm().item()
    rows = {row.name: row for row in nap.Projector(model).plan.rows}
    assert rows[mean].radius == pytest.approx(radius)


def test_an_optimizer_with_half_a_pair_is_refused() -> None:
    model = model_of("parameters")
    _, noise = halves(model)
    rest = [p for name, p in model.named_parameters() if name != noise]
    with pytest.raises(ValueError, match="move together"):
        nap.Projector(model).attach(torch.optim.SGD(rest, lr=0.1))
    optimizers = torch.optim.SGD(rest, lr=0.1), torch.optim.SGD([model.get_parameter(noise)], lr=0.1)
    assert nap.Projector(model, noise="separate").attach(*optimizers).attached == optimizers


def test_a_state_carries_the_policy_and_one_from_before_is_taken_up() -> None:
    model = model_of("parameters")
    mean, noise = halves(model)
    state = nap.Projector(model).state_dict()
    assert state["settings"]["noise"] == "joint"
    nap.Projector(model).load_state_dict(state)
    with pytest.raises(ValueError, match=r"settings\.noise: joint in the state, separate here"):
        nap.Projector(model, noise="separate").load_state_dict(state)

    old = nap.Projector(model, noise="separate").state_dict()
    del old["settings"]["noise"]
    for parameter in model.parameters():
        parameter.data *= 2.0
    joint, separate = nap.Projector(model), nap.Projector(model, noise="separate")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        separate.load_state_dict(old)
    assert separate.norm_ratios()[mean] == pytest.approx(2.0)
    with pytest.warns(UserWarning, match=r"noise='separate'\) goes on as before"):
        joint.load_state_dict(old)
    assert joint.norm_ratios()[noise] == pytest.approx(2.0)


def test_a_projection_on_the_device_waits_for_no_word_and_can_be_masked() -> None:
    mean, noise = torch.randn(3, 4), torch.randn(3, 4)
    before = mean.clone()
    project_together_([(mean, noise)], [torch.ones(1, 1)], when=torch.tensor(False))
    assert torch.equal(mean, before)
    project_together_([(mean, noise)], [torch.ones(1, 1)], when=torch.tensor(True))
    assert_close(torch.hypot(mean.norm(), noise.norm()), torch.tensor(1.0))


def test_a_wrong_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="noise='both' is not a choice"):
        nap.Projector(model_of("parameters"), noise="both")  # type: ignore[arg-type]


def test_rates_can_be_read_under_a_brake() -> None:
    model = model_of("parameters")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    nap.Projector(model, brake=0.5).attach(optimizer)
    weight = next(iter(nap.effective_learning_rates(model, optimizer)))
    norm = model.get_parameter(weight).norm().item()
    assert nap.effective_learning_rates(model, optimizer)[weight] == pytest.approx(0.1 / norm)
