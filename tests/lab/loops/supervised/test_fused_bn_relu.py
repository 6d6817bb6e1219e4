"""Norm, ReLU and pooling of stacked networks: against PyTorch's own, one network at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap
from torch.testing import assert_close

from gpu import CUDA, DEVICE
from nap.lab.loops.supervised.stacked import checked_kernel
from nap.lab.loops.supervised.stacked import fused_bn_relu as operations
from nap.lab.loops.supervised.stacked.bn_affine import bn_affine, bn_affine_backward
from nap.lab.loops.supervised.stacked.checked_kernel import DTYPES
from nap.lab.loops.supervised.stacked.fused_bn_relu import fused_bn_relu
from nap.lab.loops.supervised.stacked.layout import by_position

pytestmark = pytest.mark.cuda
SIZES = [(2, 3, 5, 6, 4), (3, 2, 20, 4, 4), (1, 4, 3, 16, 18), (2, 5, 130, 2, 2)]  # members, images, C, H, W
WAYS = pytest.mark.parametrize("pool", [False, True], ids=["whole", "pooled"])
NORMS = pytest.mark.parametrize("kind", ["batch", "layer", "rms"])


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations are PyTorch's own, on a GPU too: there is something to compare kernels with."""
    monkeypatch.setattr(checked_kernel, "available", lambda device: False)


def given(size: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Images, then scale, offset and the scale of a norm in front."""
    k, n, c, h, w = size
    generator = torch.Generator().manual_seed(0)

    def made(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype)

    return [
        (2 * made(k, n, h, w, c) + 0.5).permute(0, 1, 4, 2, 3).requires_grad_(),
        *((1 + 0.3 * made(k, c)).requires_grad_() for _ in range(3)),
    ]


def ours(kind: str, pool: bool) -> Callable[..., Tensor]:
    def one(x: Tensor, scale: Tensor, offset: Tensor, before: Tensor) -> Tensor:
        front = None if kind == "batch" else before
        found = fused_bn_relu(x, scale, offset - 1, front, centre=kind != "rms", pool=pool)
        return found.images

    return vmap(one)


def by_hand(kind: str, pool: bool) -> Callable[..., Tensor]:
    def one(x: Tensor, scale: Tensor, offset: Tensor, before: Tensor) -> Tensor:
        if kind == "layer":
            x = F.layer_norm(x, x.shape[1:], eps=1e-5) * before.view(-1, 1, 1)
        elif kind == "rms":
            x = F.rms_norm(x, x.shape[1:], eps=1e-5) * before.view(-1, 1, 1)
        y = F.batch_norm(x, None, None, scale, offset - 1, training=True).relu()
        return F.max_pool2d(y, 2) if pool else y

    return lambda *stacks: torch.stack([one(*own) for own in zip(*stacks, strict=True)])


@WAYS
@NORMS
@pytest.mark.parametrize("backend", ["", "aot_eager"], ids=["eager", "compiled"])
@pytest.mark.parametrize("size", SIZES[:2], ids=str)
def test_it_is_what_it_says_and_so_is_its_gradient(
    size: tuple[int, ...], backend: str, kind: str, pool: bool
) -> None:
    inputs = given(size)
    way = ours(kind, pool)
    if backend:
        torch.compiler.reset()
        way = torch.compile(way, backend=backend, fullgraph=True)
    found, expected = way(*inputs), by_hand(kind, pool)(*inputs)
    assert_close(found, expected)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted = inputs[:3] if kind == "batch" else inputs
    gradients = [
        torch.autograd.grad((y * weights.to(DEVICE)).sum(), wanted, retain_graph=True)
        for y in (found, expected)
    ]
    assert_close(*gradients)


@WAYS
@NORMS
def test_all_of_it_by_kernels(kind: str, pool: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operations as they call them: on parameters with gaps between members, as stacks of few have."""
    pytest.importorskip("triton", reason="needs Triton")
    monkeypatch.setattr(checked_kernel, "available", lambda device: True)
    monkeypatch.setattr(checked_kernel, "_passed", {})
    inputs = given(SIZES[0], torch.float32)
    spaced = [inputs[0], *(F.pad(part.detach(), (0, 3))[:, :5].requires_grad_() for part in inputs[1:])]
    weights = torch.randn(by_hand(kind, pool)(*inputs).shape, generator=torch.Generator().manual_seed(1))
    count, found = 3 if kind == "batch" else 4, []
    for way, own in ((ours(kind, pool), spaced), (by_hand(kind, pool), inputs)):
        y = way(*own)
        found.append([y, *torch.autograd.grad((y * weights.to(DEVICE)).sum(), own[:count])])
    assert_close(*found, rtol=1e-4, atol=1e-4)
    assert len(checked_kernel._passed) == 6
    assert all(checked_kernel._passed.values())


def test_channels_are_followed_as_batch_norm_does() -> None:
    x, *_ = given(SIZES[0])
    norm = torch.nn.BatchNorm2d(5, momentum=1.0, device=DEVICE, dtype=torch.float64)
    norm(x[0])
    found = fused_bn_relu(x[0], norm.weight, norm.bias)
    assert_close(found.mean, norm.running_mean)
    assert_close(found.var, norm.running_var)


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("dtype", [kind for kind in DTYPES if CUDA or kind != torch.bfloat16], ids=str)
@WAYS
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_each_kernel_is_pytorchs(size: tuple[int, ...], pool: bool, dtype: torch.dtype) -> None:
    kernels = pytest.importorskip(
        "nap.lab.loops.supervised.stacked.fused_bn_relu_triton", reason="needs Triton"
    )
    x = given(size, dtype)[0].detach()
    *small, dy = (
        torch.randn(shape, generator=torch.Generator().manual_seed(k)).to(DEVICE)
        for k, shape in enumerate([x.shape[:3]] * 4 + [(*x.shape[:3], x.shape[3] // 2, x.shape[4] // 2)])
    )
    dy = dy.to(dtype) if pool else torch.randn_like(x)
    factor, shift = small[:2]
    out, last = (dy, x), (by_position(dy), by_position(x))
    rest: list = [torch.ones_like(factor[0, 0])[None]] * 2
    found = {
        "moments": (kernels.moments(last[1]), operations._moments(x)),
        "sums": (kernels.sums(*last, factor, shift, pool), operations._sums(*out, factor, shift, pool)),
        "applied": (
            kernels.applied(last[1], factor, shift, pool).permute(0, 1, 4, 2, 3),
            operations._fused_bn_relu(x, factor, shift, factor[None], factor, None, *rest, 1e-5, True, pool),
        ),
        "gradient": (
            kernels.gradient(*last, *small, pool).permute(0, 1, 4, 2, 3),
            operations._gradient(*out, *small, pool),
        ),
    }
    far = 1e-5 if dtype == torch.float32 else 1e-2
    for name, (one, other) in found.items():
        assert one.shape == other.shape, name
        assert (one.float() - other.float()).norm() <= far * other.float().norm(), name


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("corner", [1000.0, 0.0], ids=["as the rest", "an edge that differs"])
def test_moments_of_numbers_far_from_zero(corner: float) -> None:
    kernels = pytest.importorskip(
        "nap.lab.loops.supervised.stacked.fused_bn_relu_triton", reason="needs Triton"
    )
    x = 1000 + torch.randn(1, 2, 16, 16, 3, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    x[:, :, 0, 0] = corner
    mean, variance = kernels.moments(x)
    wide = x.double().flatten(2, 3)
    assert_close(mean.double(), wide.mean(2), rtol=1e-6, atol=0)
    assert_close(variance.double(), wide.var(2, correction=0), rtol=1e-4, atol=0)


@pytest.mark.usefixtures("no_kernels")
@NORMS
@pytest.mark.parametrize("size", [(2, 3, 5), (3, 32, 64), (1, 5, 130), (2, 70, 40)], ids=str)
def test_coefficients_and_their_gradient_by_kernels(size: tuple[int, ...], kind: str) -> None:
    kernels = pytest.importorskip("nap.lab.loops.supervised.stacked.bn_affine_triton", reason="needs Triton")
    k, _, c = size
    generator = torch.Generator().manual_seed(0)
    moments, sums = (torch.randn(2, *size, generator=generator).to(DEVICE) for _ in range(2))
    moments[1].square_()
    before, scale, offset = (1 + 0.3 * torch.randn(3, k, c, generator=generator)).to(DEVICE)
    front, centre = None if kind == "batch" else before, kind != "rms"
    given = moments, front, scale, offset, 1e-5, 1e-4, centre, 16
    found, expected = kernels.bn_affine(*given), bn_affine(*given)
    assert_close(found, expected, rtol=1e-5, atol=1e-5)
    back = sums, moments, expected[-1], front, scale, 1e-5, centre, 16
    assert_close(kernels.gradient(*back), bn_affine_backward(*back), rtol=1e-4, atol=1e-4)
