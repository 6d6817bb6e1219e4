"""Normalised attention: torch's own semantics, plus norms that no path can bypass."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from nap.norms.attention import NormalizedMultiheadAttention, normalize_attention_
from nap.norms.norm import Eps

WIDTH, HEADS, BATCH, QUERIES, KEYS = 8, 2, 3, 5, 5


class NoNorm(nn.Module):
    """Takes what `Norm` takes and leaves it as it is."""

    def forward(self, y: Tensor, *weights: Tensor) -> Tensor:
        return y


def attention(seed: int = 0, **options) -> nn.MultiheadAttention:
    torch.manual_seed(seed)
    mha = nn.MultiheadAttention(WIDTH, HEADS, dtype=torch.float64, **options)
    for parameter in mha.parameters():
        nn.init.normal_(parameter)
    return mha


def normalized(seed: int = 0, *, eps: Eps = "relative", **options) -> NormalizedMultiheadAttention:
    mha = attention(seed, **options)
    normalize_attention_(mha, eps=eps)
    assert isinstance(mha, NormalizedMultiheadAttention)
    return mha


def inputs(mha: nn.MultiheadAttention, layout: str, keys: int = KEYS, seed: int = 1) -> tuple[Tensor, ...]:
    """Query, key and value as `layout` has them; the same tensor where the widths allow it."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(count: int, width: int) -> Tensor:
        shape = {"batch first": (BATCH, count), "time first": (count, BATCH), "unbatched": (count,)}[layout]
        return torch.randn(*shape, width, generator=generator, dtype=torch.float64)

    query = tokens(QUERIES, WIDTH)
    if mha._qkv_same_embed_dim and keys == QUERIES:
        return query, query, query
    return query, tokens(keys, mha.kdim), tokens(keys, mha.vdim)


def masks(kind: str, layout: str, keys: int = KEYS) -> dict:
    generator = torch.Generator().manual_seed(2)
    batch = 1 if layout == "unbatched" else BATCH
    blocked = torch.rand(batch * HEADS, QUERIES, keys, generator=generator) < 0.4
    blocked[..., 0] = False  # a query that may see nothing has no answer
    padding = torch.arange(keys) >= torch.tensor([keys, keys - 1, keys - 2])[:batch, None]
    if layout == "unbatched":
        padding = padding[0] | (torch.arange(keys) == keys - 1)
    graded = torch.randn(blocked.shape, generator=generator, dtype=torch.float64)
    causal = torch.ones(QUERIES, keys, dtype=torch.bool).triu(1)
    kinds: dict[str, dict] = {
        "none": {},
        "bool 2-D": {"attn_mask": blocked[0]},
        "float 2-D": {"attn_mask": graded[0]},
        "bool 3-D": {"attn_mask": blocked},
        "float 3-D": {"attn_mask": graded},
        "padding": {"key_padding_mask": padding},
        "float padding": {"key_padding_mask": padding.double() * -3},
        "both": {"attn_mask": blocked, "key_padding_mask": padding},
        "both float": {"attn_mask": graded[0], "key_padding_mask": padding.double() * -3},
        "causal": {"attn_mask": causal, "is_causal": True},
        "causal padding": {"attn_mask": causal, "is_causal": True, "key_padding_mask": padding},
    }
    return kinds[kind]


MASKS = ["none", "bool 2-D", "float 2-D", "bool 3-D", "float 3-D", "padding", "float padding"]
MASKS += ["both", "both float", "causal", "causal padding"]
OPTIONS = {
    "plain": {},
    "no bias": {"bias": False},
    "kdim vdim": {"kdim": 6, "vdim": 10},
    "bias kv": {"add_bias_kv": True},
    "zero key": {"add_zero_attn": True},
    "everything": {"kdim": 6, "vdim": 10, "add_bias_kv": True, "add_zero_attn": True},
}


def without_norms(mha: nn.MultiheadAttention) -> nn.MultiheadAttention:
    bare = copy.deepcopy(mha)
    normalize_attention_(bare)
    bare.add_module("q_norm", NoNorm())
    bare.add_module("k_norm", NoNorm())
    if mha.in_proj_bias is not None:
        mha.in_proj_bias.data[: 2 * WIDTH] = 0
    return bare


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("layout", ["batch first", "time first", "unbatched"])
def test_without_its_norms_it_is_torchs_attention(layout, options, mask):
    mha = attention(batch_first=layout == "batch first", **options)
    bare = without_norms(mha)
    for keys in (QUERIES, KEYS + 2):
        query, key, value = inputs(mha, layout, keys)
        given = masks(mask, layout, keys)
        for average in (True, False):
            expected = mha(query, key, value, average_attn_weights=average, **given)
            assert_close(
                bare(query, key, value, average_attn_weights=average, **given), expected, rtol=0, atol=1e-12
            )
        # With its causal hint torch also masks the extra keys, so its answer depends on need_weights.
        out, weights = bare(query, key, value, need_weights=False, **given)
        assert weights is None
        assert_close(out, expected[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("need_weights", [True, False])
def test_dropout_draws_what_torch_draws(need_weights):
    mha = attention(dropout=0.5, batch_first=True)
    bare = without_norms(mha)
    x = inputs(mha, "batch first")
    outputs = []
    for module in (mha, bare):
        torch.manual_seed(3)
        outputs.append(module(*x, need_weights=need_weights)[0])
    assert_close(outputs[1], outputs[0], rtol=0, atol=1e-12)
    assert not torch.allclose(bare.eval()(*x)[0], outputs[1])


@pytest.mark.parametrize("factor", [0.5, 3.0])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_query_and_key_weights_are_scale_invariant(options, factor):
    mha = normalized(**options)
    x = inputs(mha, "time first", KEYS + 1)
    before = mha(*x)
    if mha.in_proj_weight is None:
        scaled = [mha.q_proj_weight.data, mha.k_proj_weight.data]
        other = mha.v_proj_weight.data
    else:
        *scaled, other = mha.in_proj_weight.data.chunk(3)
    scaled += [] if mha.bias_k is None else [mha.bias_k.data]
    for weight in scaled:
        weight.mul_(factor)
        assert_close(mha(*x), before, rtol=0, atol=1e-9)
    other.mul_(factor)
    assert not torch.allclose(mha(*x)[0], before[0], atol=1e-3)


def test_every_head_of_every_token_has_unit_rms():
    mha = normalized()
    q, k, _ = mha._heads(*inputs(mha, "batch first"))
    assert_close(q.square().mean(-1), torch.ones_like(q[..., 0]), rtol=0, atol=1e-2)
    assert_close(k.square().mean(-1), torch.ones_like(k[..., 0]), rtol=0, atol=1e-2)


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_later_token_changes_nothing_before_it(need_weights):
    mha = normalized(batch_first=True)
    x = inputs(mha, "batch first")[0]
    later = x.clone()
    later[:, 3] += 10
    given = {**masks("causal", "batch first"), "need_weights": need_weights}
    before, after = mha(x, x, x, **given)[0], mha(later, later, later, **given)[0]
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3], after[:, 3])


def test_query_and_key_biases_are_zero_and_stay_zero_while_training():
    mha = normalized()
    optimizer = torch.optim.AdamW(mha.parameters(), lr=1e-2, weight_decay=0.1)
    x = inputs(mha, "time first")
    value_bias = mha.in_proj_bias[2 * WIDTH :].clone()
    for _ in range(3):
        optimizer.zero_grad()
        mha(*x)[0].square().sum().backward()
        optimizer.step()
    assert torch.count_nonzero(mha.in_proj_bias[: 2 * WIDTH]) == 0
    assert not torch.allclose(mha.in_proj_bias[2 * WIDTH :], value_bias)
    for name in ("q_norm.weight", "k_norm.weight"):
        assert not torch.allclose(mha.state_dict()[name], torch.ones(WIDTH // HEADS, dtype=torch.float64))


def test_the_gradient_is_right():
    mha = normalized(eps=1e-5, add_bias_kv=True, kdim=6, vdim=10)  # a relative eps counts as a constant
    x = [t[:3, :1].requires_grad_() for t in inputs(mha, "time first")]
    names, values = zip(*mha.named_parameters(), strict=True)

    def run(query, key, value, *parameters):
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(mha, given, (query, key, value))[0]

    assert torch.autograd.gradcheck(run, (*x, *values))


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_an_encoder_layer_cannot_bypass_the_norms_in_eval(norm_first, causal):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=True, norm_first=norm_first)
    layer = layer.double().eval()
    plain = copy.deepcopy(layer)
    normalize_attention_(layer.self_attn)
    x = torch.randn(BATCH, QUERIES, WIDTH, dtype=torch.float64)
    mask = torch.ones(QUERIES, QUERIES, dtype=torch.bool).triu(1) if causal else None
    for module in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        with_gradient = module(x, mask, is_causal=causal)
        with torch.no_grad():
            assert torch.equal(module(x, mask, is_causal=causal), with_gradient)
            assert not torch.allclose(plain(x, mask, is_causal=causal), with_gradient, atol=1e-3)


def test_a_lost_hook_is_an_error_and_not_a_bypass():
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=True).eval()
    normalize_attention_(layer.self_attn)
    layer.self_attn._forward_pre_hooks.clear()
    with torch.no_grad(), pytest.raises(ValueError, match="bypass q_norm"):
        layer(torch.randn(BATCH, QUERIES, WIDTH))


def test_a_nested_tensor_is_an_error_that_names_the_way_out():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=True), 1).eval()
    normalize_attention_(encoder.layers[0].self_attn)
    x, padding = torch.randn(2, 4, WIDTH), torch.tensor([[False] * 4, [False, False, True, True]])
    with_gradient = encoder(x, src_key_padding_mask=padding)
    with torch.no_grad():
        with pytest.warns(UserWarning, match="nested"), pytest.raises(ValueError, match="use_nested_tensor"):
            encoder(x, src_key_padding_mask=padding)
        encoder.use_nested_tensor = False
        assert torch.equal(encoder(x, src_key_padding_mask=padding), with_gradient)


def test_a_decoder_layer_trains_and_evaluates_with_it():
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 16, dropout=0.0, batch_first=True)
    normalize_attention_(layer.self_attn)
    normalize_attention_(layer.multihead_attn)
    target, memory = torch.randn(2, 4, WIDTH), torch.randn(2, 6, WIDTH)
    trained = layer(target, memory)
    trained.sum().backward()
    with torch.no_grad():
        assert torch.equal(layer.eval()(target, memory), trained)


def test_a_compiled_copy_without_graph_breaks_agrees():
    mha = normalized(batch_first=True)
    x = inputs(mha, "batch first")
    compiled = torch.compile(mha, fullgraph=True, backend="aot_eager")
    for given in ({}, {**masks("causal", "batch first"), "need_weights": False}):
        assert_close(compiled(*x, **given), mha(*x, **given))


def test_copies_pickles_and_state_dicts_are_the_same_attention():
    mha = normalized(add_bias_kv=True)
    mha.state_dict()["q_norm.weight"].normal_()
    x = inputs(mha, "time first")
    loaded = normalized(seed=5, add_bias_kv=True)
    loaded.load_state_dict(mha.state_dict())
    for other in (copy.deepcopy(mha), pickle.loads(pickle.dumps(mha)), loaded):
        assert type(other) is NormalizedMultiheadAttention
        assert torch.equal(other(*x)[0], mha(*x)[0])


def test_conversion_keeps_the_object_its_parameters_and_its_mode():
    mha = attention().eval()
    names, parameters = list(mha.state_dict()), list(mha.parameters())
    normalize_attention_(mha)
    assert isinstance(mha, NormalizedMultiheadAttention)
    assert list(mha.state_dict()) == [*names, "q_norm.weight", "k_norm.weight"]
    assert [p is q for p, q in zip(parameters, mha.parameters(), strict=False)] == [True] * len(parameters)
    assert not mha.q_norm.training
    assert mha.state_dict()["q_norm.weight"].dtype == torch.float64


def test_without_scale_there_is_nothing_new_to_train():
    mha = attention()
    before = list(mha.state_dict())
    normalize_attention_(mha, scale=False)
    assert list(mha.state_dict()) == before


def test_bfloat16_autocast_stays_near_float32():
    mha = normalized(batch_first=True, add_bias_kv=True).float()
    x = inputs(mha, "batch first")[0].float()
    for given in (masks("both", "batch first"), {**masks("causal", "batch first"), "need_weights": False}):
        exact = mha(x, x, x, **given)[0]
        with torch.autocast("cpu", torch.bfloat16):
            rough = mha(x, x, x, **given)[0]
        assert rough.dtype == torch.bfloat16
        assert_close(rough.float(), exact, rtol=0, atol=0.05 * exact.abs().max().item())


class OwnForward(nn.MultiheadAttention):
    def forward(self, query, *args, **kwargs):
        return query, None


def patched() -> nn.MultiheadAttention:
    mha = attention()
    mha.__dict__["forward"] = lambda query, *args: (query, None)
    return mha


@pytest.mark.parametrize(
    ("mha", "reason"),
    [
        (OwnForward(WIDTH, HEADS), "OwnForward is not a plain nn.MultiheadAttention"),
        (patched(), "not a plain nn.MultiheadAttention"),
        (normalized(), "already"),
        (nn.MultiheadAttention(4, 4), "heads of width 1"),
    ],
)
def test_refusals_say_why_and_touch_nothing(mha, reason):
    before = (type(mha), list(mha.state_dict()))
    with pytest.raises(ValueError, match=reason):
        normalize_attention_(mha)
    assert (type(mha), list(mha.state_dict())) == before


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"attn_mask": torch.zeros(1, KEYS)}, "attn_mask has shape"),
        ({"key_padding_mask": torch.zeros(KEYS, BATCH)}, "key_padding_mask has shape"),
        ({"attn_mask": torch.zeros(QUERIES, KEYS, dtype=torch.uint8)}, "ambiguous"),
        ({"is_causal": True}, "attn_mask"),
    ],
)
def test_a_bad_mask_is_named(given, reason):
    mha = normalized(batch_first=True)
    with pytest.raises(ValueError, match=reason):
        mha(*inputs(mha, "batch first"), **given)


def test_bad_inputs_are_named():
    mha = normalized(batch_first=True)
    x = inputs(mha, "batch first")[0]
    with pytest.raises(ValueError, match="3, 2 and 3 axes"):
        mha(x, x[0], x)
    with pytest.raises(ValueError, match="key has shape"):
        mha(x, x[:1], x[:1])
    with pytest.raises(ValueError, match="value has shape"):
        mha(x, x, x[:, 1:])
