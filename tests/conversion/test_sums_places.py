"""residual="sum": where a norm may hang, and over which axis."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap
from nap.conversion.placement import Plan
from nap.conversion.verification import relative_change
from nap.diagnostics.activations import unknown_in
from nap.diagnostics.axes import is_weighted
from nap.norms.norm import Norm

Join = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def plus(one: Tensor, two: Tensor) -> Tensor:
    return one + two


class Pair(nn.Module):
    """head(act(join(one(x), two(x)))), for a sum unless told otherwise."""

    def __init__(self, layer: Any, act: nn.Module, join: Join = plus) -> None:
        super().__init__()
        self.one, self.two, self.act, self.head = layer(), layer(), act, nn.LazyLinear(3)
        self.join = join

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.join(self.one(x), self.two(x))))


def planned(model: nn.Module, x: Any, **options: Any) -> Plan:
    """The plan that was applied, after the model was found to be right."""
    with torch.no_grad():
        model(*(x[0] if isinstance(x, list) else (x,)))  # lazy layers
    plan = nap.normalize_(model, x, residual="sum", **options)
    nap.verify(model, x)
    return plan


def places(plan: Plan) -> list[str]:
    return [p.module for p in plan.placements]


def why(plan: Plan) -> str:
    """The one reason that all placements have in common."""
    (reason,) = {p.reason for p in plan.placements}
    return reason


def linear() -> nn.Module:
    return nn.Linear(4, 8)


def conv1d() -> nn.Module:
    return nn.Conv1d(4, 8, 3, padding=1)


def conv2d() -> nn.Module:
    return nn.Conv2d(4, 8, 3, padding=1)


# -- over which axis -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "shape", "move"),
    [
        (conv1d, (8, 4, 6), lambda y: y.flatten(1)),
        (conv2d, (8, 4, 6, 6), lambda y: y.mean(-1)),
        (conv2d, (8, 4, 8, 8), lambda y: y.permute(1, 0, 2, 3)),
        (linear, (2, 8, 4), lambda y: y.transpose(1, 2)),
        (linear, (8, 8, 4), lambda y: y.movedim(0, 1)),
    ],
)
def test_what_is_moved_before_it_enters_is_done_by_branch_though_sizes_agree(layer, shape, move):
    model, x = Pair(layer, nn.ReLU(), lambda one, two: move(one + two)), torch.randn(shape)
    plan = planned(model, x)
    assert places(plan) == ["one", "two"]
    assert why(plan).startswith("enters relu in a sum (no norm can hang there: ")
    assert why(plan).endswith(" lies between)")


def test_no_sample_is_moved_by_another():
    model, x = Pair(conv1d, nn.ReLU(), lambda one, two: (one + two).flatten(1)), torch.randn(8, 4, 6)
    planned(model, x)
    torch.testing.assert_close(model(x)[:5], model(x[:5]))


def test_a_batch_norm_over_another_axis_than_the_features_has_no_norm_of_a_sum():
    model, x = Pair(linear, nn.Sequential(nn.BatchNorm1d(8), nn.ReLU())), torch.randn(3, 8, 4)
    plan = planned(model, x)
    assert places(plan) == ["one", "two"]
    assert "act.0 has its features on another axis" in why(plan)


def test_a_result_that_is_broadcast_is_done_by_branch():
    class Broadcast(Pair):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.act(self.one(x) + self.two(x[:, :1])))

    plan = planned(Broadcast(linear, nn.ReLU()), torch.randn(2, 5, 4))
    assert places(plan) == ["one", "two"]
    assert plan.placements[1].reason.endswith("its result has another shape)")


@pytest.mark.parametrize("scale", [lambda y: 0.5 * y, lambda y: y / 3, lambda y: F.dropout(y, 0.1, False)])
def test_what_only_scales_keeps_a_sum_in_place(scale):
    plan = planned(Pair(linear, nn.ReLU(), lambda one, two: scale(one) - two), torch.randn(5, 4))
    assert places(plan) == ["act"]


def test_conv1d_and_linear_that_are_added_are_laid_out_differently():
    model = Pair(linear, nn.ReLU())
    model.two = nn.Conv1d(5, 5, 3, padding=1)
    model.one = nn.Linear(4, 4)
    plan = planned(model, torch.randn(2, 5, 4))
    assert places(plan) == ["one", "two"]
    assert "what enters act is laid out in different ways" in why(plan)


# -- what enters a module --------------------------------------------------------------------------


class ByWidth(nn.Module):
    """One activation for inputs of two widths."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = (nn.ModuleList(nn.Linear(n, 2 * n) for _ in range(2)) for n in (4, 6))
        self.act, self.heads = nn.ReLU(), nn.ModuleList([nn.Linear(8, 3), nn.Linear(12, 3)])
        self.norm = nn.LayerNorm(12)
        self.normed = False

    def forward(self, x: Tensor) -> Tensor:
        wide = x.shape[-1] == 6
        one, two = self.wide if wide else self.narrow
        y = one(x) + two(x)
        return self.heads[wide](self.act(self.norm(y) if wide and self.normed else y))


@pytest.mark.parametrize("normed", [False, True])
def test_examples_of_two_widths_are_done_by_branch(normed):
    model = ByWidth()
    model.normed = normed
    examples = [(torch.randn(2, 4),), (torch.randn(2, 6),)]
    plan = planned(model, examples)
    both = ["narrow.0", "narrow.1", *([] if normed else ["wide.0", "wide.1"])]
    assert places(plan) == both
    assert "what enters act is laid out in different ways" in why(plan)


class Turned(nn.Module):
    """An activation that turns what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x.transpose(1, 2))


@pytest.mark.parametrize("join", [plus, lambda one, two: (one + two).transpose(1, 2)])
def test_a_module_that_turns_what_it_is_given_has_no_norm(join):
    assert places(planned(Pair(linear, Turned(), join), torch.randn(2, 5, 4))) == ["one", "two"]


class Gate(nn.Module):
    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * torch.sigmoid(gate)


class Gated(Pair):
    def forward(self, x: Tensor) -> Tensor:
        one, two = self.one(x), self.two(x)
        return self.head(self.act(one + two, one - two))


def test_a_gate_that_is_given_the_same_layers_twice_has_no_norm():
    assert places(planned(Gated(linear, Gate()), torch.randn(5, 4))) == ["one", "two"]


class Named(Pair):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.act(input=self.one(x) + self.two(x))))


@pytest.mark.parametrize("act", [nn.BatchNorm1d(8), nn.Tanh()])
def test_a_module_that_is_called_by_keyword_has_no_norm(act):
    plan = planned(Named(linear, act), torch.randn(5, 4))
    assert places(plan) == ["one", "two"]
    assert "act is not given it as an unnamed first argument" in why(plan)


def test_an_activation_with_parameters_has_no_norm():
    assert "act has parameters of its own" in why(planned(Pair(linear, nn.PReLU()), torch.randn(5, 4)))


def test_what_enters_an_excluded_module_is_done_by_branch():
    plan = planned(Pair(linear, nn.ReLU()), torch.randn(5, 4), exclude=["act"])
    assert places(plan) == ["one", "two"]
    assert why(plan) == "enters relu in a sum (no norm can hang there: act is excluded)"


class Tupled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(8, 4, 1, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return F.conv2d(x, self.kernel), None


class Three(Pair):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.three = Tupled()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.one(x) + self.two(x) + self.three(x)[0]))


def test_a_layer_without_a_place_for_a_norm_leaves_that_of_the_sum_as_it_is():
    (found,) = planned(Three(conv2d, nn.ReLU()), torch.randn(2, 4, 5, 6)).placements
    assert (found.module, found.layout, found.width) == ("act", "sample", 8)


# -- sums and other things -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "join",
    [
        lambda one, two: one * two,
        lambda one, two: torch.where(torch.ones_like(one) > 0, one, two),
        lambda one, two: torch.cat([one, two], 1),
        lambda one, two: torch.stack([one, two], 1),
        lambda one, two: one @ two.transpose(1, 2) @ two,
    ],
)
def test_products_choices_and_lists_are_no_sums(join):
    plan = planned(Pair(linear, nn.ReLU(), join), torch.randn(3, 5, 4))
    assert places(plan) == ["one", "two"]
    assert why(plan) == "enters relu"
    assert plan.weights["one.weight"].role is plan.weights["two.weight"].role is nap.Role.SCALE_INVARIANT


class OneLayer(nn.Module):
    def __init__(self, layer: nn.Module, between: Callable[[Tensor], Tensor], norm: nn.Module) -> None:
        super().__init__()
        self.layer, self.norm, self.act, self.head = layer, norm, nn.ReLU(), nn.LazyLinear(3)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.norm(self.between(self.layer(x)))))


@pytest.mark.parametrize(
    ("layer", "between", "norm", "shape", "where"),
    [
        (conv2d, lambda y: F.max_pool2d(y, 2), nn.BatchNorm2d(8), (3, 4, 6, 6), "norm"),
        (conv2d, lambda y: F.adaptive_avg_pool2d(y, 1), nn.BatchNorm2d(8), (3, 4, 6, 6), "norm"),
        (conv1d, lambda y: F.avg_pool1d(y, 2), nn.BatchNorm1d(8), (3, 4, 6), "norm"),
        (conv2d, lambda y: F.interpolate(y, scale_factor=2), nn.BatchNorm2d(8), (3, 4, 6, 6), "layer"),
        (conv2d, lambda y: y.flatten(2), nn.BatchNorm1d(8), (3, 4, 6, 6), "layer"),
        (linear, lambda y: y.transpose(1, 2), nn.BatchNorm1d(8), (3, 6, 4), "layer"),
        (linear, lambda y: y.transpose(1, 2), nn.BatchNorm1d(8), (3, 8, 4), "layer"),
    ],
)
def test_a_norm_comes_after_a_pool_and_after_nothing_else(layer, between, norm, shape, where):
    assert places(planned(OneLayer(layer(), between, norm), torch.randn(shape))) == [where]


def test_weights_of_a_sum_are_scale_invariant_together_with_their_biases_and_not_without():
    model, x = Pair(linear, nn.ReLU()).double(), torch.randn(5, 4, dtype=torch.float64)
    planned(model, x, eps=0.0)
    with torch.no_grad():
        before = model(x)
        for layer in (model.one, model.two):
            layer.weight.mul_(3.0)
        assert relative_change([before], [model(x)]) > 1e-2
        for layer in (model.one, model.two):
            layer.bias.mul_(3.0)
        assert relative_change([before], [model(x)]) < 1e-12


# -- what carries it -------------------------------------------------------------------------------


class Started(nn.Module):
    """The first layer is in another dtype than all others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = nn.Linear(4, 4).bfloat16(), Pair(linear, nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.first(x.to(self.first.weight.dtype)).to(self.rest.one.weight.dtype))


def test_a_norm_on_an_activation_has_the_dtype_of_the_layers_in_front_of_it():
    model, x = Started(), torch.randn(5, 4)
    model(x)
    plan = nap.normalize_(model, x, residual="sum")
    assert places(plan) == ["rest.act"]
    assert Plan.from_json(plan.to_json()) == plan
    (norm,) = (m for m in model.modules() if isinstance(m, Norm))
    assert [p.dtype for p in norm.parameters()] == [torch.float32] * 2


def test_diagnostics_see_what_carries_a_norm_as_before() -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)
            self.norm, self.act = nn.BatchNorm2d(4), Own()

        def forward(self, x: Tensor) -> Tensor:
            y = self.act(self.a(x) + self.b(x))
            return self.head(torch.relu(self.norm(y + self.a(x) + self.b(x))))

    net, x = Net(), torch.randn(2, 3, 5, 5)
    before = unknown_in(net), is_weighted(net.norm)
    nap.normalize_(net, x, residual="sum")
    assert {"nap_norm"} <= {name for name, _ in net.act.named_children()}
    assert (unknown_in(net), is_weighted(net.norm)) == before
