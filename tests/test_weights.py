"""Every role occurs in some net, and is what its docstring says; axes are those that a reader would name."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

import nap
from nap.weights import WEIGHT_ROLES, Role, Weight, WeightTable


def roles(model: nn.Module, *args: Tensor, **options) -> WeightTable:
    return nap.plan(model, args, **options).weights


class Block(nn.Module):
    """One weight of (nearly) every role, each under its name."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 8)
        self.invariant = nn.Linear(8, 8)
        self.joint = nn.Linear(8, 8)
        self.sum_norm = nn.LayerNorm(8)
        self.normalised, self.own_norm = nn.Linear(8, 8, bias=False), nn.LayerNorm(8)
        self.chain, self.next = nn.Linear(8, 4), nn.Linear(4, 8)
        self.output = nn.Linear(8, 3)
        self.unused = nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        x = self.sum_norm(x + self.joint(F.relu(self.invariant(x))))
        x = F.gelu(self.own_norm(self.normalised(x)))
        return self.output(self.next(self.chain(x)))


def test_every_role_is_told_apart():
    model, ids = Block(), torch.tensor([[1, 2], [3, 4]])
    found = {name: row.role for name, row in roles(model, ids).items()}
    for name, role in {
        "table.weight": Role.EMBEDDING, "invariant.weight": Role.SCALE_INVARIANT, "joint.weight": Role.JOINT,
        "normalised.weight": Role.NORMALISED, "own_norm.weight": Role.AFFINE, "own_norm.bias": Role.AFFINE,
        "chain.weight": Role.CHAIN, "output.weight": Role.OUTPUT, "output.bias": Role.BIAS,
        "unused.weight": Role.UNUSED, "invariant.nap_norm.weight": Role.AFFINE,
    }.items():  # fmt: skip
        assert found[name] == role, name
    before = nap.weight_groups(model)
    assert {before[n].role for n in ("joint.weight", "output.weight")} == {Role.WEIGHT}
    seen = set(found.values()) | {Role.WEIGHT, Role.UNNORMALISED, Role.GAIN}  # the last two: other tests
    assert seen == set(Role)
    assert {Role.AFFINE, Role.BIAS}.isdisjoint(WEIGHT_ROLES)


def moved_by_scaling(model: nn.Module, name: str, x: Tensor) -> float:
    with torch.no_grad():
        before = model(x)
        model.get_parameter(name).mul_(3)
        after = model(x)
        model.get_parameter(name).div_(3)
    return float((after - before).abs().max() / before.abs().max())


def test_roles_tell_what_scaling_does():
    model, ids = Block().double(), torch.tensor([[1, 2], [3, 4]])
    nap.normalize_(model, ids)
    for row in nap.weight_groups(model).values():
        moved = moved_by_scaling(model, row.name, ids)
        if row.role in (Role.SCALE_INVARIANT, Role.UNUSED):
            assert moved < 1e-13, row
        elif row.role == Role.NORMALISED:
            assert 1e-13 < moved < 1e-3, row
        elif row.role in (Role.JOINT, Role.CHAIN, Role.OUTPUT, Role.EMBEDDING):
            assert moved > 1e-3, row


def test_a_norm_without_an_eps_of_its_own_is_not_exact():
    net = nn.Sequential(nn.Linear(8, 8, bias=False), nn.RMSNorm(8), nn.ReLU(), nn.Linear(8, 2))
    assert roles(net, torch.randn(2, 8))["0.weight"].role == Role.NORMALISED


class Factored(nn.Module):
    """W = b·a: the eps is relative to both factors together, so it cannot follow either of them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(4, 8)), nn.Parameter(torch.randn(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.b @ self.a)


class Twice(nn.Module):
    """The weight acts twice before its norm, and the eps follows it once."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight @ self.weight


@pytest.mark.parametrize("layer", [Factored(), Twice()])
def test_exactness_is_claimed_only_where_the_eps_follows_the_weight(layer):
    model = nn.Sequential(layer, nn.ReLU(), nn.LazyLinear(2))
    model(torch.randn(2, 8))
    nap.normalize_(model, torch.randn(2, 8))
    rows = [row for name, row in nap.weight_groups(model).items() if name in ("0.a", "0.b", "0.weight")]
    assert {row.role for row in rows} == {Role.NORMALISED}
    nap.verify(model, torch.randn(2, 8))


class Heads(nn.Module):
    """A policy: it returns objects that hold tensors, beside a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.policy, self.value = nn.Linear(8, 16), nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, x: Tensor):
        x = F.relu(self.body(x))
        return torch.distributions.Categorical(logits=self.policy(x)), self.value(x)


def test_what_a_distribution_holds_is_an_output():
    table = roles(Heads(), torch.randn(2, 8))
    assert table["policy.weight"].role == table["value.weight"].role == Role.OUTPUT
    assert table["body.weight"].role == Role.SCALE_INVARIANT


# axes


class Product(nn.Module):
    """A layer that a function of its parameter and its input makes, and an activation."""

    def __init__(self, shape: tuple[int, ...], product: Callable[[Tensor, Tensor], Tensor]):
        super().__init__()
        self.inner = nn.Module()
        self.weight, self.product = nn.Parameter(torch.randn(shape)), product

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.weight)


class Chosen(nn.Module):
    """Experts in one tensor, picked one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 6, 8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([F.linear(row, self.weight[i]) for i, row in enumerate(x[:, :3].unbind(1))], 1)


X = (4, 3, 8)
AXES = {  # layer, input shape, out_axis, stacked
    "Linear": (nn.Linear(8, 6), (4, 8), 0, 0),
    "Conv1d": (nn.Conv1d(8, 6, 3), (4, 8, 5), 0, 0),
    "Conv2d": (nn.Conv2d(8, 6, 3), (4, 8, 5, 5), 0, 0),
    "grouped Conv2d": (nn.Conv2d(8, 6, 3, groups=2), (4, 8, 5, 5), 0, 0),
    "ConvTranspose2d": (nn.ConvTranspose2d(8, 6, 3), (4, 8, 5, 5), 1, 0),
    "x @ W": (Product((8, 6), lambda x, w: x @ w), (4, 8), 1, 0),
    "x @ W.T": (Product((6, 8), lambda x, w: x @ w.T), (4, 8), 0, 0),
    "W @ x": (Product((6, 8), lambda x, w: (w @ x.mT).mT), (4, 5, 8), 0, 0),
    "addmm": (Product((8, 6), lambda x, w: torch.addmm(x.new_zeros(6), x, w)), (4, 8), 1, 0),
    "einsum": (Product((8, 6), lambda x, w: torch.einsum("bi,io->bo", x, w)), (4, 8), 1, 0),
    "einsum, rows first": (Product((6, 8), lambda x, w: torch.einsum("oi,bi->bo", w, x)), (4, 8), 0, 0),
    "einsum experts": (Product((3, 6, 8), lambda x, w: torch.einsum("eoi,bei->beo", w, x)), X, 1, 1),
    "matmul experts": (Product((3, 8, 6), lambda x, w: (x.transpose(0, 1) @ w).transpose(0, 1)), X, 2, 1),
    "bmm experts": (Product((3, 8, 6), lambda x, w: torch.bmm(x.transpose(0, 1), w)), X, 2, 1),
    "bmm experts, rows first": (Product((3, 6, 8), lambda x, w: torch.bmm(x.transpose(0, 1), w.mT)), X, 1, 1),
    "W with an axis in front": (Product((8, 6), lambda x, w: (x[:, None] @ w[None])[:, 0]), (4, 8), 1, 0),
    "W for each sample": (
        Product((8, 6), lambda x, w: torch.bmm(x[:, None], w.expand(len(x), 8, 6))[:, 0]),
        (4, 8),
        1,
        0,
    ),
    "W.T with an axis in front": (Product((6, 8), lambda x, w: x @ w.T[None]), (2, 4, 8), 0, 0),
    "a row for each feature": (
        Product((8, 6), lambda x, w: (x[..., None, None] @ w[:, None]).squeeze(-2)),
        (4, 8),
        1,
        0,
    ),
    "indexed experts": (Chosen(), X, None, 1),
}


@pytest.mark.parametrize(("layer", "shape", "out_axis", "stacked"), AXES.values(), ids=AXES.keys())
def test_output_and_stacked_axes(layer, shape, out_axis, stacked):
    model = nn.Sequential(layer, nn.ReLU())
    row = roles(model, torch.randn(shape))["0.weight"]
    assert row.role == Role.SCALE_INVARIANT
    nap.Projector(model)
    assert row.stacked == stacked
    assert out_axis is None or row.out_axis == out_axis


def test_the_layout_of_hugging_face():
    assert roles(nn.Sequential(Conv1D(6, 8), nn.ReLU()), torch.randn(4, 8))["0.weight"].out_axis == 1


# affine parts

ACTIVATIONS = {
    "relu": (F.relu, True), "leaky": (lambda x: F.leaky_relu(x, 0.2), True),
    "clamp": (lambda x: x.clamp(min=0), True),
    "gelu": (F.gelu, False), "tanh": (torch.tanh, False), "relu6": (F.relu6, False),
    "threshold": (lambda x: F.threshold(x, 0.5, 0.0), False),
    "softsign": (lambda x: x / (1 + x.abs()), False),
    "shifted relu": (lambda x: F.relu(x - 0.5), False), "two": (lambda x: F.relu(x) + F.silu(x), False),
}  # fmt: skip


class Activated(nn.Module):
    def __init__(self, activation: Callable[[Tensor], Tensor]):
        super().__init__()
        self.layer, self.norm, self.head = nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 2)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.activation(self.norm(self.layer(x))))


@pytest.mark.parametrize(("activation", "homogeneous"), ACTIVATIONS.values(), ids=ACTIVATIONS.keys())
def test_affine_parts_know_whether_only_relus_follow(activation, homogeneous):
    table = roles(Activated(activation), torch.randn(4, 8))
    assert [table[f"norm.{leaf}"].part for leaf in ("weight", "bias")] == ["scale", "offset"]
    assert [table[f"norm.{leaf}"].homogeneous for leaf in ("weight", "bias")] == [homogeneous] * 2


def test_a_table_is_a_mapping_that_prints_and_is_kept_as_json():
    table = roles(Block(), torch.tensor([[1, 2], [3, 4]]))
    assert WeightTable.from_json(table.to_json()) == table
    assert isinstance(table["joint.weight"], Weight)
    assert [row.name for row in table.of(Role.OUTPUT)] == ["output.weight"]
    assert str(table).splitlines()[0].split() == ["parameter", "role", "reason"]
    assert len(str(table).splitlines()) == len(table) + 1


def test_a_converted_part_of_a_larger_model_is_known():
    body = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 6))
    nap.normalize_(body, torch.randn(2, 8))
    table = nap.weight_groups(nn.ModuleDict({"body": body, "other": nn.ConvTranspose1d(6, 2, 3)}))
    assert table["body.0.weight"].role == Role.SCALE_INVARIANT
    assert table["other.weight"].role == Role.WEIGHT
    assert table["other.weight"].out_axis == 1


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_weights_of_recurrent_nets_are_weights(kind):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = kind(4, 8, batch_first=True), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0][:, -1])

    model = Net()
    nap.normalize_(model, torch.randn(2, 3, 4), rnn="layernorm")
    found = nap.weight_groups(model)
    assert {found[f"rnn.weight_{n}_l0"].role for n in ("ih", "hh")} == {Role.SCALE_INVARIANT}
    assert "rnn.weight_hh_l0" in nap.Projector(model).plan.names("project")


def test_weights_of_torchs_attention_are_weights():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = nn.MultiheadAttention(8, 2, kdim=4, vdim=4, add_bias_kv=True, batch_first=True)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.attend(x, y, y, need_weights=False)[0]

    found = nap.plan(Net(), (torch.randn(2, 3, 8), torch.randn(2, 5, 4))).weights
    assert found["attend.q_proj_weight"].role == found["attend.k_proj_weight"].role == Role.SCALE_INVARIANT
    assert found["attend.v_proj_weight"].role not in (Role.BIAS, Role.SCALE_INVARIANT)
    assert found["attend.bias_k"].role == Role.BIAS


def test_what_enters_a_nonlinearity_as_it_is_is_called_that():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2), nn.Sigmoid())
    nap.normalize_(net, torch.randn(2, 4), exclude=["0"])
    found = nap.weight_groups(net)
    assert (found["0.weight"].role, found["0.weight"].reason) == (Role.UNNORMALISED, "enters relu as it is")
    assert (found["4.weight"].role, found["4.weight"].reason) == (
        Role.OUTPUT, "reaches the output through sigmoid",
    )  # fmt: skip


def test_a_tied_table_is_the_output_layer():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.mix, self.head = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 9, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(F.relu(self.mix(self.table(ids))))

    model = Tied()
    nap.normalize_(model, torch.tensor([[1, 2]]))
    assert nap.weight_groups(model)["table.weight"].role == Role.OUTPUT
    assert "table.weight" not in nap.Projector(model, output="free").plan.names("project")


def test_bare_vectors_are_no_weights_in_any_shape():
    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.actor, self.log_std = nn.Linear(4, 1), nn.Parameter(torch.zeros(1, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.actor(x)

    assert nap.weight_groups(Agent())["log_std"].role == Role.BIAS
    assert nap.weight_groups(Agent())["actor.weight"].role == Role.WEIGHT
    assert roles(Agent(), torch.randn(2, 4))["log_std"].role == Role.BIAS


def test_a_layer_exchanged_after_conversion_has_no_known_role():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    nap.normalize_(net, torch.randn(2, 4))
    net[0] = nn.Linear(4, 8)
    found = nap.weight_groups(net)
    assert found["0.weight"].role == Role.WEIGHT
    assert "its norm is gone" in found["0.weight"].reason
    assert repr(found) == str(found)


def test_what_no_output_depends_on_is_not_cancelled_by_a_norm() -> None:
    """A policy that returns its mean alone: the example tells nothing of the scale of log σ."""

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.mean, self.log_std = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.body(x).relu()
            self.last = self.log_std(hidden).clamp(-20, 2).exp()
            return self.mean(hidden).tanh()

    model = Policy()
    nap.normalize_(model, torch.randn(3, 4))
    table = nap.weight_groups(model)
    assert table["body.weight"].role is Role.SCALE_INVARIANT
    assert table["log_std.weight"].role not in (Role.SCALE_INVARIANT, Role.NORMALISED)
