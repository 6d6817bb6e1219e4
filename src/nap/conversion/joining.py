"""Which norms that step 1 put in are computed together with the BatchNorm after them, and making it so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from nap.conversion.neighbours import neighbours
from nap.norms.joined import TELLS, JoinedBatchNorm2d
from nap.norms.norm import Norm


def join_batch_norms_(model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Computes norms that `normalize_` put in front of a BatchNorm together with it.

    The model's function stays as it is but for rounding. Under `torch.compile` a converted ResNet needs fewer
    passes over its images; without it nothing changes. `args` and `kwargs` are example inputs, as for
    `normalize_`; a copy of the model is called with them, in eval and in train mode.

    Returns the names of the layers whose norms were joined, each with that of its BatchNorm: those that are
    called once, one right after the other. A norm on the input of the BatchNorm itself (`residual="sum"`)
    is named by that BatchNorm. Where hooks of others stand between the two, they are left as they are; a
    hook that is put there afterwards and alters tensors in place would be passed by.

    >>> import nap, torch
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 3))
    >>> applied = nap.normalize_(net, torch.randn(2, 3, 8, 8))
    >>> join_batch_norms_(net, torch.randn(2, 3, 8, 8))
    {'0': '1'}
    """
    pairs = neighbours(
        model, args, kwargs, gives=_over_images, takes=lambda module: type(module) is nn.BatchNorm2d
    )
    for layer, batch_norm in pairs.items():
        model.get_submodule(layer).__dict__[TELLS] = True
        model.get_submodule(batch_norm).__class__ = JoinedBatchNorm2d
    return pairs


def _over_images(norm: Norm) -> bool:
    return norm.layout == "sample" and norm.spatial == 2 and norm.gain == 1.0
