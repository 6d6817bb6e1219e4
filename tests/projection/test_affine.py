"""The rules for scale and offset over tensors: float64 identities, no wait for the device."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from nap.projection.affine import apply_, decay_scale_offset, joint_scale_offset

F64 = torch.float64


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def joint_rule(scale: Tensor, offset: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return joint_scale_offset(scale, offset, stacked=1)


def test_joint_is_the_identity_at_initialisation() -> None:
    scale, offset = joint_scale_offset(torch.ones(7, dtype=F64), torch.zeros(7, dtype=F64))
    assert_close(scale, torch.ones(7, dtype=F64), rtol=0, atol=1e-15)
    assert offset is not None
    assert offset.count_nonzero() == 0


@settings(max_examples=30, deadline=None)
@given(d=st.integers(1, 9), members=st.integers(1, 4), has_offset=st.booleans())
def test_joint_gives_norm_root_d_in_the_same_direction(d: int, members: int, has_offset: bool) -> None:
    scale = 1 + randn(members, d)
    offset = randn(members, d, seed=1) if has_offset else None
    new_scale, new_offset = joint_scale_offset(scale, offset, stacked=1)
    squares = new_scale.square().sum(1) + (0 if new_offset is None else new_offset.square().sum(1))
    assert_close(squares, torch.full((members,), float(d), dtype=F64))
    factor = new_scale[:, 0] / scale[:, 0]
    assert_close(new_scale, factor[:, None] * scale)
    if offset is not None:
        assert_close(new_offset, factor[:, None] * offset)


def test_joint_of_zeros_and_of_bfloat16() -> None:
    zeros = torch.zeros(3)
    assert joint_scale_offset(zeros, zeros)[0].tolist() == [0, 0, 0]
    scale, offset = joint_scale_offset(torch.full((4,), 2.0).bfloat16(), torch.zeros(4).bfloat16())
    assert scale.dtype == torch.bfloat16
    assert scale.tolist() == [1, 1, 1, 1]
    assert offset is not None
    assert offset.dtype == torch.bfloat16


def test_joint_keeps_a_relu_layernorm_network_and_changes_a_gelu_one() -> None:
    def error(activation: nn.Module) -> float:
        first, second = nn.LayerNorm(6, eps=0.0), nn.LayerNorm(5, eps=0.0)
        net = nn.Sequential(first, activation, nn.Linear(6, 5, bias=False), second).to(F64)
        first.weight.data, first.bias.data = 3 + randn(6), randn(6, seed=1)
        x = randn(8, 6, seed=2)
        before = net(x)
        scale, offset = joint_scale_offset(first.weight.detach(), first.bias.detach())
        assert offset is not None
        first.weight.data, first.bias.data = scale, offset
        return (net(x) - before).abs().max().item()

    assert error(nn.ReLU()) < 1e-12
    assert error(nn.GELU()) > 1e-2


def test_decay_is_the_rule_of_the_paper() -> None:
    scale, offset, alpha = randn(2, 5), randn(2, 5, seed=1), 0.9
    new_scale, new_offset = decay_scale_offset(scale, offset, decay=1 - alpha)
    assert_close(new_scale, alpha * scale + (1 - alpha) * torch.ones_like(scale))
    assert_close(new_offset, alpha * offset)
    assert decay_scale_offset(None, None, decay=0.1) == (None, None)


def test_apply_treats_every_norm_alone_whatever_its_width() -> None:
    pairs: list[tuple[Tensor | None, Tensor | None]] = [
        (1 + randn(3), randn(3)),
        (1 + randn(3, seed=1), randn(3, seed=2)),
        (1 + randn(5), None),
        ((1 + randn(3)).float(), None),
    ]
    expected = [joint_scale_offset(scale.clone(), offset) for scale, offset in pairs if scale is not None]
    apply_(joint_rule, pairs)
    assert_close(
        [t for p in pairs for t in p if t is not None], [t for p in expected for t in p if t is not None]
    )


@pytest.mark.parametrize("real", [True, False])
def test_apply_follows_a_mask(real: bool) -> None:
    scale = torch.full((4,), 2.0)
    apply_(joint_rule, [(scale, None)], when=torch.tensor(real))
    assert scale.tolist() == [1.0 if real else 2.0] * 4


def test_nothing_waits_for_the_device() -> None:
    """Under fake tensors there are no values, so .item(), bool() and float() raise."""
    with FakeTensorMode():
        apply_(joint_rule, [(torch.ones(3), torch.zeros(3))], when=torch.tensor([1.0]).sum() == 0)
