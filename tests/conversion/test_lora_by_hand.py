"""LoRA with raw A and B: one norm on the sum of layer and correction, also where B starts at zero."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap
from zoo.written import Written

X = torch.linspace(-2, 2, 24).sin().reshape(3, 8)


class Adapted(nn.Module):
    def __init__(self, zero: bool, functional: bool) -> None:
        super().__init__()
        self.base, self.functional = nn.Linear(8, 16), functional
        self.A, self.B = nn.Parameter(torch.randn(2, 8)), nn.Parameter(torch.randn(16, 2) * (not zero))

    def forward(self, x: Tensor) -> Tensor:
        base = F.linear(x, self.base.weight, self.base.bias) if self.functional else self.base(x)
        return base + 0.5 * (x @ self.A.T) @ self.B.T


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("functional", [True, False])
def test_one_norm_is_on_the_sum(zero: bool, functional: bool) -> None:
    adapted = Adapted(zero, functional)
    model = nn.Sequential(adapted, nn.ReLU(), nn.Linear(16, 3))
    before = adapted(X) - adapted.base.bias
    plan = nap.normalize_(model, X, eps=1e-5)
    assert [(p.module, p.action) for p in plan.placements] == [("0", "normalise output")]
    torch.testing.assert_close(adapted(X), F.layer_norm(before, (16,), eps=1e-5))
    nap.verify(model, X)
    roles = {row.name: row.role for row in nap.weight_groups(model).values()}
    assert {roles[name] for name in ("0.base.weight", "0.B")} == {nap.Role.JOINT}
    assert roles["0.A"] is nap.Role.CHAIN


def adapted_twice(*activations: nn.Module) -> Written:
    def forward(net: Any, x: Tensor) -> Tensor:
        for i in range(2):
            act = net.acts[i % len(net.acts)]
            x = act(F.linear(x, net.w[i]) + F.linear(F.linear(x, net.down[i]), net.up[i]))
        return net.head(x)

    shapes = {"w": [(8, 8), (7, 8)], "down": [(2, 8), (2, 8)], "up": [(8, 2), (7, 2)]}
    torch.manual_seed(0)
    parts = {n: nn.ParameterList([nn.Parameter(torch.randn(s)) for s in each]) for n, each in shapes.items()}
    return Written(forward, **parts, acts=nn.ModuleList(activations), head=nn.Linear(7, 2))


def test_activations_of_their_own_have_one_norm_on_each_sum():
    model = adapted_twice(nn.ReLU(), nn.GELU())
    plan = nap.normalize_(model, X)
    assert [(p.module, p.action) for p in plan.placements] == [
        ("acts.0", "normalise input"),
        ("acts.1", "normalise input"),
    ]
    nap.verify(model, X)


def test_one_activation_for_both_is_refused_and_may_be_accepted():
    with pytest.raises(
        ValueError, match=r"up\.0.*called 2 times.*give this use of acts\.0 a module of its own"
    ):
        nap.normalize_(adapted_twice(nn.ReLU()), X)
    model = adapted_twice(nn.ReLU())
    nap.normalize_(model, X, allow=["up.0", "up.1"])
    nap.verify(model, X)
    assert nap.weight_groups(model)["up.0"].role is nap.Role.UNNORMALISED
