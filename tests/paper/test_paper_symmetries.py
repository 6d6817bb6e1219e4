"""The symmetries the paper states, in float64; where it errs, the true statement."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from torch import Tensor

from paper_maths import assert_same, batch_norm, grad, identity, in_float64, layer_norm, quick, rms, scales

float64 = pytest.fixture(autouse=True)(in_float64)


# Appendix A.4: batch normalisation, attention


def test_appendix_a_4_an_offset_before_batch_norm_is_zeroed_out():
    h, offset = torch.randn(32, 5), torch.randn(5)
    assert_same(batch_norm(layer_norm(h) + offset), batch_norm(layer_norm(h)))


def test_appendix_a_4_normalising_queries_and_keys_across_tokens_leaks_the_future():
    def attend(x: Tensor, *, axis: int) -> Tensor:
        q, k = x / x.norm(dim=axis, keepdim=True), x / x.norm(dim=axis, keepdim=True)
        return F.scaled_dot_product_attention(q, k, x, is_causal=True)

    x = torch.randn(1, 6, 4)
    changed = x.clone()
    changed[:, -1] += 1.0  # the last token, which no earlier one may see
    assert_same(attend(changed, axis=-1)[:, :-1], attend(x, axis=-1)[:, :-1])
    assert (attend(changed, axis=-2) - attend(x, axis=-2))[:, :-1].abs().max() > 1e-3


# Appendix A.7: Proposition 2


def patterns_and_output(
    weights: list[Tensor], x: Tensor, norm, biases=None
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Activation patterns, output and pre-activations of a ReLU network."""
    patterns, hidden = [], []
    for i, W in enumerate(weights[:-1]):
        hidden.append(x @ W.T + (0 if biases is None else biases[i]))
        x = norm(hidden[-1]).relu()
        patterns.append(x > 0)
    return torch.cat(patterns, 1), x @ weights[-1].T, hidden


@pytest.fixture
def network():
    weights = [torch.randn(32, 8), torch.randn(32, 32), torch.randn(32, 32), torch.randn(5, 32)]
    radii = [3.0, 0.2, 1.0, 7.0]
    return weights, [r * W / W.norm() for r, W in zip(radii, weights, strict=True)], torch.randn(500, 8)


def test_proposition_2_rms_norm_keeps_patterns_and_decisions(network):
    """f̃(x) = f(x)·s(x), s > 0: the same patterns and the same argmax, with projected weights too."""
    weights, projected, x = network
    pattern, output, _ = patterns_and_output(weights, x, identity)
    nap_pattern, nap_output, _ = patterns_and_output(projected, x, rms)
    assert torch.equal(nap_pattern, pattern)
    assert torch.equal(nap_output.argmax(1), output.argmax(1))
    ratio = nap_output / output
    assert (ratio > 0).all()
    assert_same(ratio, ratio[:, :1].expand_as(ratio))
    assert ratio[:, 0].std() > 1e-3  # another factor for each input


def test_proposition_2_the_factor_is_a_product_of_the_normalised_network_s_own_norms(network):
    """1/∏‖h_l‖ with h_l of f̃; with those of f the product telescopes to its last factor."""
    weights, _, x = network
    _, output, hidden = patterns_and_output(weights, x, identity)
    _, nap_output, nap_hidden = patterns_and_output(weights, x, rms)
    product = torch.stack([h.norm(dim=1) for h in nap_hidden]).prod(0)
    assert_same(nap_output, output / product[:, None])
    assert_same(nap_output, output / hidden[-1].norm(dim=1)[:, None])
    assert not torch.allclose(
        nap_output, output / torch.stack([h.norm(dim=1) for h in hidden]).prod(0)[:, None]
    )


def test_proposition_2_layer_norm_s_centring_keeps_only_a_part(network):
    weights, _, x = network
    pattern, output, _ = patterns_and_output(weights, x, identity)
    nap_pattern, nap_output, _ = patterns_and_output(weights, x, layer_norm)
    assert 0.8 < (nap_pattern == pattern).double().mean() < 0.99
    assert 0.3 < (nap_output.argmax(1) == output.argmax(1)).double().mean() < 0.99


def test_proposition_2_needs_a_network_without_biases(network):
    weights, projected, x = network
    biases = [torch.randn(32) for _ in range(3)]
    pattern, *_ = patterns_and_output(weights, x, identity, biases)
    nap_pattern, *_ = patterns_and_output(projected, x, rms, biases)
    assert (nap_pattern == pattern).double().mean() < 0.99


def test_proposition_2_normalised_networks_are_not_piecewise_linear(network):
    """Within one activation pattern a ReLU network is linear in x; its normalised twin bends."""
    weights, _, x = network
    line = torch.stack([x[0], x[0] + 1e-4 * x[1], x[0] + 2e-4 * x[1]])
    pattern, output, _ = patterns_and_output(weights, line, identity)
    _, nap_output, _ = patterns_and_output(weights, line, rms)
    assert (pattern == pattern[0]).all()
    assert (output[0] - 2 * output[1] + output[2]).norm() < 1e-12 * output[0].norm()
    assert (nap_output[0] - 2 * nap_output[1] + nap_output[2]).norm() > 1e-10 * nap_output[0].norm()


# Appendix A.8 and D: scale and offset


@quick
@given(c=scales)
def test_appendix_a_8_scale_and_offset_share_one_scale_under_relu(c):
    """f_LN(φ(W(cσx + cμ))) = f_LN(φ(W(σx + μ))), and so for the networks of Algorithm 1, W φ(σx + μ).

    The paper's first line writes φ(Wσx + μ) and its second W(σx + μ): each has the symmetry, but they
    are two functions.
    """
    torch.manual_seed(2)
    x, sigma, mu, W = torch.randn(9, 8), torch.randn(8), torch.randn(8), torch.randn(8, 8)

    def second_line(sigma: Tensor, mu: Tensor) -> Tensor:
        return layer_norm(((sigma * x + mu) @ W.T).relu())

    def first_line(sigma: Tensor, mu: Tensor) -> Tensor:
        return layer_norm(((sigma * x) @ W.T + mu).relu())

    def algorithm_1(sigma: Tensor, mu: Tensor) -> Tensor:
        return layer_norm((sigma * x + mu).relu() @ W.T)

    for f in (second_line, first_line, algorithm_1):
        assert_same(f(c * sigma, c * mu), f(sigma, mu))
    assert (first_line(sigma, mu) - second_line(sigma, mu)).abs().max() > 0.1


@pytest.mark.parametrize("phi", [F.gelu, torch.tanh, F.silu])
def test_appendix_a_8_fails_for_activations_that_are_not_homogeneous(phi):
    x, sigma, mu, W = torch.randn(9, 8), torch.randn(8), torch.randn(8), torch.randn(6, 8)
    changed = layer_norm(phi(3 * sigma * x + 3 * mu) @ W.T) - layer_norm(phi(sigma * x + mu) @ W.T)
    assert changed.abs().max() > 0.1


@quick
@given(c=scales)
def test_appendix_a_8_effective_rates_of_scale_and_offset(c):
    """A step η·c² from (cσ, cμ) computes what a step η from (σ, μ) does: Definition 1 for the pair."""
    torch.manual_seed(3)
    x, W, pair = torch.randn(9, 8), torch.randn(6, 8), torch.randn(2, 8)
    target = torch.randn(9, 6)

    def f(pair: Tensor) -> Tensor:
        return (layer_norm((pair[0] * x + pair[1]).relu() @ W.T) - target).square().mean()

    assert_same(grad(f, c * pair), grad(f, pair) / c)
    assert_same(f(c * pair + c**2 * grad(f, c * pair)), f(pair + grad(f, pair)))


def test_algorithm_1_the_joint_radius_is_root_d():
    """Appendix D divides by the joint norm; only Algorithm 1's √d leaves (1, 0), the start, where it is."""
    start = torch.stack([torch.ones(16), torch.zeros(16)])
    assert_same(math.sqrt(16) * start / start.norm(), start)
    assert_same(start / start.norm(), start / 4)


# Which scalings are symmetries (Algorithm 1 projects per tensor)


def test_per_tensor_scale_is_layer_norm_s_symmetry_and_per_row_scale_is_batch_norm_s():
    x, W = torch.randn(32, 8), torch.randn(6, 8)
    rows = torch.linspace(0.2, 5, 6)[:, None]

    assert_same(layer_norm(x @ (3 * W).T), layer_norm(x @ W.T))
    assert (layer_norm(x @ (rows * W).T) - layer_norm(x @ W.T)).abs().max() > 1
    assert_same(batch_norm(x @ (rows * W).T), batch_norm(x @ W.T))


@pytest.mark.parametrize("axes", [(1, 2, 3), (1,)], ids=["over C, H and W", "over C"])
def test_conv_weights_are_scale_invariant_under_both_layer_norms(axes):
    def normalised_conv(W: Tensor) -> Tensor:
        h = F.conv2d(x, W, padding=1)
        return (h - h.mean(axes, keepdim=True)) / h.std(axes, correction=0, keepdim=True)

    x, W = torch.randn(2, 3, 7, 7), torch.randn(5, 3, 3, 3)
    assert_same(normalised_conv(4 * W), normalised_conv(W))
    rows = torch.linspace(0.2, 5, 5).reshape(5, 1, 1, 1)
    assert (normalised_conv(rows * W) - normalised_conv(W)).abs().max() > 1
