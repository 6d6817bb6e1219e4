"""Convolutions of stacked networks: against PyTorch's own, one network at a time."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.testing import assert_close

from convolution_cases import SIZES, by_hand, given
from gpu import DEVICE
from nap.lab.loops.supervised.stacked import checked_kernel, conv
from nap.lab.loops.supervised.stacked.conv import Convolution, adopt_, convolve

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_under_vmap_each_network_has_its_own_kernel(size: tuple[int, ...]) -> None:
    x, w, dy = given(size)
    x, w = x.requires_grad_(), w.requires_grad_()
    y = vmap(convolve)(x, w)
    for found, expected in zip((y, *torch.autograd.grad(y, (x, w), dy)), by_hand(x, w, dy), strict=True):
        assert_close(found, expected)
        assert found.permute(0, 1, 3, 4, 2).is_contiguous()  # where the next operation looks for it


def test_one_side_may_be_shared_and_members_may_lie_anywhere() -> None:
    x, w, _ = given(SIZES[0])
    shared = vmap(convolve, in_dims=(None, 0))(x[0], w)
    assert_close(shared, torch.stack([F.conv2d(x[0], kernel, padding=1) for kernel in w]))
    moved = vmap(convolve, in_dims=(1, 2))(x.movedim(0, 1), w.movedim(0, 2))
    assert_close(moved, vmap(convolve)(x, w))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_stack_of_networks_is_each_network(backend: str) -> None:
    torch.manual_seed(0)

    def made() -> nn.Sequential:
        layers = [nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*layers, nn.Conv2d(8, 4, 3, padding="same"), nn.Flatten()).double().to(DEVICE)

    nets, skeleton = [made() for _ in range(3)], made()
    adopt_(skeleton)
    assert [type(m) for m in skeleton if isinstance(m, nn.Conv2d)] == [Convolution, Convolution]
    stack = {
        n: torch.stack([m.get_parameter(n).detach() for m in nets]) for n, _ in skeleton.named_parameters()
    }
    stack = {name: values.requires_grad_() for name, values in stack.items()}
    x = torch.randn(3, 2, 3, 8, 8, dtype=torch.float64, device=DEVICE)

    def outputs(stack: Any, x: Tensor) -> Tensor:
        return vmap(lambda own, images: functional_call(skeleton, own, (images,)))(stack, x)

    expected = torch.stack([net(images) for net, images in zip(nets, x, strict=True)])
    found = torch.compile(outputs, fullgraph=True, backend=backend)(stack, x)
    assert_close(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    for name, values in stack.items():
        grads: list[Any] = [net.get_parameter(name).grad for net in nets]
        assert_close(values.grad, torch.stack(grads))


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (nn.Conv2d(3, 4, 2, padding=1), "of odd side"),
        (nn.Conv2d(3, 4, 3), "padded by half of it"),
        (nn.Conv2d(3, 4, (3, 5), padding=(1, 2)), "keep the size"),
        (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), "with zeros"),
        (nn.Conv2d(3, 4, 3, padding=1, stride=2), "stride, dilation and groups of 1"),
        (nn.Conv2d(4, 4, 3, padding=1, groups=2), "stride, dilation and groups of 1"),
    ],
    ids=["even", "shrinks", "oblong", "circular", "strides", "groups"],
)
def test_other_convolutions_are_refused_and_nothing_is_changed(layer: nn.Conv2d, why: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), layer)
    with pytest.raises(ValueError, match=f"^1 is Conv2d.*{why}"):
        adopt_(model)
    assert type(model[0]) is nn.Conv2d


def use(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv, "_kernels", lambda: kernels)
    monkeypatch.setattr(checked_kernel, "available", lambda device: True)
    monkeypatch.setattr(checked_kernel, "_passed", {})


def test_zeros_say_nothing_of_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = mock.Mock()
    kernels.convolved = lambda x, w: x.new_zeros(2, 2, 5, 6, 8)
    use(kernels, monkeypatch)
    x, w, _ = given(SIZES[0], torch.float32)
    assert not vmap(convolve)(torch.zeros_like(x), w).any()
    assert not checked_kernel._passed


def test_kernels_that_are_wrong_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        calls = 0

        def convolved(self, x: Tensor, w: Tensor) -> Tensor:
            self.calls += 1
            return x.new_full((*x.shape[:4], w.shape[1]), torch.nan)

    wrong = Wrong()
    use(wrong, monkeypatch)
    x, w, _ = given(SIZES[0], torch.float32)
    with pytest.warns(
        UserWarning, match=r"the convolution of stacked networks, \(2, 2, 3, 5, 6\) by .* is nan times as far"
    ):
        first = vmap(convolve)(x, w)
    again = vmap(convolve)(x, w)
    expected = torch.stack([F.conv2d(a, b, padding=1) for a, b in zip(x, w, strict=True)])
    assert_close(first, expected)
    assert_close(again, expected)
    assert wrong.calls == 1
