"""The mathematics of the paper, in float64; where the paper errs, the true statement."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.functional import jacobian

from nap.rates.learning_rate import Update, effective_lr

scales = st.floats(1e-3, 1e3)
quick = settings(deadline=None, max_examples=25)


@pytest.fixture(autouse=True)
def float64():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def rms(h: Tensor) -> Tensor:
    """f_RMS of §3.1: h/‖h‖."""
    return h / h.norm(dim=-1, keepdim=True)


def layer_norm(h: Tensor) -> Tensor:
    return F.layer_norm(h, h.shape[-1:], eps=0.0)


def batch_norm(h: Tensor) -> Tensor:
    return (h - h.mean(0)) / h.std(0, correction=0)


def grad(f, theta: Tensor) -> Tensor:
    theta = theta.detach().requires_grad_()
    return torch.autograd.grad(f(theta), theta)[0]


def scale_invariant(theta: Tensor) -> Tensor:
    """A loss of a 5×7 weight that a LayerNorm and a ReLU follow."""
    x = torch.linspace(-1, 1, 21).reshape(3, 7).sin()
    target = torch.linspace(0, 1, 15).reshape(3, 5)
    return (layer_norm(x @ theta.reshape(5, 7).T).relu() - target).square().sum()


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
    """A step η from θ computes what a step η̃ from θ/‖θ‖ does."""

    def step(theta: Tensor, rate: float) -> Tensor:
        g = grad(scale_invariant, theta)
        return theta + rate * (g if update is Update.RAW else g / g.norm())

    torch.manual_seed(1)
    theta = c * torch.randn(35)
    rate = effective_lr(lr, theta.norm().item(), update=update)
    expected = scale_invariant(step(theta, lr))
    assert_same(scale_invariant(step(theta / theta.norm(), rate)), expected)


# §3.1 and Appendix A.2: Proposition 1


def test_proposition_1_off_the_diagonal():
    """∂φ(h/‖h‖)_j/∂h_i = −φ′ h_i h_j/‖h‖³ for i ≠ j: not zero, also where unit i is dead."""
    h = torch.randn(8)
    J = jacobian(lambda h: rms(h).relu(), h)
    alive = (h > 0).double()
    stated = -alive[:, None] * torch.outer(h, h) / h.norm() ** 3
    off_diagonal = ~torch.eye(8, dtype=torch.bool)
    assert_same(J[off_diagonal], stated[off_diagonal])
    dead, live = h < 0, h > 0
    assert dead.any()
    assert (J[live][:, dead] != 0).all()


def test_proposition_1_lacks_a_term_on_the_diagonal():
    """The statement claims all i, j; for i = j the derivative of h_j itself adds φ′/‖h‖."""
    h = torch.randn(8)
    diagonal = jacobian(lambda h: rms(h).relu(), h).diagonal()
    alive = (h > 0).double()
    stated = -alive * h**2 / h.norm() ** 3
    assert_same(diagonal, stated + alive / h.norm())
    assert (diagonal - stated).abs().max() > 0.1


def test_proposition_1_normalising_after_the_activation_leaves_dead_units_dead():
    h = torch.randn(8)
    J = jacobian(lambda h: rms(h.relu()), h)
    a, dead = h.relu(), h < 0
    assert (J[:, dead] == 0).all()
    stated = -torch.outer(a, a * (~dead)) / a.norm() ** 3
    off_diagonal = ~torch.eye(8, dtype=torch.bool)
    assert_same(J[off_diagonal], stated[off_diagonal])


def test_section_3_1_layer_norm_inherits_proposition_1():
    """LayerNorm is RMSNorm after centring, so dead units get gradient through mean and variance."""
    h = torch.randn(8)
    d, centred = 8, h - h.mean()
    assert_same(layer_norm(h), math.sqrt(d) * rms(centred))
    J = jacobian(lambda h: layer_norm(h).relu(), h)
    projection = torch.eye(d) - 1 / d - torch.outer(centred, centred) / centred.norm() ** 2
    alive = (centred > 0).double()[:, None]
    assert_same(J, alive * math.sqrt(d) * projection / centred.norm())
    assert (J[centred > 0][:, centred < 0] != 0).all()


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


def identity(x: Tensor) -> Tensor:
    return x


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


# Appendix C.4: the random-walk model of dead units


def walk(*, normalise: bool, sign: bool, units: int = 64, steps: int = 1000) -> Tensor:
    """The number of negative units at each step of the walks in Appendix C.4."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(units, generator=generator).abs()
    dead = torch.zeros(steps)
    for t in range(steps):
        z = torch.randn(units, generator=generator)
        if normalise:  # zᵀ ∇ max(v/‖v‖, 0)
            live = z * (v > 0)
            step = live / v.norm() - v * (live @ v) / v.norm() ** 3
        else:
            step = v.clamp(min=0) * z
        v = v + (step.sign() if sign else step)
        dead[t] = (v < 0).sum()
    return dead


def test_appendix_c_4_without_a_norm_dead_units_only_accumulate():
    for sign in (False, True):
        dead = walk(normalise=False, sign=sign)
        assert (dead.diff() >= 0).all()
        assert dead[-1] > 50


def test_appendix_c_4_a_norm_slows_gradient_descent_s_dying_without_ending_it():
    plain, normed = (walk(normalise=normalise, sign=False) for normalise in (False, True))
    assert normed[-1] > 0
    assert normed[:100].mean() < plain[:100].mean()


def test_appendix_c_4_a_norm_ends_the_accumulation_under_rmsprop():
    dead = walk(normalise=True, sign=True)
    assert (dead.diff() < 0).sum() > 100
    assert dead[-500:].mean() < walk(normalise=False, sign=True)[-500:].mean() - 10
