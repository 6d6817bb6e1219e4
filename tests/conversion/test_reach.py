"""What the examples reach, what shares an activation, and `nap.coverage`."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap

X = torch.linspace(-2, 2, 24).sin().reshape(3, 8)


class Towers(nn.Module):
    """One of three towers, by number; and a layer that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2)) for _ in range(3)
        )
        self.idle, self.matrix = nn.Linear(4, 4), nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor, number: int = 0) -> Tensor:
        return self.towers[number](x)


def names(plan: nap.Plan) -> list[str]:
    return [placement.module for placement in plan.placements]


def test_what_no_example_reaches_is_noted_and_several_reach_more():
    one = nap.plan(Towers(), X)
    assert names(one) == ["towers.0.0"]
    assert [n.name for n in one.left_alone] == ["towers.1", "towers.2", "idle", "matrix"]
    more = nap.plan(Towers(), [(X, 0), {"x": X, "number": 1}])
    assert names(more) == ["towers.0.0", "towers.1.0"]
    assert [n.name for n in more.left_alone] == ["towers.2", "idle", "matrix"]


def test_strict_refuses_what_is_not_reached():
    plan = nap.plan(Towers(), X, strict=True)
    assert [p.name for p in plan.problems] == ["towers.1", "towers.2", "idle", "matrix"]
    assert "list of examples" in plan.problems[0].way_out
    fine = nap.plan(Towers(), [(X, i) for i in range(3)], strict=True, exclude=["idle"], allow=["matrix"])
    assert fine.problems == ()
    with pytest.raises(ValueError, match="strict='yes' is not a choice"):
        nap.plan(Towers(), X, strict="yes")  # type: ignore[arg-type]


def test_verify_names_what_its_examples_do_not_reach():
    model = Towers()
    nap.normalize_(model, [(X, 0), (X, 1)])
    result = nap.verify(model, [(X, 0), (X, 1)])
    assert result.unreached == ("towers.2", "idle", "matrix")
    assert "not reached by the examples: towers.2, idle, matrix" in str(result)


def test_coverage_says_of_every_matrix_whether_a_norm_follows():
    model = Towers()
    found = nap.coverage(model, X)
    assert {row.name for row in found} == {n for n, p in model.named_parameters() if p.ndim > 1}
    assert [row.name for row in found if row.normalised] == ["towers.0.0.weight"]
    reasons = {row.name: row.reason for row in found.open}
    assert reasons["towers.0.2.weight"] == "reaches the output with no norm after it"
    assert "no example reaches it" in reasons["towers.1.0.weight"]
    assert str(found).endswith("a norm follows 1 of 8 matrices")
    nap.normalize_(model, X, exclude=["towers.0.0"])
    after = {row.name: row for row in nap.coverage(model, X)}
    assert after["towers.0.0.weight"].reason == "excluded by the caller"
    assert not after["towers.0.0.weight"].normalised


class Shared(nn.Module):
    """A table that is looked up by position, and a layer, in front of one activation module."""

    def __init__(self, width: int = 8, between: nn.Module | None = None):
        super().__init__()
        self.one, self.two = nn.Parameter(torch.randn(8, 8)), nn.Linear(8, width)
        self.act, self.head = nn.GELU(), nn.Linear(width, 2)
        self.between = between or nn.Identity()

    def looked_up(self) -> Tensor:
        return F.embedding(torch.arange(3), self.one)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.two(x + self.act(self.between(self.looked_up())))))


@pytest.mark.parametrize("model", [Shared(), Shared(12)], ids=["same width", "other width"])
def test_one_norm_is_not_shared_by_the_uses_of_an_activation(model):
    (problem,) = nap.plan(model, X).problems
    assert problem.name == "one"
    assert "enters act, and that is called 2 times" in problem.reason
    assert "a module of its own" in problem.way_out


def test_behind_a_norm_a_shared_activation_needs_none():
    assert names(nap.plan(Shared(8, nn.LayerNorm(8)), X)) == ["two"]


def test_products_in_front_of_a_shared_activation_have_their_own_norms():
    class Products(Shared):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.act(self.act(x @ self.one) @ self.two.weight))

    model = Products()
    plan = nap.normalize_(model, X)
    assert [p.weights for p in plan.placements] == [("one",), ("two.weight",)]
    assert nap.verify(model, X).scale_invariant == 2


def test_the_same_weights_in_every_call_share_a_norm_as_they_do():
    class Loop(Shared):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = x + self.act(self.looked_up())
            return self.head(x)

    assert names(nap.plan(Loop(), X)) == ["act"]


def test_layers_in_front_of_a_shared_activation_have_their_own_norms():
    class Layers(Shared):
        def __init__(self) -> None:
            super().__init__(5)
            self.first, self.second = nn.Linear(8, 6), nn.Linear(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.act(self.second(self.act(self.first(x)))))

    assert names(nap.plan(Layers(), X)) == ["first", "second"]
