"""The kernels that project all weights of a GPU at once, against the equation in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from gpu import needs_gpu
from nap.projection.sphere import norms_of, project_tensors_

pytestmark = needs_gpu

SHAPES = [(3,), (64, 33), (512, 3136), (2049, 1024), (32, 4, 8, 8), (5000, 1000)]
TOLERANCE = {torch.float64: 1e-14, torch.float32: 2e-7, torch.bfloat16: 4e-3, torch.float16: 5e-4}


def weights_of(dtype: torch.dtype) -> list[Tensor]:
    made = [torch.randn(shape, device="cuda").to(dtype) for shape in SHAPES]
    made[4] = made[4].to(memory_format=torch.channels_last)
    return made


def fused_launches(work: Callable[[], Any]) -> int:
    """Launches of our kernels in `work`."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True
    ) as profile:
        work()
        torch.cuda.synchronize()
    ours = ("_block_norms", "_factors", "_rescale")
    return sum(event.count for event in profile.key_averages() if event.key in ours)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_many_weights_in_three_launches_as_by_the_equation(dtype: torch.dtype) -> None:
    weights = weights_of(dtype)
    radii = [0.7 * norms_of(w) for w in weights]
    exact = [0.7 * w.double() for w in weights]
    project_tensors_([w.clone(memory_format=torch.preserve_format) for w in weights], radii)  # compiles
    assert fused_launches(partial(project_tensors_, weights, radii)) == 3
    for weight, expected in zip(weights, exact, strict=True):
        torch.testing.assert_close(
            weight.double(),
            expected,
            rtol=2 * TOLERANCE[dtype],
            atol=1e-7 if dtype == torch.float16 else 1e-12,
        )


def test_what_has_no_direction_stays_and_no_other_weight_is_touched() -> None:
    zero, infinite, one = (torch.full((300, 10), value, device="cuda") for value in (0.0, torch.inf, 1.0))
    project_tensors_([zero, infinite, one], [torch.full((1, 1), 2.0, device="cuda")] * 3)
    assert (zero == 0).all()
    assert infinite.isinf().all()
    torch.testing.assert_close(one.norm().item(), 2.0)


@pytest.mark.parametrize("size", [1e-30, 1e-23, 1e19, 1e30])
@pytest.mark.parametrize("rows", [False, True])
def test_very_large_and_very_small_weights_have_a_norm(size: float, rows: bool) -> None:
    weight = size * torch.randn(300, 200, device="cuda")
    exact = weight.double().norm(dim=1, keepdim=True) if rows else weight.double().norm().reshape(1, 1)
    torch.testing.assert_close(
        norms_of(weight, out_axis=0 if rows else None).double(), exact, rtol=1e-6, atol=0
    )
    expected = weight.double() / exact
    project_tensors_([weight], [torch.ones_like(exact, dtype=torch.float32)])
    torch.testing.assert_close(weight.double(), expected, rtol=1e-6, atol=1e-12)


def test_where_it_is_not_due_nothing_changes() -> None:
    weight, radius = torch.randn(100, 100, device="cuda"), torch.ones(1, 1, device="cuda")
    before = weight.clone()
    project_tensors_([weight], [radius], when=torch.tensor(False, device="cuda"))
    assert torch.equal(weight, before)
    project_tensors_([weight], [radius], when=torch.tensor(True, device="cuda"))
    torch.testing.assert_close(weight, before / before.norm())


def test_results_repeat_bit_by_bit() -> None:
    weights = weights_of(torch.float32)
    radii = [3 * norms_of(w) for w in weights]
    copies = [[w.clone(memory_format=torch.preserve_format) for w in weights] for _ in range(2)]
    for copy in copies:
        project_tensors_(copy, radii)
    assert all(torch.equal(a, b) for a, b in zip(*copies, strict=True))


def test_weights_that_are_not_in_one_piece_are_projected_too() -> None:
    whole = torch.randn(64, 64, device="cuda")
    part, radius = whole[:, ::2], torch.ones(1, 1, device="cuda")
    other = whole[:, 1::2].clone()
    project_tensors_([part], [radius])
    torch.testing.assert_close(part.norm().item(), 1.0)
    assert torch.equal(whole[:, 1::2], other)


def test_a_graph_outlives_the_tables_of_other_weights() -> None:
    weight, radius = torch.randn(64, 64, device="cuda"), torch.ones(1, 1, device="cuda")
    project_tensors_([weight], [radius])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        project_tensors_([weight], [radius])
    others = [torch.randn(8, 8, device="cuda") for _ in range(40)]
    for other in others:
        project_tensors_([other], [radius])
    weight.mul_(3)
    graph.replay()
    torch.testing.assert_close(weight.norm().item(), 1.0)


def test_it_counts_as_a_change_in_place() -> None:
    weight = torch.randn(8, 8, device="cuda", requires_grad=True)
    loss = (weight**3).sum()
    project_tensors_([weight], [torch.ones(1, 1, device="cuda")])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
