"""Norms of small weights that numpy reads: right, independent of threads, the same on every path."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nap.norms.quick import KnownSquare, mean_square
from nap.norms.small import LONG, SmallWeight, is_small
from nap.projection.sphere import norms_of

SHAPES = [(5,), (3, 4), (128, 128), (8191, 1), (8193,), (256, 256)]


def random(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)), dtype=dtype)


@pytest.mark.parametrize("shape", SHAPES)
def test_norms_agree_with_an_exact_sum(shape: tuple[int, ...]) -> None:
    weight = random(shape)
    exact = math.sqrt(math.fsum(float(entry) ** 2 for entry in weight.flatten()))
    assert SmallWeight(weight).norm() == pytest.approx(exact, rel=2e-7)
    assert SmallWeight(weight.double()).norm() == pytest.approx(exact, rel=1e-14)


@pytest.mark.parametrize("shape", SHAPES)
def test_projection_and_eps_read_the_same_norm(shape: tuple[int, ...]) -> None:
    weight = nn.Parameter(random(shape))
    norm = SmallWeight(weight).norm()
    assert norms_of(weight).item() == norm
    assert KnownSquare(weight).get() == norm**2
    assert mean_square([weight], 1) == norm**2


@pytest.mark.parametrize("shape", SHAPES)
def test_the_bits_do_not_depend_on_the_number_of_threads(shape: tuple[int, ...]) -> None:
    weight = random(shape)
    alone = SmallWeight(weight).norm()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert SmallWeight(weight).norm() == alone
    finally:
        torch.set_num_threads(before)


def test_what_overflows_is_infinite_without_a_warning() -> None:
    with np.errstate(all="raise"):
        assert SmallWeight(torch.full((4, 4), 1e30)).norm() == math.inf


def test_a_weight_that_was_read_can_still_be_freed_as_fsdp_does() -> None:
    weight = nn.Parameter(random((4, 4)))
    small = SmallWeight(weight)
    assert small.norm() > 0
    weight.untyped_storage().resize_(0)
    assert weight.data_ptr() == 0


def test_other_tensors_are_left_to_pytorch() -> None:
    assert not is_small(torch.zeros(LONG + 1))
    assert not is_small(torch.zeros(0, 3))
    assert not is_small(torch.zeros(4, 3).T)
    assert not is_small(torch.zeros(3, dtype=torch.bfloat16))
