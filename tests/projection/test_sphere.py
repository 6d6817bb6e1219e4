"""W ← ρ·W/‖W‖ over tensors: float64 identities, a slow reference, no wait for the device."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from nap.projection.sphere import norms_like, norms_of, project_tensors_

F64 = torch.float64


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


@pytest.mark.parametrize("shape", [(5,), (3, 4), (4, 3, 5), (4, 3, 3, 3), (2, 3, 2, 2, 2)])
def test_a_projected_weight_has_its_radius_and_keeps_its_direction(shape: tuple[int, ...]) -> None:
    weight = randn(*shape)
    before = weight.clone()
    project_tensors_([weight], [torch.full([1] * len(shape), 2.5, dtype=F64)])
    assert_close(weight.norm(), torch.tensor(2.5, dtype=F64))
    assert_close(weight / weight.norm(), before / before.norm())


def test_rows_experts_and_members_have_norms_of_their_own() -> None:
    weight, rows, experts = randn(3, 4, 5), randn(3, 4, 5, seed=1), randn(3, 4, 5, seed=2)
    radii = [torch.ones(1, 1, 1), torch.full((3, 4, 1), 2.0), torch.full((3, 1, 1), 3.0)]
    project_tensors_([weight, rows, experts], radii)
    assert_close(weight.norm(), torch.tensor(1.0, dtype=F64))
    assert_close(rows.norm(dim=2), torch.full((3, 4), 2.0, dtype=F64))
    assert_close(experts.flatten(1).norm(dim=1), torch.full((3,), 3.0, dtype=F64))


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(1, 5), min_size=2, max_size=4), min_size=1, max_size=5),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, F64]),
    kept=st.lists(st.booleans(), min_size=4, max_size=4),
    scale=st.sampled_from([1e-2, 1.0, 30.0]),
)
def test_it_agrees_with_a_slow_loop(
    shapes: list[list[int]], dtype: torch.dtype, kept: list[bool], scale: float
) -> None:
    weights = [scale * randn(*shape, seed=i, dtype=dtype) + 0.1 for i, shape in enumerate(shapes)]
    radii = [
        1 + torch.rand([n if keep else 1 for n, keep in zip(shape, kept, strict=False)]) for shape in shapes
    ]
    expected = []
    for weight, radius in zip(weights, radii, strict=True):
        wide = weight.double()
        axes = [axis for axis, n in enumerate(radius.shape) if n == 1]
        norm = wide.square().sum(axes, keepdim=True).sqrt() if axes else wide.abs()
        expected.append(torch.where(norm > 0, wide * radius / norm, wide))
    project_tensors_(weights, radii)
    tolerance = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 1e-6, F64: 1e-12}[dtype]
    for weight, truth in zip(weights, expected, strict=True):
        assert weight.dtype == dtype
        assert_close(weight.double(), truth, rtol=tolerance, atol=tolerance)


def test_half_precision_norms_are_summed_in_float32() -> None:
    half = (100 * randn(600, 600)).half()  # the norm is 6e4, its square far beyond float16
    brain = randn(600, 600).bfloat16()
    for weight, exact in ((half, half.double().norm()), (brain, brain.double().norm())):
        assert_close(norms_of(weight).double().squeeze(), exact, rtol=1e-6, atol=0)
        project_tensors_([weight], [(exact / 2).reshape(1, 1)])
        assert abs(weight.double().norm() / (exact / 2) - 1) < 4e-3
        assert weight.count_nonzero() > 0.99 * weight.numel()


@pytest.mark.parametrize("shape", [(2000, 2000), (64, 64, 3, 3), (300,)])
def test_float32_norms_are_exact_to_float32(shape: tuple[int, ...]) -> None:
    weight = randn(*shape, dtype=torch.float32)
    assert_close(norms_of(weight).double().squeeze(), weight.double().norm(), rtol=5e-7, atol=0)


def test_float32_norms_of_large_weights_do_not_drift() -> None:
    weight = randn(1024, 2048, dtype=torch.float32)  # one long sum in float32 would be 4e-5 low on CPU
    exact = weight.double().norm()
    assert_close(norms_of(weight).double().squeeze(), exact, rtol=2e-7, atol=0)
    project_tensors_([weight], [torch.full((1, 1), 7.0)])
    assert_close(weight.double().norm(), torch.tensor(7.0, dtype=F64), rtol=5e-7, atol=0)


def test_complex_weights_keep_their_phase() -> None:
    weight = torch.complex(randn(3, 4), randn(3, 4, seed=1))
    angle = weight.angle()
    project_tensors_([weight], [torch.full((1, 1), 2.0, dtype=F64)])
    assert_close(weight.abs().norm(), torch.tensor(2.0, dtype=F64))
    assert_close(weight.angle(), angle)


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf])
def test_a_norm_without_direction_leaves_the_weight_as_it_is(bad: float) -> None:
    whole, rows = torch.full((2, 3), bad), torch.ones(2, 3)
    rows[0] = bad
    project_tensors_([whole, rows], [torch.ones(1, 1), torch.full((2, 1), 2.0)])
    assert_close(whole, torch.full((2, 3), bad), equal_nan=True)
    assert_close(rows[0], torch.full((3,), bad), equal_nan=True)
    assert_close(rows[1].norm(), torch.tensor(2.0))


@pytest.mark.parametrize("real", [True, False])
def test_a_mask_on_the_device_decides(real: bool) -> None:
    whole, rows = torch.ones(2, 2), torch.ones(2, 2)
    project_tensors_([whole, rows], [torch.ones(1, 1), torch.ones(2, 1)], when=torch.tensor(real))
    assert_close(whole.norm(), torch.tensor(1.0 if real else 2.0))
    assert_close(rows.norm(dim=1), torch.full((2,), 1.0 if real else math.sqrt(2)))


def test_nothing_waits_for_the_device() -> None:
    """Under fake tensors there are no values, so .item(), bool() and float() raise."""
    with FakeTensorMode():
        weights = [torch.randn(4, 3), torch.randn(4, 3), torch.randn(2, 4, 3, dtype=torch.bfloat16)]
        radii = [torch.ones(1, 1), torch.ones(4, 1), torch.ones(2, 1, 1)]
        with pytest.raises(Exception, match=r"aten\._local_scalar_dense"):
            weights[0].norm().item()
        project_tensors_(weights, radii)
        project_tensors_(weights, radii, when=torch.tensor([1.0]).sum() == 0)
    meta = torch.empty(4, 3, device="meta")  # takes the foreach path, as CUDA does
    project_tensors_([meta, meta], [torch.empty(1, 1, device="meta")] * 2)


def test_one_compiled_graph_gives_the_same_weights() -> None:
    eager = [randn(4, 3), randn(2, 4, 3)]
    compiled, radii = [w.clone() for w in eager], [torch.ones(1, 1), torch.ones(2, 1, 1)]
    project_tensors_(eager, radii)
    torch.compile(project_tensors_, backend="eager", fullgraph=True)(compiled, radii)
    assert_close(compiled, eager)


def test_a_radius_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"radius of shape \(4,\).*weight of shape \(4, 3\)"):
        project_tensors_([torch.ones(4, 3)], [torch.ones(4)])


def test_norms_like_reads_the_norms_a_radius_means() -> None:
    weight = randn(2, 4, 3)
    for radius in (norms_of(weight), norms_of(weight, stacked=1), norms_of(weight, stacked=1, out_axis=2)):
        assert_close(norms_like(radius, weight), radius)
    assert norms_of(weight, stacked=1, out_axis=2).shape == (2, 1, 3)


@pytest.mark.parametrize("size", [1e-30, 1e-23, 1e-17, 1e19, 1e30])
@pytest.mark.parametrize("axis", [None, 0])
def test_very_large_and_very_small_weights_have_a_norm(size: float, axis: int | None) -> None:
    weight = size * randn(30, 20, dtype=torch.float32)
    exact = weight.double().norm(dim=None if axis is None else 1, keepdim=True).reshape(-1, 1)
    assert_close(norms_of(weight, out_axis=axis).double(), exact, rtol=1e-6, atol=0)
    expected = weight.double() / exact
    project_tensors_([weight], [torch.ones_like(exact, dtype=torch.float32)])
    assert_close(weight.double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("shape", [(1 << 24,), (1, 1 << 24), (1 << 24, 1), (2, (1 << 23) + 77)])
def test_norms_of_one_long_row_do_not_drift(shape: tuple[int, ...]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert_close(norms_of(weight).double().squeeze(), weight.double().norm(), rtol=1e-6, atol=0)
    if len(shape) == 2:
        exact = weight.double().norm(dim=1, keepdim=True)
        assert_close(norms_of(weight, out_axis=0).double(), exact, rtol=1e-6, atol=0)


def test_norms_under_vmap_and_compiled_are_the_same() -> None:
    weights = torch.stack([1e-25 * randn(4, 3, dtype=torch.float32), randn(4, 3, dtype=torch.float32)])
    expected = torch.stack([norms_of(weight) for weight in weights])
    assert_close(torch.func.vmap(norms_of)(weights), expected)
    assert_close(torch.compile(norms_of, backend="eager", fullgraph=True)(weights[0]), expected[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("when", [None, True, False])
@pytest.mark.parametrize("ceiling", [False, True])
def test_small_weights_on_a_cpu_go_the_same_way_as_large_ones(
    dtype: torch.dtype, when: bool | None, ceiling: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    small = [torch.randn(3, 4, generator=generator, dtype=dtype) * size for size in (0.1, 1.0, 10.0)]
    radii = [torch.full((1, 1), 2.0, dtype=dtype) for _ in small]
    large = torch.randn(300, 300, generator=generator, dtype=dtype)  # with one of these, tensors are used
    expected = [weight.clone() for weight in small]
    said = None if when is None else torch.tensor(when)
    norms = project_tensors_(small, radii, when=said, ceiling=ceiling)
    project_tensors_([*expected, large], [*radii, radii[0]], when=said, ceiling=ceiling)
    for weight, other in zip(small, expected, strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-6, atol=0)
    assert [found.shape for found in norms] == [(3,)]


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf])
def test_one_small_weight_without_direction_leaves_the_others_their_projection(bad: float) -> None:
    for order in (0, 1):
        weights = [torch.full((2, 2), bad), torch.full((2, 2), 3.0)]
        weights = weights[::-1] if order else weights
        project_tensors_(weights, [torch.ones(1, 1)] * 2)
        torch.testing.assert_close(weights[1 - order], torch.full((2, 2), 0.5))
        torch.testing.assert_close(weights[order], torch.full((2, 2), bad), equal_nan=True)
