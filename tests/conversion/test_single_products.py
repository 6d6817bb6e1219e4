"""Products that sum over all of their weight: one number for each input, which no norm may run over."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap
from zoo.written import Written

X = torch.linspace(-1, 1, 24).reshape(4, 6).sin()


def raw(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) / shape[-1] ** 0.5)


def one_number(product: Callable[[Tensor, Tensor], Tensor]) -> nn.Module:
    torch.manual_seed(0)
    return Written(
        lambda net, x: net.head(product(x, net.w).tanh().unsqueeze(-1)), w=raw(6), head=nn.Linear(1, 2)
    ).double()


SINGLE = {
    "matmul": lambda x, w: x @ w,
    "matmul, vector first": lambda x, w: w @ x.T,
    "mv": torch.mv,
    "linear": F.linear,
    "inner": torch.inner,
    "einsum": lambda x, w: torch.einsum("bi,i->b", x, w),
    "einsum, weight first": lambda x, w: torch.einsum("i,bi->b", w, x),
    "tensordot": lambda x, w: torch.tensordot(x, w, 1),
}


@pytest.mark.parametrize("how", SINGLE)
def test_it_is_left_alone_by_name_and_no_sample_sees_another(how: str) -> None:
    model = one_number(SINGLE[how])
    plan = nap.normalize_(model, X.double())
    assert plan.placements == ()
    assert [(note.name, "one feature" in note.reason) for note in plan.left_alone] == [("w", True)]
    other = torch.cat([X[:1], X[1:] * 3]).double()
    assert torch.equal(model(X.double())[0], model(other)[0])


def test_a_module_that_returns_one_number_for_each_sample_is_left_alone_too() -> None:
    class Score(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = raw(6)

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.w

    model = Written(
        lambda net, x: net.head(net.score(x).tanh().unsqueeze(-1)), score=Score(), head=nn.Linear(1, 2)
    )
    plan = nap.normalize_(model, X)
    assert plan.placements == ()
    assert any(note.name in ("score", "score.w") for note in plan.left_alone)


@pytest.mark.parametrize("function", [torch.mv, torch.matmul, lambda w, x: torch.addmv(x * 0, w, x)])
def test_a_matrix_times_a_vector_has_features(function: Any) -> None:
    model = Written(
        lambda net, x: net.head(torch.stack([function(net.w, row) for row in x]).tanh()),
        w=raw(6, 6),
        head=nn.Linear(6, 2),
    ).double()
    plan = nap.normalize_(model, X.double())
    assert [(p.action, p.width) for p in plan.placements] == [("normalise product", 6)]
    nap.verify(model, X.double())
    other = torch.cat([X[:1], X[1:] * 3]).double()
    torch.testing.assert_close(model(X.double())[0], model(other)[0], rtol=0, atol=0)


def test_a_product_that_only_shares_axes_with_its_weight_is_normalised_over_the_last_of_these() -> None:
    model = Written(
        lambda net, x: net.head(torch.einsum("bhid,hd->bhi", x, net.w).tanh().sum(-1)),
        w=raw(3, 4),
        head=nn.Linear(3, 2),
    ).double()
    x = torch.linspace(-2, 2, 120).reshape(2, 3, 5, 4).sin().double()
    (placement,) = nap.normalize_(model, x).placements
    assert (placement.width, placement.spatial) == (3, 1)
    nap.verify(model, x)
