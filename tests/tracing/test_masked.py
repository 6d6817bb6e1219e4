"""Zeros in weights that keep features or positions apart."""

import pytest
import torch
from torch import Tensor

from nap.tracing.masked import IN_BLOCKS, ONE_AFTER_ANOTHER, POSITIONS, kept_apart, lacks_taps

WHOLE = torch.ones(6, 6)
STAIRS = torch.ones(6, 6).tril()
BLOCKS = torch.block_diag(torch.ones(3, 3), torch.ones(3, 3))
CROSSED = torch.tensor([[1.0, 1, 0], [0, 1, 1], [1, 0, 1]])


@pytest.mark.parametrize(
    ("mask", "why"),
    [
        (WHOLE, ""),
        (STAIRS, ONE_AFTER_ANOTHER),
        (STAIRS[torch.tensor([3, 0, 5, 2, 4, 1])], ONE_AFTER_ANOTHER),  # in any order
        (STAIRS - torch.eye(6), ONE_AFTER_ANOTHER),  # the first feature depends on nothing
        (STAIRS.T, ONE_AFTER_ANOTHER),
        (BLOCKS, IN_BLOCKS),
        (torch.eye(6), IN_BLOCKS),
        (CROSSED, ""),  # as pruning leaves it
        (WHOLE * torch.tensor([1.0, 0, 1, 0, 1, 0]), ""),  # inputs that no feature sees
        (torch.zeros(6, 6), ""),
    ],
)
def test_masks(mask: Tensor, why: str) -> None:
    weight = torch.randn(mask.shape)
    assert kept_apart(weight * mask, 0, weight) == why
    assert kept_apart((weight * mask).T, 1, weight) == why


def test_masks_of_what_mixes_positions_keep_them_apart():
    weight = torch.randn(3, 3)
    assert kept_apart(weight * CROSSED, 0, weight, mixes=True) == POSITIONS
    assert kept_apart(weight, 0, weight, mixes=True) == ""


def test_zeros_that_a_parameter_starts_with_are_no_mask_unless_they_are_stairs():
    for start, why in ((torch.eye(6), ""), (BLOCKS, ""), (STAIRS, ONE_AFTER_ANOTHER)):
        weight = torch.randn(6, 6) * start
        assert kept_apart(weight, 0, weight) == why
        assert kept_apart(2 * weight, 0, weight) == why
    two = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    assert kept_apart(two, 0, two) == ""


def test_weights_that_are_clamped_are_not_masked():
    weight = torch.tensor([[1.0, -1.0], [2.0, 1.0], [1.0, -2.0]])
    assert kept_apart(weight * (weight > -0.5), 0, weight + 3) == ONE_AFTER_ANOTHER
    assert kept_apart(weight.clamp(min=0), 0, weight) == ""


def test_a_triangle_of_one_vector_is_made_of_it():
    vector, distance = torch.randn(6), torch.arange(6)[:, None] - torch.arange(6)
    assert kept_apart(vector[distance.clamp(min=0)] * (distance >= 0), 0, vector) == ONE_AFTER_ANOTHER


def test_taps_that_a_mask_takes_away():
    weight = torch.randn(4, 2, 3, 3)
    mask = torch.ones(3, 3)
    mask[1, 2] = mask[2] = 0
    assert lacks_taps(weight * mask, weight)
    assert not lacks_taps(weight, weight)
    start = weight * mask
    assert not lacks_taps(start, start)
    assert not lacks_taps(weight * (torch.rand(weight.shape) > 0.1), weight)
