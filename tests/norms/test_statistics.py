"""Norms as a factor and a shift for each sample and channel: against PyTorch's own, gradients included."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from gpu import DEVICE
from nap.kernels import statistics
from nap.norms.norm import Norm

pytestmark = pytest.mark.cuda
SHAPES = [(3, 5, 4, 6), (2, 70, 3, 3), (2, 3, 40, 40), (4, 8, 1, 1), (2, 6, 11)]
EPS = 1e-5


def layer(mean: Tensor, variance: Tensor, scale: Tensor) -> statistics.Affine:
    return statistics.scaled(statistics.layer_norm(mean, variance, eps=EPS), scale, None)


def layer_then_batch(
    mean: Tensor, variance: Tensor, scale: Tensor, gain: Tensor, offset: Tensor
) -> statistics.Affine:
    before = layer(mean, variance, scale)
    return statistics.batch_norm(before, *statistics.of_channels(before, mean, variance), gain, offset, EPS)


def by_torch(x: Tensor, parameters: list[Tensor], relu: bool) -> Tensor:
    y = F.group_norm(x, 1, parameters[0], None, EPS)
    if len(parameters) == 3:
        y = F.batch_norm(y, None, None, parameters[1], parameters[2], training=True, eps=EPS)
    return y.relu() if relu else y


def by_hand(x: Tensor, coefficients: Any, parameters: list[Tensor], relu: bool) -> Tensor:
    y = statistics.apply(x, coefficients(*statistics.moments(x), *parameters))
    return y.relu() if relu else y


def example(shape: tuple[int, ...], last: bool, dtype: torch.dtype) -> tuple[Tensor, list[Tensor], Tensor]:
    torch.manual_seed(0)
    x = 2 * torch.randn(shape, dtype=dtype, device=DEVICE) + 3
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    parameters = [torch.randn(shape[1], dtype=dtype, device=DEVICE).requires_grad_() for _ in range(3)]
    return x.requires_grad_(), parameters, torch.randn(shape, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("coefficients", [layer, layer_then_batch])
def test_moments_are_all_that_these_norms_need(shape: tuple[int, ...], coefficients: Any) -> None:
    x, parameters, dy = example(shape, False, torch.float64)
    parameters = parameters[: 1 if coefficients is layer else 3]
    ours, theirs = by_hand(x, coefficients, parameters, False), by_torch(x, parameters, False)
    assert_close(ours, theirs)
    for found, expected in zip(
        torch.autograd.grad(ours, (x, *parameters), dy),
        torch.autograd.grad(theirs, (x, *parameters), dy),
        strict=True,
    ):
        assert_close(found, expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["plain", "channels last"])
@pytest.mark.parametrize("relu", [False, True], ids=["", "relu"])
@pytest.mark.parametrize("coefficients", [layer, layer_then_batch])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_our_own_passes_give_the_same(
    shape: tuple[int, ...], last: bool, relu: bool, coefficients: Any, dtype: torch.dtype
) -> None:
    fused = pytest.importorskip("nap.kernels.statistics_triton", reason="needs Triton", exc_type=ImportError)
    if last and len(shape) != 4:
        pytest.skip("channels-last is for images")
    x, parameters, dy = example(shape, last, dtype)
    parameters = parameters[: 1 if coefficients is layer else 3]
    found = fused.by_moments(x, coefficients, *parameters, relu=relu)
    gradients = torch.autograd.grad(found, (x, *parameters), dy)
    wide = [part.detach().double().requires_grad_() for part in (x, *parameters)]
    expected = by_torch(wide[0], wide[1:], relu)
    exact = dtype == torch.float64
    close: dict[str, Any] = {"rtol": 1e-9 if exact else 1e-4, "atol": 1e-9 if exact else 2e-4}
    assert_close(found.double(), expected, **close)
    for one, other in zip(gradients, torch.autograd.grad(expected, wide, dy.double()), strict=True):
        assert_close(one.double(), other, **close)
    assert found.stride() == x.stride()


@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)], ids=str)
def test_gradients_of_gradients_come_from_plain_operations(needs: tuple[bool, bool]) -> None:
    fused = pytest.importorskip("nap.kernels.statistics_triton", reason="needs Triton", exc_type=ImportError)
    x = torch.randn(2, 3, 2, 2, dtype=torch.float64, device=DEVICE, requires_grad=needs[0])
    scale = torch.randn(3, dtype=torch.float64, device=DEVICE, requires_grad=needs[1])
    assert torch.autograd.gradcheck(lambda *args: fused.by_moments(args[0], layer, args[1]), (x, scale))
    assert torch.autograd.gradgradcheck(lambda *args: fused.by_moments(args[0], layer, args[1]), (x, scale))


class FunctionWatcher(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class DispatchWatcher(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_who_watches_or_transforms_operations_sees_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = pytest.importorskip("nap.kernels.statistics_triton", reason="needs Triton", exc_type=ImportError)
    monkeypatch.setattr(fused, "works", lambda device: True)
    seen: list[bool] = []

    def look(x: Tensor) -> Tensor:
        seen.append(fused.fits(x))
        return 2 * x

    x = torch.randn(2, 3, 4, 4, device=DEVICE)
    look(x)
    look(x.contiguous(memory_format=torch.channels_last))
    assert seen == [True, True]
    torch.func.vmap(look)(x[:, None])
    torch.func.grad(lambda x: look(x).sum())(x)
    torch.func.jvp(look, (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        look(x)
    with FunctionWatcher():
        look(x)
    with DispatchWatcher():
        look(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.trace(look, x, check_trace=False)
    look(x[:, :, ::2])
    look(x[:, 0, 0])
    look(x[:0])
    look(x.int())
    assert not any(seen[2:])


def test_a_batch_of_gradients_at_once() -> None:
    fused = pytest.importorskip("nap.kernels.statistics_triton", reason="needs Triton", exc_type=ImportError)
    x = torch.randn(2, 3, 2, 2, dtype=torch.float64, device=DEVICE, requires_grad=True)
    scale = torch.randn(3, dtype=torch.float64, device=DEVICE, requires_grad=True)
    y = fused.by_moments(x, layer, scale)
    many = torch.randn(4, *y.shape, dtype=torch.float64, device=DEVICE)
    found = torch.autograd.grad(y, (x, scale), many, is_grads_batched=True, retain_graph=True)
    for i, one in enumerate(many):
        for part, expected in zip(
            found, torch.autograd.grad(y, (x, scale), one, retain_graph=True), strict=True
        ):
            assert_close(part[i], expected)


@pytest.mark.parametrize(
    "options", [{}, {"centre": False}, {"scale": False, "offset": False}, {"gain": 0.5}], ids=str
)
@pytest.mark.parametrize("eps", ["relative", 1e-3])
def test_a_norm_is_the_same_compiled_and_in_our_own_passes(options: dict[str, Any], eps: Any) -> None:
    torch.manual_seed(0)
    norm = Norm(6, layout="sample", spatial=2, eps=eps, **options).double().to(DEVICE)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    y = torch.randn(3, 6, 4, 5, dtype=torch.float64, device=DEVICE, requires_grad=True)
    weights = (0.2 * torch.randn(6, 8, dtype=torch.float64, device=DEVICE),) if eps == "relative" else ()
    expected = _plain(norm, y, *weights)
    torch.compiler.reset()
    assert_close(torch.compile(norm, backend="eager")(y, *weights), expected)
    fused = pytest.importorskip("nap.kernels.statistics_triton", reason="needs Triton", exc_type=ImportError)
    unit = torch.linalg.vector_norm(weights[0]) / 6**0.5 if weights else None
    found = norm._in_two_passes(y, unit, fused)
    assert_close(found, expected)
    single = norm._in_two_passes(y[0], unit, fused)
    assert_close(single, expected[0])


def _plain(norm: Norm, y: Tensor, *weights: Tensor) -> Tensor:
    """On the CPU, where neither compiler nor kernels come in."""
    import copy

    return copy.deepcopy(norm).cpu()(y.detach().cpu(), *(w.cpu() for w in weights)).to(DEVICE)


def test_kernels_that_compute_something_else_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = pytest.importorskip("nap.kernels.statistics_triton", reason="needs Triton", exc_type=ImportError)
    monkeypatch.setattr(fused, "_works", {})
    assert fused.works(DEVICE)
    right = fused.by_moments
    monkeypatch.setattr(fused, "_works", {})
    monkeypatch.setattr(fused, "by_moments", lambda x, *rest: 1.01 * right(x, *rest))
    with pytest.warns(UserWarning, match="made no kernels that work .results differ by"):
        assert not fused.works(DEVICE)
