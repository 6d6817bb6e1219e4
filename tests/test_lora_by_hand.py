"""LoRA with raw A and B: one norm on the sum of layer and correction, also where B starts at zero."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap

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
    assert {roles[name] for name in ("0.base.weight", "0.A", "0.B")} == {nap.Role.JOINT}
