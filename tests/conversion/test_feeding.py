"""Layers fed by what is no input: noise, buffers, positions, numbers, functions nobody sees into."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap
from nap.weights import Role

X = torch.linspace(-2, 2, 24).sin().reshape(3, 8)


@torch.jit.script
def eighth(x: Tensor) -> Tensor:
    return x / 8


class Fed(nn.Module):
    """A function of the input in front of a small network."""

    def __init__(self, before: Callable[[Any], Tensor]):
        super().__init__()
        self.before, self.head = before, nn.Linear(6, 2)
        self.layer: nn.Module = nn.Linear(8, 6)
        self.settings: Settings | None = None

    def forward(self, x: Any, *more: Any) -> Tensor:
        return self.head(F.relu(self.layer(self.before(x))))


class Holder:
    def __init__(self, x: Tensor):
        self.inside = {"x": x}


class Positions(nn.Module):
    where: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("where", torch.linspace(0, 1, 24).reshape(3, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.where


def number(x: Tensor) -> Tensor:
    time = torch.tensor([7.0]) * torch.arange(1, 5)
    return torch.cat([time.sin(), time.cos()]).expand(3, 8)


FED: dict[str, Callable[[Any], Tensor]] = {
    "scripted": eighth,
    "numpy": lambda x: torch.from_numpy(np.asarray(x) / 8),
    "vmap": torch.vmap(lambda x: x / 8),
    "noise": lambda x: torch.randn(3, 8),
    "buffer": Positions(),
    "arange": lambda x: torch.arange(24.0).reshape(3, 8),
    "number": number,
    "list": lambda x: torch.tensor(x.tolist()),
}


@pytest.mark.parametrize("before", FED.values(), ids=FED.keys())
def test_a_layer_is_normalised_whatever_feeds_it(before):
    plan = nap.plan(Fed(before), X)
    assert [p.module for p in plan.placements] == ["layer"]
    assert plan.weights["layer.weight"].role is Role.SCALE_INVARIANT
    assert plan.weights["head.weight"].role is Role.OUTPUT


def test_tensors_inside_an_object_beside_a_tensor_are_inputs():
    class Two(Fed):
        def forward(self, x: Tensor, *more: Holder) -> Tensor:
            return super().forward(more[0].inside["x"]) + x.mean()

    assert [p.module for p in nap.plan(Two(nn.Identity()), (X, Holder(X))).placements] == ["layer"]


class Raw(nn.Module):
    """A matrix of parameters, without a layer around it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def test_noise_times_a_matrix_is_the_result_of_a_layer():
    model = Fed(lambda x: torch.randn(3, 8))
    model.layer = Raw()
    assert [p.module for p in nap.plan(model, X).placements] == ["layer"]

    class Inside(Raw):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(torch.randn(3, 8) @ self.weight)

    model.layer = Inside()
    assert [(p.module, p.weights) for p in nap.normalize_(model, X).placements] == [("layer", ("weight",))]
    assert nap.verify(model, X).scale_invariant == 1


def test_a_basis_times_coefficients_is_refused_where_it_is_used_as_a_weight():
    class Basis(Raw):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x @ (torch.eye(8) @ self.weight))

    model = Fed(nn.Identity())
    model.layer = Basis()
    assert [problem.name for problem in nap.plan(model, X).problems] == ["layer.weight"]


def test_a_product_of_two_matrices_in_front_of_a_relu_is_named():
    class Adjacency(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(4, 3))
            self.head = nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.relu(torch.mm(self.one, self.two)).softmax(-1) @ x)

    assert [problem.name for problem in nap.plan(Adjacency(), X).problems] == ["one"]


class LowRank(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.plain, self.up, self.down = (
            nn.Parameter(torch.randn(n, m)) for n, m in ((6, 8), (6, 2), (2, 8))
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.plain + self.up @ self.down)


class Basis(nn.Module):
    basis: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("basis", torch.randn(4, 8))
        self.weight = nn.Parameter(torch.randn(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight @ self.basis)


class Smoothed(nn.Module):
    """A kernel that is smoothed by a fixed filter, which must not make it an input."""

    kernel: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 8))
        self.register_buffer("kernel", torch.ones(1, 1, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, F.conv1d(self.weight[:, None], self.kernel, padding=1)[:, 0])


MADE = {
    "W + BA": LowRank,
    "basis": Basis,
    "smoothed": Smoothed,
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 6)),
}


@pytest.mark.parametrize("layer", MADE.values(), ids=MADE.keys())
def test_weights_that_are_made_of_products_stay_weights(layer):
    model = Fed(nn.Identity())
    model.layer = layer()
    plan = nap.normalize_(model, X)
    assert [p.module for p in plan.placements] == ["layer"]
    assert {w.role for w in plan.weights.values()} <= {*Role} - {Role.UNNORMALISED, Role.CHAIN}
    nap.verify(model, X)


def test_learned_frequencies_of_rotary_embeddings_are_no_layer():
    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frequencies, self.head = nn.Parameter(torch.randn(2, 8)), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            angle = torch.arange(3.0)[:, None] @ self.frequencies[:1]
            return self.head(x * angle.cos())

    assert nap.plan(Rotary(), X).problems == ()


@dataclass
class Settings:
    width: int = 8
    cache: Tensor = field(init=False)


def test_a_dataclass_with_unset_fields_is_no_obstacle():
    model = Fed(nn.Identity())
    model.settings = Settings()
    assert [p.module for p in nap.plan(model, X).placements] == ["layer"]


MULTIPLY = {
    "mm": torch.mm, "method": Tensor.mm, "matmul": torch.matmul, "spmm": torch.spmm,
    "sparse": torch.sparse.mm, "addmm": lambda a, y: torch.addmm(torch.zeros(()), a, y),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*[sS]parse.*")
@pytest.mark.parametrize("multiply", MULTIPLY.values(), ids=MULTIPLY.keys())
def test_a_graph_convolution_is_normalised(multiply):
    class Graph(Raw):
        def forward(self, x: Tensor) -> Tensor:
            adjacency = torch.eye(3)
            return multiply(
                adjacency.to_sparse() if "sp" in multiply.__name__ else adjacency, torch.mm(x, self.weight)
            )

    model = Fed(nn.Identity())
    model.layer = Graph()
    assert [p.module for p in nap.plan(model, X).placements] == ["layer"]


def test_verify_sees_below_autograd_that_a_matrix_is_no_bias(monkeypatch: pytest.MonkeyPatch):
    from nap.conversion import verification
    from nap.weights import Weight, WeightTable

    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
    nap.normalize_(model, X)
    table = nap.weight_groups(model)
    wrong = WeightTable({**table, "2.weight": Weight("2.weight", Role.BIAS)})
    monkeypatch.setattr(verification, "weight_groups", lambda _: wrong)
    with pytest.raises(ValueError, match=r"2\.weight enters a product, and the plan calls it bias"):
        nap.verify(model, X)


def test_a_table_of_positions_that_is_activated_is_normalised():
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places, self.head = nn.Embedding(3, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x * torch.tanh(self.places(torch.arange(3))))

    assert [p.module for p in nap.plan(Positions(), X).placements] == ["places"]
