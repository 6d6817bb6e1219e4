"""Effective learning rates: Definition 1, read from real models and optimizers."""

import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from nap.conversion.placement import Plan
from nap.rates.learning_rate import (
    Update,
    effective_learning_rates,
    effective_lr,
    global_effective_learning_rate,
    per_weight_groups,
    update_of,
)
from nap.weights import PLAN_ATTRIBUTE, Role, Weight, WeightTable


@pytest.fixture
def model() -> nn.Sequential:
    first, head = nn.Linear(4, 4).double(), nn.Linear(4, 3).double()
    with torch.no_grad():
        first.weight *= 2 / first.weight.norm()
        head.weight *= 10 / head.weight.norm()
    return nn.Sequential(first, nn.LayerNorm(4), nn.ReLU(), head)


@pytest.mark.parametrize(
    ("make", "update"),
    [
        (torch.optim.SGD, Update.RAW),
        (lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9, nesterov=True), Update.RAW),
        (torch.optim.Adam, Update.NORMALISED),
        (torch.optim.AdamW, Update.NORMALISED),
        (torch.optim.Adamax, Update.NORMALISED),
        (torch.optim.NAdam, Update.NORMALISED),
        (torch.optim.RAdam, Update.NORMALISED),
        (torch.optim.RMSprop, Update.NORMALISED),
        (torch.optim.Adagrad, Update.NORMALISED),
        (torch.optim.Adadelta, Update.NORMALISED),
        (torch.optim.SparseAdam, Update.NORMALISED),
    ],
)
def test_rates_follow_definition_1_by_the_kind_of_optimizer(model, make, update):
    optimizer = make(model.parameters(), lr=0.1)
    assert update_of(optimizer) is update
    expected = {
        name: effective_lr(0.1, norm, update=update) for name, norm in [("0.weight", 2.0), ("3.weight", 10.0)]
    }
    assert effective_learning_rates(model, optimizer) == pytest.approx(expected)
    assert global_effective_learning_rate(model, optimizer) == pytest.approx(
        effective_lr(0.1, math.sqrt(104), update=update)
    )


@pytest.mark.parametrize(
    ("make", "power"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 2),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 2),
        (lambda p: torch.optim.Adam(p, lr=0.1, eps=1e-30), 1),
        (lambda p: torch.optim.RMSprop(p, lr=0.1, eps=1e-30), 1),
        (lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-30), 1),
        (lambda p: torch.optim.NAdam(p, lr=0.1, eps=1e-30), 1),
        (lambda p: torch.optim.Adamax(p, lr=0.1, eps=1e-30), 1),
        pytest.param(
            lambda p: torch.optim.Muon(p, lr=0.1, eps=1e-30, weight_decay=0),
            1,
            marks=pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has no Muon yet"),
        ),
    ],
)
def test_the_kinds_are_what_the_optimizers_do(make, power):
    """A step with the gradients of a weight c times as long turns it c⁻ᵖ as far."""
    weight, gradient = torch.randn(2, 4, 4, dtype=torch.float64)
    steps = []
    for c in (1.0, 8.0):
        parameter = nn.Parameter(c * weight)
        optimizer = make([parameter])
        for _ in range(3):
            parameter.grad = gradient / c
            optimizer.step()
        steps.append((parameter.detach() - c * weight).norm() / (c * weight).norm())
        assert update_of(optimizer).power == power
    assert steps[0] / steps[1] == pytest.approx(8.0**power, rel=1e-3)


def test_subclasses_count_and_strangers_are_asked_about(model):
    class MyAdam(torch.optim.Adam):
        pass

    class Sophia(torch.optim.Optimizer):
        pass

    assert update_of(MyAdam(model.parameters())) is Update.NORMALISED
    stranger = Sophia(model.parameters(), {"lr": 0.1})
    with pytest.raises(ValueError, match=r"Sophia is not an optimizer known here.*update='raw'"):
        effective_learning_rates(model, stranger)
    assert effective_learning_rates(model, stranger, update="raw")["0.weight"] == pytest.approx(0.1 / 4)
    with pytest.raises(ValueError, match="sideways"):
        effective_learning_rates(model, stranger, update="sideways")


class Lars(torch.optim.SGD):
    """Rescales each step to the size of its weight: no SGD by Definition 1, whatever it extends."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.grad = None if p.grad is None else p.grad * (p.norm() / p.grad.norm())
        return super().step(closure)


class Named(torch.optim.SGD):
    """The same step under another name."""


@pytest.mark.parametrize("first", [Lars, Named, torch.optim.SGD])
def test_a_subclass_with_a_step_of_its_own_is_asked_about(model, first):
    first(model.parameters(), lr=0.1)  # torch wraps the step of each class when the first of it is made
    with pytest.raises(ValueError, match=r"Lars extends SGD with a step of its own.*update='raw'"):
        effective_learning_rates(model, Lars(model.parameters(), lr=0.1))
    assert effective_learning_rates(model, Lars(model.parameters(), lr=0.1), update="normalised")
    assert update_of(Named(model.parameters(), lr=0.1)) is Update.RAW
    assert update_of(torch.optim.SGD(model.parameters(), lr=0.1)) is Update.RAW


@pytest.mark.parametrize("kind", ["LBFGS", "Rprop", "Adafactor", "ASGD"])
def test_optimizers_beyond_definition_1_are_refused(model, kind):
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=f"{kind} has no effective learning rate.*update="):
        effective_learning_rates(model, optimizer)
    assert effective_learning_rates(model, optimizer, update=Update.NORMALISED)["0.weight"] == pytest.approx(
        0.05
    )


def test_lrs_come_from_the_groups_and_may_be_tensors(model):
    groups = [
        {"params": model[0].parameters(), "lr": torch.tensor(0.5)},
        {"params": model[3].parameters(), "lr": 0.1},
    ]
    optimizer = torch.optim.SGD(groups)
    assert effective_learning_rates(model, optimizer) == pytest.approx({"0.weight": 0.125, "3.weight": 0.001})
    with pytest.raises(ValueError, match="no single one is global"):
        global_effective_learning_rate(model, optimizer)
    assert global_effective_learning_rate(model, optimizer, weights=["3.weight"]) == pytest.approx(0.001)


def test_only_weights_that_the_optimizer_holds(model):
    optimizer = torch.optim.SGD(model[3].parameters(), lr=0.1)
    assert list(effective_learning_rates(model, optimizer)) == ["3.weight"]
    with pytest.raises(ValueError, match="holds no weight of this Sequential"):
        effective_learning_rates(nn.Sequential(nn.Linear(2, 2)), optimizer)
    with pytest.raises(ValueError, match=r"no parameter '3\.wieght'"):
        effective_learning_rates(model, optimizer, weights=["3.wieght"])


def test_zero_weights_have_an_infinite_rate_and_half_precision_does_not_overflow():
    half = nn.Linear(400, 400, bias=False).half()
    nn.init.constant_(half.weight, 1000.0)  # ‖W‖ = 4e5, beyond the largest float16
    assert effective_learning_rates(half, torch.optim.Adam(half.parameters(), lr=1.0)) == pytest.approx(
        {"weight": 2.5e-6}
    )
    nn.init.zeros_(half.weight)
    optimizer = torch.optim.Adam(half.parameters(), lr=1.0)
    assert effective_learning_rates(half, optimizer) == {"weight": math.inf}
    assert global_effective_learning_rate(half, optimizer) == math.inf


def test_rates_of_large_float32_weights_are_exact_to_float32():
    torch.manual_seed(0)
    layer = nn.Linear(2000, 2000, bias=False)  # one long float32 sum would be 1e-4 low on CPU
    rates = effective_learning_rates(layer, torch.optim.Adam(layer.parameters(), lr=1.0))
    assert rates["weight"] == pytest.approx(1 / layer.weight.double().norm().item(), rel=5e-7)


def test_stacked_experts_have_a_rate_each():
    model = nn.Module()
    sizes = torch.tensor([1.0, 10.0]).reshape(2, 1, 1)
    model.register_parameter("experts", nn.Parameter(sizes * torch.ones(2, 3, 3)))
    rows = WeightTable({"experts": Weight("experts", Role.SCALE_INVARIANT, stacked=1)})
    setattr(model, PLAN_ATTRIBUTE, Plan(weights=rows))
    rates = effective_learning_rates(model, torch.optim.Adam(model.parameters(), lr=3.0))
    assert rates == pytest.approx({"experts[0]": 1.0, "experts[1]": 0.1})


def test_tied_weights_are_listed_once():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    assert list(effective_learning_rates(model, torch.optim.SGD(model.parameters(), lr=0.1))) == ["0.weight"]


class CopiesToHost(TorchDispatchMode):
    """Counts what would make a GPU wait: copies to the host and reads of single numbers."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        to_host = func is torch.ops.aten._to_copy.default and kwargs.get("device") == torch.device("cpu")
        self.count += to_host or func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **kwargs)


@pytest.mark.parametrize("rate", [effective_learning_rates, global_effective_learning_rate])
def test_one_copy_from_the_device_however_many_weights(rate):
    model = nn.Sequential(*(nn.Linear(3, 3, device="meta") for _ in range(9)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1, device="meta")
    with CopiesToHost() as copies, pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        rate(model, optimizer)
    assert copies.count == 1  # the first and only read: a meta device lets nothing out


def test_per_weight_groups_hold_every_trainable_parameter_once(model):
    model[3].bias.requires_grad_(False)
    optimizer = torch.optim.Adam(per_weight_groups(model))
    assert [group["param_names"] for group in optimizer.param_groups] == [
        ["0.weight"],
        ["3.weight"],
        ["0.bias", "1.weight", "1.bias"],
    ]
    assert len(per_weight_groups(nn.Linear(2, 2, bias=False))) == 1
