"""The short path for small weights on a CPU gives the bits of the long one: resumed runs stay exact."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nap.projection.small import SmallWeights
from nap.projection.sphere import norms_of, project_tensors_


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "shape",
    [(5,), (1, 7), (7, 1), (33, 129), (128, 128), (256, 256), (1, 1, 65536), (8, 3, 3, 3), (64, 64, 3)],
)
def test_the_short_path_gives_the_bits_of_the_long_one(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        module = nn.Module()
        module.weight = nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype))
        radius = norms_of(module.weight)
        with torch.no_grad():
            module.weight.add_(0.1 * torch.randn(shape, generator=generator, dtype=dtype))
        expected = module.weight.detach().clone()
        project_tensors_([expected], [radius])
        small = SmallWeights.of({"weight": (module, "weight")}, {"weight": radius}, growing=())
        assert small is not None
        assert small.project_()
        assert torch.equal(module.weight, expected)


def test_weights_that_the_short_path_cannot_take_are_left_to_the_long_one() -> None:
    module, radius = nn.Linear(2, 2), torch.ones(1, 1)
    slots: dict[str, tuple[nn.Module, str]] = {"weight": (module, "weight")}
    assert SmallWeights.of(slots, {"weight": torch.ones(2, 1)}, growing=()) is None
    assert SmallWeights.of(slots, {}, growing=()) is None
    small = SmallWeights.of(slots, {"weight": radius}, growing=())
    assert small is not None
    with torch.no_grad():
        module.weight.zero_()
    assert not small.project_()
    assert not module.weight.any()
