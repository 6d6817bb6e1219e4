"""The paper on dead units in float64; where it errs, the true statement."""

import math

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from paper_maths import assert_same, in_float64, layer_norm, rms

float64 = pytest.fixture(autouse=True)(in_float64)


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
