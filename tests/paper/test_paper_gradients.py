"""The paper's gradients in float64: effective rates, growing norms; where it errs, the true statement."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.functional import jacobian

from nap.rates.learning_rate import Update, effective_lr
from paper_maths import (
    assert_same,
    grad,
    identity,
    in_float64,
    layer_norm,
    quick,
    rms,
    scale_invariant,
    scales,
)

float64 = pytest.fixture(autouse=True)(in_float64)


# §2.2 Effective learning rates


@quick
@given(c=scales)
def test_section_2_2_gradients_scale_inversely(c):
    """∇f(cθ) = ∇f(θ)/c."""
    torch.manual_seed(1)
    theta = torch.randn(35)
    assert_same(grad(scale_invariant, c * theta), grad(scale_invariant, theta) / c)


@pytest.mark.parametrize("update", Update)
@quick
@given(c=scales, lr=st.floats(1e-4, 1.0))
def test_definition_1(update, c, lr):
    """A step η from θ computes what a step η̃ from θ/‖θ‖ does; a relative step has η̃ = η."""

    def step(theta: Tensor, rate: float) -> Tensor:
        g = grad(scale_invariant, theta)
        direction = g / g.norm()
        steps = {Update.RAW: g, Update.NORMALISED: direction, Update.RELATIVE: theta.norm() * direction}
        return theta + rate * steps[update]

    torch.manual_seed(1)
    theta = c * torch.randn(35)
    rate = effective_lr(lr, theta.norm().item(), update=update)
    expected = scale_invariant(step(theta, lr))
    assert_same(scale_invariant(step(theta / theta.norm(), rate)), expected)


# Appendix A.3: one normalised layer


def test_appendix_a_3_gradient_decomposition():
    """∇_W L = (D_φ ∇f_LN(h))ᵀ ∂L/∂a · a_{k−1}ᵀ."""
    W, a, target = torch.randn(6, 4), torch.randn(4), torch.randn(6)
    h = W @ a
    upstream = 2 * (layer_norm(h).relu() - target)
    inner = jacobian(layer_norm, h).T @ (upstream * (layer_norm(h) > 0))
    assert_same(grad(lambda W: (layer_norm(W @ a).relu() - target).square().sum(), W), torch.outer(inner, a))


def test_appendix_a_3_normalisation_saturates():
    """A step of fixed length moves x/‖x‖ by less and less: as 1/‖x‖."""
    x, u = rms(torch.randn(16)), rms(torch.randn(16))
    moved = torch.stack([(rms(s * x + u) - rms(s * x)).norm() for s in (1e2, 1e4, 1e6)])
    across = (u - (u @ x) * x).norm()
    torch.testing.assert_close(moved * torch.tensor([1e2, 1e4, 1e6]), across.expand(3), rtol=2e-2, atol=0)
    assert moved[-1] < 1e-6


# Appendix A.5: dynamics


@pytest.mark.parametrize("norm", [rms, layer_norm])
def test_appendix_a_5_projection_does_not_interfere(norm):
    """∇f(x)·x = 0: what projection removes is what the gradient does not have."""
    x = torch.randn(16)
    assert_same(jacobian(norm, x) @ x, torch.zeros(16))


def test_appendix_a_5_gradients_are_orthogonal_to_the_weights():
    theta = torch.randn(35)
    g = grad(scale_invariant, theta)
    assert g.norm() > 0.1
    assert abs(g @ theta) < 1e-12


def test_appendix_a_5_norm_grows_with_the_square_root_of_time():
    """The paper says Θ(t). Unit steps across the weights add their squares: ‖θ_t‖² = ‖θ₀‖² + α²t."""
    alpha, steps = 0.1, 400
    theta = rms(torch.randn(35))
    for t in range(1, steps + 1):
        g = grad(scale_invariant, theta)
        theta = theta + alpha * g / g.norm()
        assert theta.norm().item() == pytest.approx(math.sqrt(1 + alpha**2 * t), rel=1e-10)


@pytest.mark.parametrize("x_scale", [1e-2, 3.0, 1e4])
def test_appendix_a_5_inputs_that_differ_in_length_are_the_same_input(x_scale):
    W, x = torch.randn(6, 4), torch.randn(4)
    assert_same(layer_norm(W @ (x_scale * x)), layer_norm(W @ x))


# Appendix A.6: layer-wise gradients


def deep(weights: list[Tensor], x: Tensor, phi) -> Tensor:
    for W in weights:
        x = phi(W @ x)
    return x


def layer_gradients(weights: list[Tensor], x: Tensor, phi, head) -> list[Tensor]:
    leaves = [W.clone().requires_grad_() for W in weights]
    return list(torch.autograd.grad(head(deep(leaves, x, phi)), leaves))


@pytest.mark.parametrize("phi", [identity, torch.relu])
@pytest.mark.parametrize("k", [0, 1, 2])
@pytest.mark.parametrize("c", [0.1, 7.0])
def test_appendix_a_6_one_layer_s_norm_and_the_others_gradients(phi, k, c):
    """Scaling W_k by c scales all other gradients by c; with a norm at the end it leaves them alone."""
    weights, x, v = [torch.randn(6, 6) for _ in range(3)], torch.randn(6), torch.randn(6)
    scaled = [c * W if i == k else W for i, W in enumerate(weights)]
    plain = [layer_gradients(ws, x, phi, lambda y: v @ y) for ws in (weights, scaled)]
    normed = [layer_gradients(ws, x, phi, lambda y: v @ rms(y)) for ws in (weights, scaled)]
    for i, (before, after) in enumerate(zip(*plain, strict=True)):
        assert_same(after, before if i == k else c * before)
    for i, (before, after) in enumerate(zip(*normed, strict=True)):
        assert_same(after, before / c if i == k else before)


@pytest.mark.parametrize("phi", [identity, torch.relu])
def test_appendix_a_6_the_gradient_as_a_product_of_matrices(phi):
    """[∏_{k>l} D_k W_k · D_l]ᵀ v · (∏_{k<l} D_k W_k x)ᵀ: the paper leaves out v and the layer's own D_l."""
    weights, x, v = [torch.randn(6, 6) for _ in range(3)], torch.randn(6), torch.randn(6)
    masks, a = [], x
    for W in weights:
        h = W @ a
        masks.append(torch.diag((h > 0).double()) if phi is torch.relu else torch.eye(6))
        a = phi(h)
    below, D = masks[0] @ weights[0] @ x, masks[1]
    above = masks[2] @ weights[2]
    gradient = layer_gradients(weights, x, phi, lambda y: v @ y)[1]
    assert_same(gradient, torch.outer((above @ D).T @ v, below))
    if phi is torch.relu:
        assert not torch.allclose(gradient, torch.outer(above.T @ v, below))
