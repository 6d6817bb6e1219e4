"""Which norms go where: the rules of the paper and the options that bend them, one small net for each."""

import copy
import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap
from nap.conversion.placement import Placement
from nap.norms.norm import Norm

X = torch.linspace(-1, 1, 16).sin().reshape(2, 8)
TOKENS = torch.linspace(-3, 3, 160).cos().reshape(2, 5, 16)


def placed(model: nn.Module, x: Tensor = X, **options) -> dict[str, Placement]:
    plan = nap.plan(model, x, **options)
    assert not plan.problems, plan
    return {p.module: p for p in plan.placements}


def mlp() -> Any:
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))


# what is left alone


@pytest.mark.parametrize("norm", [nn.LayerNorm(6), nn.RMSNorm(6), nn.GroupNorm(2, 6)])
def test_a_path_with_a_norm_is_not_touched(norm):
    assert placed(nn.Sequential(nn.Linear(8, 6), norm, nn.ReLU(), nn.Linear(6, 3))) == {}


@pytest.mark.parametrize("end", [nn.Softmax(-1), nn.LogSoftmax(-1), nn.Sigmoid(), nn.Tanh()])
def test_nothing_goes_before_the_final_squashing(end):
    assert list(placed(nn.Sequential(mlp(), end))) == ["0.0", "0.2"]


def test_biases_are_removed_where_a_norm_follows_and_kept_elsewhere():
    model = mlp()
    nap.normalize_(model, X)
    kept = {name for name, _ in model.named_parameters() if name.endswith("bias")}
    assert kept == {"4.bias", "0.nap_norm.bias", "2.nap_norm.bias"}


class Shifted(nn.Module):
    """Its shift acts before the product, so no offset of a norm could take its place."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.bias = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x + self.shift, self.weight) + self.bias


def test_only_what_is_added_to_the_product_counts_as_a_bias():
    model: Any = nn.Sequential(Shifted(), nn.ReLU(), nn.Linear(8, 3))
    nap.normalize_(model, X)
    assert model[0].shift.sum() == 8
    assert model[0].bias.sum() == 0
    assert not model[0].bias.requires_grad
    assert model[0].shift.requires_grad


# convolutions and BatchNorm

IMAGES = {1: (2, 3, 9), 2: (2, 3, 9, 9), 3: (2, 3, 5, 5, 5)}


@pytest.mark.parametrize("space", [1, 2, 3])
def test_convolutions_are_normalised_per_sample_but_sequences_per_position(space):
    conv, batch_norm = (getattr(nn, f"{name}{space}d") for name in ("Conv", "BatchNorm"))
    x = torch.randn(IMAGES[space])
    (row,) = placed(nn.Sequential(conv(3, 6, 3), nn.ReLU()), x).values()
    assert (row.layout, row.spatial) == ("channels" if space == 1 else "sample", space)
    assert row.offset
    assert row.remove == ("bias",)
    model: Any = nn.Sequential(conv(3, 6, 3), batch_norm(6), nn.ReLU())
    (row,) = placed(model, x).values()
    assert not row.offset  # BatchNorm would cancel it
    assert row.remove == ("bias",)
    assert placed(model, x, batch_norm="keep") == {}


@pytest.mark.parametrize("space", [1, 2, 3])
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.preserve_format])
def test_each_position_can_be_normalised_by_itself(space, memory):
    conv: Any = getattr(nn, f"Conv{space}d")(3, 6, 3).double()
    model = nn.Sequential(copy.deepcopy(conv), nn.ReLU())
    x = torch.randn(IMAGES[space], dtype=torch.float64)
    x = x if memory is torch.contiguous_format else x.transpose(1, -1).contiguous().transpose(1, -1)
    nap.normalize_(model, x, over="position", eps=1e-5)
    conv.bias = None
    by_hand = F.layer_norm(conv(x).movedim(1, -1), (6,), eps=1e-5).movedim(-1, 1).relu()
    torch.testing.assert_close(model(x), by_hand)


def test_a_norm_on_each_position_of_a_sum_and_none_that_a_batch_norm_could_join():
    model: Any = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
    x = torch.randn(IMAGES[2])
    for residual in ("branch", "sum"):
        (row,) = placed(model, x, over="position", residual=residual).values()
        assert (row.layout, row.spatial, row.offset) == ("channels", 2, False)
    nap.normalize_(model, x, over="position")
    assert nap.fuse_batch_norms_(model, x) == {}


def test_a_plan_from_before_there_was_this_choice_can_still_be_read():
    plan = nap.plan(nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU()), torch.randn(IMAGES[2]))
    text = json.loads(plan.to_json())
    del text["options"]["over"]
    assert nap.Plan.from_json(json.dumps(text)) == plan


# sums


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(8, 6), nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.left(x) + self.right(x)))


def test_each_branch_of_a_residual_sum_is_normalised_at_its_producer():
    assert list(placed(Sum())) == ["left", "right"]


class Noisy(nn.Module):
    """mu(x) + sigma(x·ε)·ε, with two layers inside or with four parameters of its own."""

    e_in: Tensor
    e_out: Tensor

    def __init__(self, layers: bool):
        super().__init__()
        if layers:
            self.mu, self.sigma = nn.Linear(8, 6), nn.Linear(8, 6)
        else:
            self.w_mu, self.w_sigma = nn.Parameter(torch.randn(6, 8)), nn.Parameter(torch.randn(6, 8))
            self.b_mu, self.b_sigma = nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(6))
        self.layers = layers
        self.register_buffer("e_in", torch.randn(8))
        self.register_buffer("e_out", torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.layers:
            return self.mu(x) + self.sigma(x * self.e_in) * self.e_out
        weight = self.w_mu + self.w_sigma * torch.outer(self.e_out, self.e_in)
        return F.linear(x, weight, self.b_mu + self.b_sigma * self.e_out)


class LoRA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = (
            nn.Linear(8, 6),
            nn.Linear(8, 2, bias=False),
            nn.Linear(2, 6, bias=False),
        )
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


@pytest.mark.parametrize(
    "layer", [Noisy(True), Noisy(False), LoRA()], ids=["two layers", "parameters", "LoRA"]
)
def test_a_layer_made_of_several_products_gets_one_norm_on_their_sum(layer):
    model: Any = nn.Sequential(layer, nn.ReLU(), nn.Linear(6, 3))
    assert list(placed(model)) == ["0"]
    nap.normalize_(model, X)
    out = model[0](X)
    torch.testing.assert_close(out, F.layer_norm(out, (6,)), rtol=1e-3, atol=1e-3)
    assert not any(
        p.any() for n, p in layer.named_parameters() if "b_" in n or n.endswith(("mu.bias", "base.bias"))
    )


def test_a_shared_module_gets_one_norm_and_tied_weights_one_each():
    shared = nn.Linear(8, 8)
    assert list(placed(nn.Sequential(shared, nn.ReLU(), shared, nn.ReLU(), nn.Linear(8, 3)))) == ["0"]
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    model: Any = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(8, 3))
    nap.normalize_(model, X)
    assert [type(m) for m in model.modules()].count(Norm) == 2
    assert model[0].weight is model[2].weight
    assert nap.verify(model, X).scale_invariant == 1


# attention


class Attention(nn.Module):
    def __init__(self, layout: str, groups: int = 4):
        super().__init__()
        self.layout, self.groups = layout, groups
        if layout == "separate":
            self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 4 * groups), nn.Linear(16, 4 * groups)
        else:
            self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.layout == "separate":
            q, k, v = (f(x).unflatten(-1, (-1, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        elif self.layout == "side by side":
            q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        else:
            q, k, v = self.qkv(x).unflatten(-1, (4, 3, 4)).permute(3, 0, 2, 1, 4)
        k, v = (t.repeat_interleave(4 // self.groups, 1) for t in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


LAYOUTS = [("separate", 4), ("separate", 2), ("separate", 1), ("side by side", 4), ("head by head", 4)]


@pytest.mark.parametrize(("layout", "groups"), LAYOUTS)
def test_queries_and_keys_are_normalised_per_head_and_never_across_tokens(layout, groups):
    model = Attention(layout, groups)
    rows = placed(model, TOKENS)
    assert list(rows) == (["q", "k"] if layout == "separate" else ["qkv"])
    for row in rows.values():
        assert {s.head for s in row.sections if s.name} == {4}
        assert (row.centre, row.offset) == (False, False)
    nap.normalize_(model, TOKENS)
    norms = [m for m in model.modules() if isinstance(m, Norm)]
    assert {(n.width, n.centre, n.bias) for n in norms} == {(4, False, None)}
    later = TOKENS.clone()
    later[:, -1] += 1
    before, after = model(TOKENS), model(later)
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.equal(before[:, -1], after[:, -1])
    assert placed(Attention(layout, groups), TOKENS, qk_norm=False) == {}


class Parallel(nn.Module):
    """Queries, keys, values and the gate of a feed-forward part from one projection."""

    def __init__(self) -> None:
        super().__init__()
        self.all, self.out = nn.Linear(16, 64), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        *qkv, gate = self.all(x).split(16, -1)
        q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in qkv)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.out(torch.cat([mixed, F.gelu(gate)], -1))


def test_a_gate_beside_queries_and_keys_is_normalised_as_a_gate():
    model: Any = Parallel()
    nap.normalize_(model, TOKENS)
    parts = model.all.nap_norm.parts
    assert {name: (norm.width, norm.centre) for name, norm in parts.items()} == {
        "q": (4, False), "k": (4, False), "part": (16, True),
    }  # fmt: skip
    nap.verify(model, TOKENS)


# options


def test_norm_and_affine_and_eps():
    model = mlp()
    nap.normalize_(model, X, norm="rms", affine="scale", eps=1e-3)
    norm = model[0].nap_norm
    assert (norm.centre, norm.weight is None, norm.bias, norm.relative, norm.eps) == (
        False,
        False,
        None,
        False,
        1e-3,
    )
    bare = mlp()
    nap.normalize_(bare, X, affine="none")
    assert list(bare[0].nap_norm.parameters()) == []
    torch.testing.assert_close(bare[0](X).mean(-1), torch.zeros(2), atol=1e-6, rtol=0)


def test_exclude_and_allow():
    assert list(placed(nn.Sequential(mlp(), mlp()[:0]), exclude=["0.2"])) == ["0.0"]
    assert placed(nn.Sequential(mlp()), exclude=["0"]) == placed(mlp(), exclude=[""]) == {}
    cell = nn.Sequential(nn.RNNCell(8, 4), nn.Linear(4, 3))
    (problem,) = nap.plan(cell, X).problems
    assert problem.name == "0"
    assert placed(cell, allow=["0"]) == {}
    with pytest.raises(ValueError, match=r"gates inside.*allow=\['0'\]"):
        nap.normalize_(cell, X)


def test_a_gate_of_one_feature_is_left_alone_and_noted():
    gate = nn.Sequential(nn.Linear(8, 1), nn.Sigmoid(), nn.Linear(1, 3))
    plan = nap.normalize_(gate, X)
    assert plan.placements == ()
    assert [note.name for note in plan.left_alone] == ["0"]
    assert plan.left_alone[0].reason.startswith("it enters sigmoid with one feature, and a norm over one")
    assert plan.weights["0.weight"].role is nap.Role.UNNORMALISED
    assert placed(gate, allow=["0"]) == {}


@pytest.mark.parametrize("one", [nn.ReLU(), nn.LeakyReLU()])
def test_a_final_relu_of_one_feature_counts_as_the_output(one):
    plan = nap.normalize_(nn.Sequential(mlp(), nn.ReLU(), nn.Linear(3, 1), one), X)
    assert [note.name for note in plan.left_alone] == ["2"]
    assert plan.weights["2.weight"].role is nap.Role.OUTPUT


def test_recurrence_is_a_choice():
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.GRU(16, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0])

    assert [p.name for p in nap.plan(Reader(), TOKENS).problems] == ["rnn"]
    assert placed(Reader(), TOKENS, rnn="layernorm")["rnn"].action == "normalise recurrence"


BAD = [("norm", "batch"), ("affine", "offset"), ("batch_norm", "drop"), ("rnn", "skip"), ("qk_norm", "yes"),
       ("eps", "tiny"), ("eps", -1.0), ("eps", None), ("eps", float("nan")), ("exclude", "0"), ("allow", "0"),
       ("exclude", ["nothing"])]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_options_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        nap.plan(mlp(), X, **{name: value})


class SharedKeys(nn.Module):
    """Eight query heads share one key head; with or without the usual 1/√d."""

    def __init__(self, scaled: bool):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(16, 128), nn.Linear(16, 16), nn.Linear(16, 16)
        self.out, self.scale = nn.Linear(128, 4), 16**-0.5 if scaled else 1.0

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (8, 16)).transpose(1, 2)
        k, v = (layer(x).unsqueeze(1).expand(-1, 8, -1, -1) for layer in (self.k, self.v))
        weights = torch.softmax(q @ k.transpose(-2, -1) * self.scale, -1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(("scaled", "gain"), [(True, 1.0), (False, 16**-0.25)])
def test_logits_start_at_unit_scale_even_where_the_model_does_not_divide_by_the_root_of_d(scaled, gain):
    plan = nap.plan(SharedKeys(scaled), torch.randn(2, 5, 16))
    assert {p.module: pytest.approx(p.gain, rel=1e-3) for p in plan.placements} == {"q": gain, "k": gain}
