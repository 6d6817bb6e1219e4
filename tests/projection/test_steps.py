"""The length of steps and the brake as functions of tensors: identities in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from nap.projection.sphere import norms_of, project_tensors_
from nap.projection.steps import brake_, braked, relative_
from projection_nets import F64


def pair(seed: int = 0, shape: tuple[int, ...] = (5, 7)) -> tuple[Tensor, Tensor]:
    """A weight and an update of it."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, dtype=F64, generator=generator) for _ in range(2))  # type: ignore[return-value]


def angle(a: Tensor, b: Tensor) -> float:
    """Between two weights, exact for small angles too."""
    a, b = a.flatten() / a.norm(), b.flatten() / b.norm()
    return 2 * math.atan2((a - b).norm().item(), (a + b).norm().item())


def moved(weight: Tensor, update: Tensor, rate: float | Tensor, **norms: int) -> Tensor:
    """After a relative step and the projection."""
    after, radius = weight + update, norms_of(weight, **norms)
    relative_([after], [weight], [radius], [rate])
    project_tensors_([after], [radius])
    return after


@pytest.mark.parametrize("rate", [1e-6, 0.01, 0.3, 0.99])
@pytest.mark.parametrize("seed", range(4))
def test_the_angle_is_the_closed_form_of_rate_and_direction(rate: float, seed: int) -> None:
    """atan(η·sinθ / (1 + η·cosθ)), θ between weight and update; a tangential step turns it by atan η."""
    weight, update = pair(seed)
    theta = angle(weight, update)
    expected = math.atan2(rate * math.sin(theta), 1 + rate * math.cos(theta))
    assert angle(weight, moved(weight, update, rate)) == pytest.approx(expected, rel=1e-9)
    tangent = update - (update * weight).sum() / weight.norm() ** 2 * weight
    assert angle(weight, moved(weight, tangent, rate)) == pytest.approx(math.atan(rate), rel=1e-9)


@pytest.mark.parametrize(("scale", "tolerance"), [(0.1, 1e-12), (10.0, 1e-12), (1e12, 1e-12), (1e-12, 1e-3)])
def test_the_scale_of_an_update_does_not_matter(scale: float, tolerance: float) -> None:
    weight, update = pair()
    relative_([after := weight + update], [weight], [norms_of(weight)], [0.1])
    relative_([scaled := weight + scale * update], [weight], [norms_of(weight)], [0.1])
    assert_close(scaled, after, rtol=0, atol=tolerance)  # of a tiny update W − W₀ keeps few digits
    assert (scaled - weight).norm().item() == pytest.approx(0.1 * weight.norm().item(), rel=1e-12)


def test_the_scale_of_a_weight_does_not_matter_either() -> None:
    weight, update = pair()
    assert_close(moved(8 * weight, update, 0.1), 8 * moved(weight, update, 0.1))


def test_an_update_of_zero_moves_nothing_and_one_that_is_not_finite_shows() -> None:
    weight, _ = pair()
    for dtype in (F64, torch.float32, torch.bfloat16):
        start = weight.to(dtype)
        relative_([same := start.clone()], [start], [norms_of(start)], [0.1])
        assert_close(same, start, rtol=0, atol=0)
    for bad in (math.nan, math.inf):
        broken = weight.clone()
        broken[0, 0] = bad
        relative_([broken], [weight], [norms_of(weight)], [0.1])
        assert not broken.isfinite().all()


def test_a_rate_of_zero_keeps_a_weight_and_one_on_the_device_is_taken() -> None:
    weight, update = pair()
    assert_close(moved(weight, update, 0.0), weight)
    assert_close(moved(weight, update, torch.tensor(0.1, dtype=F64)), moved(weight, update, 0.1))


def test_rows_and_members_have_steps_of_their_own() -> None:
    weight, update = pair(shape=(3, 5, 7))
    together = moved(weight, update, 0.1, stacked=1)
    for member, alone in enumerate(weight):
        assert_close(together[member], moved(alone, update[member], 0.1))
    rows = moved(weight[0], update[0], 0.1, out_axis=0)
    for row in range(5):
        assert_close(rows[row : row + 1], moved(weight[0][row : row + 1], update[0][row : row + 1], 0.1))


def test_a_pair_that_counts_as_one_moves_as_one() -> None:
    (mean, of_mean), (noise, of_noise) = pair(0), pair(1)
    radius = torch.hypot(norms_of(mean), norms_of(noise))
    after = [mean + of_mean, noise + of_noise]
    relative_(after, [mean, noise], [radius, radius], [0.1, 0.1], together=[(0, 1)])
    whole, update = torch.cat([mean, noise]), torch.cat([of_mean, of_noise])
    relative_([expected := whole + update], [whole], [norms_of(whole)], [0.1])
    assert_close(torch.cat(after), expected)


# --- the brake


def step_with(brake: float, weight: Tensor, update: Tensor, radius: Tensor, growing: bool = False) -> Tensor:
    after = weight + update
    brake_([after], [norms_of(weight)], [radius], [growing], brake)
    return after


def test_no_brake_is_no_change_and_a_full_one_is_the_projection() -> None:
    weight, update = pair()
    assert_close(step_with(0.0, weight, update, norms_of(weight)), weight + update, rtol=0, atol=0)
    project_tensors_([projected := weight + update], [norms_of(weight)])
    assert_close(step_with(1.0, weight, update, norms_of(weight)), projected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("brake", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("sign", [1.0, -0.5], ids=["outwards", "inwards"])
def test_a_brake_takes_its_share_of_a_move_away_from_the_radius(brake: float, sign: float) -> None:
    weight, _ = pair()
    radius = norms_of(weight)
    after = step_with(brake, weight, sign * 0.2 * weight, radius)
    assert_close(norms_of(after), radius * (1 + (1 - brake) * sign * 0.2))
    assert_close(after / after.norm(), weight / weight.norm())


def test_a_move_towards_the_radius_is_free_and_what_goes_beyond_is_braked() -> None:
    weight, _ = pair()
    far = 1.5 * norms_of(weight)
    assert_close(step_with(0.9, weight, 0.2 * weight, far), 1.2 * weight)
    assert_close(norms_of(step_with(0.9, weight, weight, far)), 1.5 * norms_of(weight) * (1 + 0.1 / 3))


def test_what_may_grow_is_braked_only_beyond_its_radius() -> None:
    weight, _ = pair()
    radius = norms_of(weight)
    assert_close(step_with(0.9, weight, -0.2 * weight, radius, growing=True), 0.8 * weight)
    assert_close(norms_of(step_with(0.9, weight, 0.2 * weight, radius, growing=True)), 1.02 * radius)


def test_a_norm_that_is_not_finite_is_left_as_it_is() -> None:
    weight, update = pair()
    update[0, 0] = math.nan
    after = step_with(0.5, weight, update, norms_of(weight))
    assert_close(after, weight + update, rtol=0, atol=0, equal_nan=True)


def test_braked_is_between_none_and_all() -> None:
    generator = torch.Generator().manual_seed(0)
    norm, before, radius = (0.5 + torch.rand(3, 1000, dtype=F64, generator=generator)).unbind()
    ends = braked(norm, before, radius, 0.0), braked(norm, before, radius, 1.0)
    assert_close(ends[0], norm, rtol=0, atol=0)
    assert ((ends[1] >= torch.minimum(before, radius)) & (ends[1] <= torch.maximum(before, radius))).all()
    assert_close(braked(norm, before, radius, 0.25), ends[0] + 0.25 * (ends[1] - ends[0]))
