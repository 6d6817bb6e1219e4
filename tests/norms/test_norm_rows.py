"""Norm and ReLU in one pass each way: against PyTorch's own, gradients included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from gpu import DEVICE

pytestmark = pytest.mark.cuda
EPS = 1e-3  # so large that it would be missed
CLOSE: dict[torch.dtype, Any] = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-10},
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
}


@pytest.fixture
def rows() -> Any:
    return pytest.importorskip("nap.kernels.norm_relu_triton", reason="needs Triton", exc_type=ImportError)


def example(shape: tuple[int, ...], dtype: torch.dtype, *, scale: bool, offset: bool) -> list[Any]:
    """y, unit, scale and offset; the parameters in float32 or better, as in a model under autocast."""
    torch.manual_seed(0)
    wide = torch.promote_types(dtype, torch.float32)
    y = 2 * torch.randn(shape, dtype=dtype, device=DEVICE) + 1
    given = [torch.randn(shape[-1], dtype=wide, device=DEVICE).requires_grad_() for _ in range(2)]
    unit = torch.tensor(0.3, dtype=wide, device=DEVICE)
    return [y.requires_grad_(), unit, given[0] if scale else None, given[1] if offset else None]


def by_torch(given: list[Any], centre: bool) -> Tensor:
    y, unit, scale, offset = given
    x, width = y if unit is None else y / unit, y.shape[-1:]
    if centre:
        return F.layer_norm(x, width, scale, offset, EPS).relu()
    x = F.rms_norm(x, width, scale, EPS)
    return (x if offset is None else x + offset).relu()


def compared(given: list[Any], centre: bool) -> None:
    """Result and gradients of what requires them are those of PyTorch in float64."""
    dtype = given[0].dtype
    exact = [
        None if one is None else one.detach().double().requires_grad_(one.requires_grad) for one in given
    ]
    found, expected = torch.ops.nap.norm_relu(*given, EPS, centre)[0], by_torch(exact, centre)
    assert found.dtype == dtype
    assert found.is_contiguous()
    assert_close(found.double(), expected, **CLOSE[dtype])
    dh = torch.randn_like(found)
    wanted, exactly = (
        [one for one in some if one is not None and one.requires_grad] for some in (given, exact)
    )
    for one, other, of in zip(
        torch.autograd.grad(found, wanted, dh),
        torch.autograd.grad(expected, exactly, dh.double()),
        wanted,
        strict=True,
    ):
        assert one.dtype == of.dtype
        assert_close(one.double(), other, **CLOSE[dtype])


@pytest.mark.parametrize("width", [1, 5, 96, 1024, 1536, 6144])
@pytest.mark.parametrize("before", [(1,), (2, 4)], ids=str)
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
def test_it_is_layer_norm_then_relu(
    rows: Any, width: int, before: tuple[int, ...], dtype: torch.dtype
) -> None:
    compared(example((*before, width), dtype, scale=True, offset=True), centre=True)


@pytest.mark.parametrize(("count", "width"), [(200, 40), (200, 1), (7, 6144)])
def test_a_program_may_take_many_rows(
    rows: Any, count: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_processors", lambda device: 1)
    compared(example((count, width), torch.float64, scale=True, offset=True), centre=True)


@pytest.mark.parametrize("width", [40, 3000])
@pytest.mark.parametrize("centre", [True, False], ids=["layer", "rms"])
@pytest.mark.parametrize("scale", [True, False], ids=["scale", ""])
@pytest.mark.parametrize("offset", [True, False], ids=["offset", ""])
@pytest.mark.parametrize("unit", [True, False], ids=["unit", ""])
def test_of_any_kind(rows: Any, width: int, centre: bool, scale: bool, offset: bool, unit: bool) -> None:
    given = example((7, width), torch.float64, scale=scale, offset=offset)
    compared([one if at != 1 or unit else None for at, one in enumerate(given)], centre)


@pytest.mark.parametrize("needed", [(0,), (2,), (3,), (2, 3)], ids=str)
def test_gradients_that_nobody_needs_are_not_given(rows: Any, needed: tuple[int, ...]) -> None:
    given = example((3, 20), torch.float64, scale=True, offset=True)
    for at, one in enumerate(given):
        one.requires_grad_(at in needed)
    compared(given, centre=True)


def test_memory_may_lie_otherwise(rows: Any) -> None:
    y, *rest = example((20, 6), torch.float64, scale=True, offset=True)
    wide = y.detach().repeat(1, 2)[:, ::2].requires_grad_()
    halves = [part.detach().repeat_interleave(2)[::2].requires_grad_() for part in rest[1:]]
    assert not wide.is_contiguous()
    compared([wide, rest[0], *halves], centre=True)


@pytest.mark.parametrize("size", [1e-25, 1.0, 1e25])
def test_the_size_of_the_weights_does_not_matter(rows: Any, size: float) -> None:
    y, unit, *rest = example((4, 30), torch.float32, scale=True, offset=True)
    expected = torch.ops.nap.norm_relu(y, unit, *rest, EPS, True)[0]
    grown = (size * y).detach().requires_grad_()
    found = torch.ops.nap.norm_relu(grown, size * unit, *rest, EPS, True)[0]
    assert_close(found, expected)
    dh = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad(h, x, dh)[0] for h, x in ((found, grown), (expected, y)))
    assert_close(ours * size, theirs, rtol=1e-4, atol=1e-5)


def test_what_is_not_a_number_stays_so(rows: Any) -> None:
    y, *rest = example((3, 6), torch.float32, scale=True, offset=True)
    y = y.detach().index_fill(0, torch.tensor([1], device=DEVICE), float("nan")).requires_grad_()
    found = torch.ops.nap.norm_relu(y, *rest, EPS, True)[0]
    assert found.isnan().any(1).tolist() == [False, True, False]
    dy, dscale = torch.autograd.grad(found.sum(), (y, rest[1]))
    assert dy.isnan().any(1).tolist() == [False, True, False]
    assert dscale.isnan().all()


def test_gradients_of_gradients_are_refused(rows: Any) -> None:
    given = example((3, 6), torch.float64, scale=True, offset=True)
    found = torch.ops.nap.norm_relu(*given, EPS, True)[0]
    (dy,) = torch.autograd.grad(found.square().sum(), given[0], create_graph=True)
    with pytest.raises(RuntimeError, match="norm_relu_backward"):
        dy.square().sum().backward()


def test_a_narrow_row_shares_a_program_and_a_wide_one_wastes_no_lanes(rows: Any) -> None:
    assert rows.Tile.of(6144, 12) == rows.Tile(rows=1, chunks=3, block=2048, warps=16)
    assert rows.Tile.of(96, 12) == rows.Tile(rows=8, chunks=1, block=128, warps=4)
    for width in (1, 5, 96, 1000, 1024, 1025, 1536, 3000, 3073, 6144, 8192):
        for numbers in (12, 24):
            tile = rows.Tile.of(width, numbers)
            assert tile.chunks * tile.block >= width
            assert tile.chunks * tile.block < 1.5 * width or width < 1024
            assert tile.rows == 1 or tile.rows * tile.block == 1024
