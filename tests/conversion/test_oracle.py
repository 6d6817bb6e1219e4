"""The oracle itself, on nets whose right answer is known; the library takes no part."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.attention import Block, CausalByHand, FusedAttention, Language, TalkingHeads, tokens
from zoo.checks import _leaks, invariance_errors
from zoo.entry import Entry
from zoo.experts import TopKMixture
from zoo.oracle import Labels, awake, in_double, label
from zoo.recording import record


def needs(model: nn.Module, *args: Tensor) -> set[str]:
    return set(found(model, *args).needs)


def found(model: nn.Module, *args: Tensor) -> Labels:
    return label(model.eval(), args, {})


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


X = torch.linspace(-1, 1, 12).reshape(2, 6)


def mlp(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), *between, nn.Linear(8, 3))


@pytest.mark.parametrize(
    "activation", [nn.ReLU, nn.Tanh, nn.GELU, nn.SELU, nn.PReLU, nn.Hardswish, nn.LogSigmoid]
)
def test_a_layer_in_front_of_an_activation_needs_a_norm(activation: type[nn.Module]):
    assert needs(mlp(activation()), X) == {"0.weight"}


@pytest.mark.parametrize("norm", [nn.LayerNorm(8), nn.RMSNorm(8), nn.GroupNorm(1, 8)])
def test_with_a_norm_in_between_it_does_not(norm: nn.Module):
    assert needs(mlp(norm, nn.ReLU()), X) == set()


def test_a_norm_after_the_activation_is_too_late():
    assert needs(mlp(nn.ReLU(), nn.LayerNorm(8)), X) == {"0.weight"}


def test_batch_norm_in_eval_mode_is_no_norm():
    assert needs(mlp(nn.BatchNorm1d(8), nn.ReLU()), X) == {"0.weight"}


def test_of_a_linear_chain_both_need_it_and_one_norm_heals_both():
    assert needs(nn.Sequential(nn.Linear(6, 8), mlp_tail()), X) == {"0.weight", "1.0.weight"}
    assert needs(nn.Sequential(nn.Linear(6, 8), mlp_tail(nn.LayerNorm(8))), X) == set()


def mlp_tail(*norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), *norm, nn.ReLU(), nn.Linear(8, 3))


def test_an_output_sigmoid_is_left_alone_and_an_output_relu_is_not():
    squashed, rectified = (
        found(mlp(nn.ReLU()).append(nn.Sigmoid()), X),
        found(mlp(nn.ReLU()).append(nn.ReLU()), X),
    )
    assert squashed.left_alone == {"2.weight": "output"}
    assert set(rectified.needs) == {"0.weight", "2.weight"}


def test_a_gain_at_zero_hides_nothing():
    gain = nn.BatchNorm1d(8)
    nn.init.zeros_(gain.weight)
    assert needs(mlp(gain, nn.ReLU()), X) == {"0.weight"}


class Stream(nn.Module):
    """A residual stream with a norm in front of what reads it, or without."""

    def __init__(self, norm: bool):
        super().__init__()
        self.embed, self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.read, self.head = nn.Linear(8, 8), nn.Linear(8, 2)
        self.norm: nn.Module = nn.LayerNorm(8) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + 1e-3 * self.down(F.relu(self.up(self.norm(x))))
        return self.head(F.relu(self.read(self.norm(x))))


def test_what_a_norm_reads_from_a_sum_needs_none_however_small_its_share():
    assert needs(Stream(norm=True), X) == {"up.weight", "read.weight"}
    assert needs(Stream(norm=False), X) == {"embed.weight", "up.weight", "down.weight", "read.weight"}


def test_dividing_by_its_own_norm_counts_as_a_norm_and_its_clamp_as_none():
    class Divided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(F.relu(F.normalize(self.first(x), dim=-1)))

    assert needs(Divided(), X) == set()


@pytest.mark.parametrize("attention", [FusedAttention, CausalByHand])
def test_queries_and_keys_need_a_norm(attention: type[nn.Module]):
    assert needs(Language(Block(attention())), tokens()) == {
        "blocks.0.attention.qkv.weight",
        "blocks.0.feed.0.weight",
    }


def test_torchs_own_attention_is_seen_from_within():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    assert needs(layer, torch.randn(2, 3, 8)) == {"self_attn.in_proj_weight", "linear1.weight"}


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_gates_inside_recurrent_layers_are_seen(kind: Callable[..., nn.Module]):
    assert needs(kind(4, 3, batch_first=True), torch.randn(2, 5, 4)) == {"weight_ih_l0", "weight_hh_l0"}


def test_routers_and_logit_mixers_are_left_alone():
    routed = found(nn.Sequential(TopKMixture(), nn.LayerNorm(32), nn.Linear(32, 2)), torch.randn(2, 6, 32))
    assert routed.left_alone == {"0.router.weight": "softmax of a linear layer"}
    assert set(routed.needs) == {f"0.experts.{i}.0.weight" for i in range(3)}
    mixed = found(Language(Block(TalkingHeads())), tokens())
    assert mixed.left_alone == {"blocks.0.attention.before.weight": "mixes attention logits"}
    assert "blocks.0.attention.qkv.weight" in mixed.needs


def test_a_table_of_attention_biases_is_no_weight():
    class Biased(FusedAttention):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            return self.out((q @ k.mT + self.table).softmax(-1) @ v)

    labels = found(Language(Block(Biased())), tokens())
    assert "blocks.0.attention.table" not in {*labels.needs, *labels.fine, *labels.left_alone}


def test_casts_to_float32_do_not_round_what_is_measured():
    class Casting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(super().forward(x.float().to(torch.float32).to(self.weight.dtype)))

    model, x = awake(Casting(6, 4)), X.double() / 3
    exact = F.linear(x, *model.parameters())
    assert torch.equal(record(model, (x,), {}).calls[0].input, exact)


def test_batch_norm_counts_as_a_norm_where_asked():
    net = mlp(nn.BatchNorm1d(8), nn.ReLU()).eval()
    assert set(label(net, (X,), {}, batch_statistics=True).needs) == set()


def test_of_a_gated_linear_unit_only_the_gate_is_bent():
    calls = record(nn.GLU(), (X.double(),), {}).calls
    assert torch.equal(calls[0].input, X.double()[:, 3:])


def test_a_clamp_counts_once_it_binds():
    class Clipped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x).clamp(-100, 100))

    assert needs(Clipped(), X) == {"first.weight"}


def test_the_model_that_is_judged_stays_as_it_was():
    entry = Entry("mlp", "test", lambda: (mlp(nn.ReLU()), (X,), {}))
    model, args, kwargs = entry.build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    label(model, args, kwargs)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_invariance_is_measured_not_believed():
    net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.LayerNorm(8, eps=0.0), nn.ReLU(), nn.Linear(8, 3))
    errors = invariance_errors(net, (X,), {}, ["0.weight", "3.weight"])
    assert errors["0.weight"] < 1e-12 < 0.1 < errors["3.weight"]


def leaks(model: nn.Module, x: Tensor, **about: Any) -> list[str]:
    entry = Entry("conv", "test", lambda: (nn.Conv1d(2, 3, 1), (x,), {}), **about)
    original, args, kwargs = entry.build()
    return _leaks(entry, awake(original), awake(model), *in_double(args, kwargs))


def test_leaks_across_time_and_batch_are_found():
    x = torch.randn(2, 2, 5)
    per_position, over_time = nn.RMSNorm(3), nn.GroupNorm(1, 3)
    assert leaks(nn.Sequential(nn.Conv1d(2, 3, 1), Swapped(per_position)), x, causal=2) == []
    assert "later token" in leaks(nn.Sequential(nn.Conv1d(2, 3, 1), over_time), x, causal=2)[0]
    assert "another sample" in leaks(nn.Sequential(nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3).train()), x)[0]


class Swapped(nn.Module):
    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.mT).mT


def test_a_mislabelled_entry_is_an_error():
    both_ways = nn.Conv1d(2, 3, 3, padding=1)
    entry = Entry("conv", "test", lambda: (both_ways, (torch.randn(2, 2, 5),), {}), causal=2)
    model, args, kwargs = entry.build()
    with pytest.raises(AssertionError, match="mislabelled"):
        _leaks(entry, awake(model), awake(model), *in_double(args, kwargs))
