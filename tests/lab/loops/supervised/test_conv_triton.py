"""The kernels for convolutions of stacked networks: against PyTorch in float64, in every choice of tiles."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.testing import assert_close

from convolution_cases import SIZES, by_hand, given, last
from gpu import CUDA

pytestmark = pytest.mark.cuda
pytest.importorskip("triton", reason="needs Triton")


@pytest.fixture(autouse=True)
def _exact_products() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def compare(size: tuple[int, ...], dtype: torch.dtype, far: float, tiles: object = None) -> None:
    from nap.lab.loops.supervised.stacked import conv_triton as kernels

    x, w, dy = given(size, dtype)
    found = (
        kernels.convolved(last(x), last(w), tiles=tiles),  # type: ignore[arg-type]
        kernels.image_gradient(last(dy), last(w), tiles=tiles),  # type: ignore[arg-type]
        kernels.kernel_gradient(last(dy), last(x), w.shape[-1], tiles=tiles),  # type: ignore[arg-type]
    )
    for one, expected in zip(found, by_hand(x, w, dy), strict=True):
        assert one.dtype == dtype
        assert (one.double() - last(expected)).norm() / expected.norm() < far


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_each_way_is_pytorchs(size: tuple[int, ...]) -> None:
    compare(size, torch.float32, 1e-6)


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("shape", [(16, 16, 16), (64, 32, 16), (32, 64, 32)], ids=str)
def test_tiles_change_nothing(shape: tuple[int, int, int], parts: int) -> None:
    from nap.lab.loops.supervised.stacked.conv_tuning import Tiles

    compare((2, 2, 5, 3, 20, 40, 3), torch.float32, 1e-6, Tiles(*shape, parts=parts))


def test_sums_over_positions_may_be_cut_into_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from nap.lab.loops.supervised.stacked import conv_triton as kernels

    size = (2, 5, 6, 7, 4, 6, 3)  # 210 positions
    x, w, dy = given(size, torch.float32)
    _, _, expected = by_hand(x, w, dy)
    for length in (64, 128, 256):
        monkeypatch.setattr(kernels, "part_length", lambda *given, length=length: length)
        assert_close(
            kernels.kernel_gradient(last(dy), last(x), 3).double(), last(expected), rtol=1e-5, atol=1e-5
        )


@pytest.mark.skipif(not CUDA, reason="Triton's interpreter multiplies numbers in bfloat16 as whole numbers")
@pytest.mark.parametrize("channels", [(3, 64), (64, 64), (128, 256), (512, 512)], ids=str)
def test_on_a_gpu_in_bfloat16(channels: tuple[int, int]) -> None:
    compare((3, 8, 8, 8, *channels, 3), torch.bfloat16, 1e-2)
