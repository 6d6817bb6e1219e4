"""The norms that step 1 inserts, against norms written by hand, in float64."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import nap
from nap.norms.norm import EPS, FusedNorm, Norm, Section
from nap.norms.weight_size import row_rms

quick = settings(deadline=None, max_examples=25)
scales = st.floats(1e-6, 1e6)
KINDS = pytest.mark.parametrize("centre", [True, False], ids=["layer", "rms"])


@pytest.fixture(autouse=True)
def float64():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def with_random_affine(norm: Norm) -> Norm:
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm


def by_hand(x: Tensor, axes: tuple[int, ...], centre: bool, eps: float) -> Tensor:
    x = x - x.mean(axes, keepdim=True) if centre else x
    return x / (x.square().mean(axes, keepdim=True) + eps).sqrt()


LAYOUTS = [  # layout, space axes, input shape, normalised axes, shape of the affine part
    pytest.param("features", 0, (4, 6), (-1,), (6,), id="vectors"),
    pytest.param("features", 0, (4, 5, 6), (-1,), (6,), id="tokens"),
    pytest.param("channels", 1, (4, 6, 5), (1,), (6, 1), id="conv1d, each position"),
    pytest.param("channels", 1, (6, 5), (0,), (6, 1), id="conv1d, unbatched"),
    pytest.param("channels", 2, (4, 6, 3, 2), (1,), (6, 1, 1), id="conv2d, each position"),
    pytest.param("sample", 2, (4, 6, 3, 2), (1, 2, 3), (6, 1, 1), id="conv2d"),
    pytest.param("sample", 2, (6, 3, 2), (0, 1, 2), (6, 1, 1), id="conv2d, unbatched"),
    pytest.param("sample", 3, (4, 6, 3, 2, 2), (1, 2, 3, 4), (6, 1, 1, 1), id="conv3d"),
]


@KINDS
@pytest.mark.parametrize(("layout", "spatial", "shape", "axes", "tail"), LAYOUTS)
def test_with_an_absolute_eps_it_is_the_textbook_norm(layout, spatial, shape, axes, tail, centre):
    norm = with_random_affine(Norm(6, centre=centre, eps=0.1, layout=layout, spatial=spatial))
    x = torch.randn(shape)
    assert norm.weight is not None
    assert norm.bias is not None
    expected = by_hand(x, axes, centre, 0.1) * norm.weight.view(tail) + norm.bias.view(tail)
    torch.testing.assert_close(norm(x), expected, rtol=1e-12, atol=1e-12)


def test_it_is_torchs_own_norm():
    x, image = torch.randn(4, 6), torch.randn(4, 6, 3, 3)
    torch.testing.assert_close(Norm(6, eps=1e-5)(x), nn.LayerNorm(6)(x))
    torch.testing.assert_close(Norm(6, eps=1e-5, centre=False, offset=False)(x), nn.RMSNorm(6, eps=1e-5)(x))
    torch.testing.assert_close(
        Norm(6, eps=1e-5, layout="sample", spatial=2)(image), nn.GroupNorm(1, 6)(image), rtol=1e-12, atol=0
    )


def test_the_affine_parts_are_there_only_when_asked_for():
    assert [n for n, _ in Norm(6, offset=False).named_parameters()] == ["weight"]
    assert list(Norm(6, scale=False, offset=False).parameters()) == []
    x = torch.randn(3, 6)
    torch.testing.assert_close(Norm(6, eps=0.0, gain=0.25)(x), 0.25 * Norm(6, eps=0.0)(x))


# the relative eps


@KINDS
@quick
@given(c=scales)
def test_the_weight_in_front_is_scale_invariant_for_every_factor(centre, c):
    x, weight = torch.randn(3, 8), torch.randn(5, 8)
    norm = with_random_affine(Norm(5, centre=centre))
    torch.testing.assert_close(
        norm(x @ (c * weight).T, c * weight), norm(x @ weight.T, weight), rtol=1e-12, atol=1e-12
    )


@quick
@given(c=scales)
def test_an_absolute_eps_is_not(c):
    x, weight = torch.randn(3, 8), torch.randn(5, 8)
    norm = Norm(5, eps=1e-5)
    moved = (norm(x @ (c * weight).T) - norm(x @ weight.T)).abs().max()
    assert moved > 1e-9 or 0.99 < c < 1.01


@KINDS
@quick
@given(c=scales)
def test_the_gradient_scales_as_one_over_the_weight_and_is_orthogonal_to_it(centre, c):
    """∇f(cW) = ∇f(W)/c exactly; ⟨∇f, W⟩ = 0 but for eps, as with any LayerNorm."""
    torch.manual_seed(0)
    x, weight = torch.randn(3, 8), torch.randn(5, 8)
    norm = with_random_affine(Norm(5, centre=centre))

    def gradient(weight):
        weight = weight.clone().requires_grad_()
        return torch.autograd.grad(norm(x @ weight.T, weight).tanh().sum(), weight)[0]

    here = gradient(weight)
    torch.testing.assert_close(gradient(c * weight) * c, here, rtol=1e-9, atol=1e-12)
    assert abs((here * weight).sum()) <= 10 * EPS * here.norm() * weight.norm()


@KINDS
@pytest.mark.parametrize("layout", ["features", "sample"])
def test_gradients_are_right(centre, layout):
    norm = with_random_affine(Norm(4, centre=centre, layout=layout, spatial=1 if layout == "sample" else 0))
    y = torch.randn((2, 4, 3) if layout == "sample" else (3, 4), requires_grad=True)
    weight = torch.randn(4, 5)
    assert torch.autograd.gradcheck(lambda y: norm(y, weight), (y,))


@KINDS
@pytest.mark.parametrize("dead", ["one row", "all rows", "input"])
def test_zeros_give_finite_outputs_and_gradients(centre, dead):
    x, weight = torch.randn(3, 8), torch.randn(5, 8)
    weight[{"one row": slice(1), "all rows": slice(5), "input": slice(0)}[dead]] = 0
    x = x * 0 if dead == "input" else x
    weight.requires_grad_()
    out = Norm(5, centre=centre)(x @ weight.T, weight)
    out.square().sum().backward()
    assert out.isfinite().all()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()


def test_several_weights_count_together_and_half_precision_does_not_overflow():
    a, b = torch.randn(4, 3), torch.randn(4, 5)
    both = row_rms([torch.cat([a, b], 1)])
    torch.testing.assert_close(row_rms([a, b]), both)
    large = torch.full((4, 3), 6e4, dtype=torch.float16)  # its square is not a float16
    torch.testing.assert_close(row_rms([large]), torch.tensor(6e4 * 3**0.5, dtype=torch.float32))
    with pytest.raises(ValueError, match="needs the weights in front"):
        Norm(4)(a.T)


@KINDS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_in_half_precision_out_statistics_in_float32(centre, dtype):
    y, weight = torch.randn(64, 128, dtype=dtype), torch.randn(128, 8, dtype=dtype)
    norm = Norm(128, centre=centre)
    out = norm(y, weight)
    assert out.dtype == dtype
    torch.testing.assert_close(out, norm(y.double(), weight.double()).to(dtype), rtol=2e-2, atol=2e-2)


def test_under_autocast_it_follows_the_layer_in_front():
    layer, norm = nn.Linear(8, 6, dtype=torch.float32), Norm(6, dtype=torch.float32)
    x = torch.randn(3, 8, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = norm(layer(x), layer.weight)
    assert out.dtype == torch.bfloat16
    out.float().square().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32
    torch.testing.assert_close(out.float(), norm(layer(x), layer.weight), rtol=0.05, atol=0.05)


# fused layouts


def rms(x: Tensor) -> Tensor:
    return by_hand(x, (-1,), centre=False, eps=0.1)


def part(width: int) -> Norm:
    return Norm(width, centre=False, offset=False, eps=0.1)


def test_queries_and_keys_side_by_side():
    fused = FusedNorm(1, [Section(6, "q", 3), Section(6, "k", 3), Section(6)], {"q": part(3), "k": part(3)})
    y = torch.randn(2, 5, 18)
    q, k, v = y.split(6, -1)
    heads = [rms(piece.view(2, 5, 2, 3)).flatten(-2) for piece in (q, k)]
    torch.testing.assert_close(fused(y), torch.cat([*heads, v], -1))
    assert fused.normalised_features() == set(range(12))


def test_queries_and_keys_head_by_head():
    fused = FusedNorm(2, [Section(3, "q", 3), Section(3, "k", 3), Section(3)], {"q": part(3), "k": part(3)})
    y = torch.randn(2, 5, 18)
    heads = y.view(2, 5, 2, 9)
    expected = torch.cat([rms(heads[..., :3]), rms(heads[..., 3:6]), heads[..., 6:]], -1).flatten(-2)
    torch.testing.assert_close(fused(y), expected)
    assert fused.normalised_features() == {0, 1, 2, 3, 4, 5, 9, 10, 11, 12, 13, 14}


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("spatial", [0, 2])
def test_the_gate_of_a_gated_unit(interleaved, spatial):
    gate = Section(1 if interleaved else 4, "gate")
    fused = FusedNorm(4 if interleaved else 1, [gate, Section(gate.length)], {"gate": part(4)}, spatial)
    y = torch.randn(2, 8, *(3,) * spatial)
    rows = y.movedim(1, -1).clone()
    mine = slice(0, None, 2) if interleaved else slice(0, 4)
    rows[..., mine] = rms(rows[..., mine])
    torch.testing.assert_close(fused(y), rows.movedim(-1, 1))


@pytest.mark.parametrize("periods", [1, 2])
def test_a_bias_is_cancelled_where_the_norm_is_and_kept_elsewhere(periods):
    length = 6 // periods
    fused = FusedNorm(periods, [Section(length, "q", 3), Section(length)], {"q": part(3)})
    x, weight, bias = torch.randn(4, 5), torch.randn(12, 5), torch.randn(12, requires_grad=True)
    out = fused(F.linear(x, weight, bias), weight, bias=bias)
    covered = sorted(fused.normalised_features())
    rest = sorted(set(range(12)) - set(covered))
    bare = fused(F.linear(x, weight))
    torch.testing.assert_close(out[:, covered], bare[:, covered])
    torch.testing.assert_close(out[:, rest], (bare + bias)[:, rest])
    out.square().sum().backward()
    assert bias.grad is not None
    assert bias.grad[covered].abs().max() < 1e-13
    assert bias.grad[rest].abs().min() > 1e-3


def test_hooks_on_an_inserted_norm_are_called() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    nap.normalize_(model, torch.randn(2, 4))
    seen: list[str] = []
    norm: Any = model[0].nap_norm
    handles = [
        norm.register_forward_hook(lambda *_: seen.append("forward")),
        norm.register_forward_pre_hook(lambda *_: seen.append("pre")),
        norm.register_full_backward_hook(lambda *_: seen.append("backward")),
    ]
    before = model(torch.ones(2, 4))
    before.sum().backward()
    assert seen == ["pre", "forward", "backward"]
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(model(torch.ones(2, 4)), before)
    assert len(seen) == 3
