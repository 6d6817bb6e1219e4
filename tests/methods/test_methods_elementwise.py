"""Methods that act entry by entry: the exact claim of each penalty, shrinking and noise, and the draws."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from method_nets import build, generator, layer_norm, mlp, train
from nap.methods import L2, L2Init, Langevin, Method, ShrinkAndPerturb, Training, WeightDecay
from nap.methods.draws import fresh_like, normal_like
from nap.weights import Role


class TestDraws:
    def test_fresh_values_come_from_the_initial_ones_of_each_member(self):
        initial = torch.tensor([[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]])
        fresh = fresh_like(initial, generator(), stacked=True)
        assert set(fresh[0].tolist()) <= set(initial[0].tolist())
        assert set(fresh[1].tolist()) <= set(initial[1].tolist())

    def test_fresh_values_have_the_initial_distribution(self):
        initial = torch.empty(200, 300).uniform_(-0.2, 0.2, generator=generator(1))
        fresh = fresh_like(initial, generator(2))
        assert not torch.equal(fresh, initial)
        assert_close(fresh.std(), initial.std(), rtol=0.02, atol=0)
        assert fresh.mean().abs() < 0.002

    def test_one_generator_per_member(self):
        tensor = torch.zeros(2, 5)
        both = normal_like(tensor, [generator(1), generator(2)])
        assert torch.equal(both[1], normal_like(tensor[1], generator(2)))


class TestPenalties:
    def test_gradients(self):
        theta = torch.randn(3, 4, dtype=torch.float64, generator=generator(), requires_grad=True)
        start = torch.randn(3, 4, dtype=torch.float64, generator=generator(1))
        (pull,) = torch.autograd.grad(L2Init(0.3).penalty({"w": theta}, {"w": start}), theta)
        assert_close(pull, 0.6 * (theta - start).detach())
        (pull,) = torch.autograd.grad(L2(0.3).penalty({"w": theta}, {"w": start}), theta)
        assert_close(pull, 0.6 * theta.detach())

    def test_l2_is_half_the_weight_decay_of_sgd(self):
        model, _, _ = train(mlp, lambda: L2(0.05), optimizer=torch.optim.SGD)
        decayed, _, _ = train(mlp, Method, optimizer=lambda p, lr: torch.optim.SGD(p, lr, weight_decay=0.1))
        for theta, reference in zip(model.parameters(), decayed.parameters(), strict=True):
            assert_close(theta, reference)

    def test_roles_choose_parameters(self):
        model = build(layer_norm)
        l2 = L2(1.0, roles=[Role.WEIGHT])
        with pytest.raises(ValueError, match="prepare_"):
            l2.penalty(dict(model.named_parameters()), {})
        l2.prepare_(model)
        expected = model[0].weight.square().sum() + model[3].weight.square().sum()
        assert_close(l2.penalty(dict(model.named_parameters()), {}), expected)
        with pytest.raises(ValueError, match="roles"):
            L2(1.0, roles=[Role.EMBEDDING]).prepare_(model)


class TestShrinking:
    def test_decoupled_decay_is_adamw(self):
        model, _, _ = train(mlp, lambda: WeightDecay(0.1))
        adamw, _, _ = train(mlp, Method, optimizer=lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.1))
        for theta, reference in zip(model.parameters(), adamw.parameters(), strict=True):
            assert_close(theta, reference, rtol=1e-14, atol=0)

    def test_each_group_decays_at_its_own_rate(self):
        model = build(mlp)
        groups = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters()}]
        run = Training.of(model, torch.optim.SGD(groups, lr=0.1), generator=generator())
        WeightDecay(1.0).before_step_(run)
        assert_close(model[0].weight, 0.5 * run.initial["0.weight"])
        assert_close(model[2].weight, 0.9 * run.initial["2.weight"])
        assert "4.weight" not in run.parameters

    def test_shrink_and_perturb_statistics(self):
        model = nn.Linear(300, 300, bias=False).double()
        run = Training.of(model, torch.optim.SGD(model.parameters(), lr=1.0), generator=generator())
        before = run.initial["weight"]
        ShrinkAndPerturb(0.4, 0.2).at_task_change_(run)
        noise = model.weight.detach() - 0.4 * before
        assert_close(noise.std(), 0.2 * before.std(), rtol=0.02, atol=0)
        assert noise.abs().max() <= 0.2 * before.abs().max() * (1 + 1e-9)  # uniform stays uniform
        correlation = torch.corrcoef(torch.stack([noise.flatten(), before.flatten()]))[0, 1]
        assert correlation.abs() < 0.02

    def test_when(self):
        model = nn.Linear(2, 2)
        run = Training.of(model, torch.optim.SGD(model.parameters(), lr=1.0), generator=generator())
        often = ShrinkAndPerturb(0.5, 0.0, every=3)
        for _ in range(7):
            often.after_step_(run)
            often.at_task_change_(run)
        assert_close(model.weight.detach(), 0.25 * run.initial["weight"])


class TestNoise:
    @pytest.mark.parametrize(("method", "std"), [(Langevin(std=0.3), 0.3), (Langevin(temperature=0.5), 0.1)])
    def test_standard_deviation(self, method, std):
        model = nn.Linear(300, 300)
        run = Training.of(model, torch.optim.SGD(model.parameters(), lr=0.01), generator=generator())
        method.after_step_(run)
        noise = model.weight.detach() - run.initial["weight"]
        assert noise.std().item() == pytest.approx(std, rel=0.02)
        assert abs(noise.mean().item()) < 0.01 * std + 1e-3

    def test_exactly_one_setting(self):
        with pytest.raises(ValueError, match="exactly one"):
            Langevin()
