"""Norms that step 1 put in, computed together with the BatchNorm or the ReLU right after them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from nap.conversion.neighbours import neighbours
from nap.norms.fused_batchnorm import TELLS, FusedBatchNorm2d
from nap.norms.fused_relu import FusedReLU
from nap.norms.norm import Norm


def fuse_batch_norms_(model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Computes norms that `normalize_` put in front of a BatchNorm together with it.

    The model's function stays as it is but for rounding. Under `torch.compile` a converted ResNet needs fewer
    passes over its images; without it nothing changes. `args` and `kwargs` are example inputs, as for
    `normalize_`; a copy of the model is called with them, in eval and in train mode.

    Returns the names of the layers whose norms were fused, each with that of its BatchNorm: those that are
    called once, one right after the other. A norm on the input of the BatchNorm itself (`residual="sum"`)
    is named by that BatchNorm. Where hooks of others stand between the two, they are left as they are; a
    hook that is put there afterwards and alters tensors in place would be passed by.

    >>> import nap, torch
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 3))
    >>> applied = nap.normalize_(net, torch.randn(2, 3, 8, 8))
    >>> fuse_batch_norms_(net, torch.randn(2, 3, 8, 8))
    {'0': '1'}
    """
    pairs = neighbours(
        model, args, kwargs, gives=_over_images, takes=lambda module: type(module) is nn.BatchNorm2d
    )
    for layer, batch_norm in pairs.items():
        model.get_submodule(layer).__dict__[TELLS] = True
        model.get_submodule(batch_norm).__class__ = FusedBatchNorm2d
    return pairs


def fuse_relus_(model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Computes norms over the last axis that `normalize_` put in front of an `nn.ReLU` together with it.

    The model's function stays as it is but for rounding. Under `torch.compile` on a GPU, norm and ReLU are
    then one pass each way, with kernels of our own (Triton); elsewhere nothing changes. `args` and `kwargs`
    are example inputs, as for `normalize_`; a copy of the model is called with them, in eval and in train
    mode.

    Returns the names of the layers whose norms were fused, each with that of its ReLU: those that are called
    once, one right after the other, where nothing else uses what the norm gives. A norm on the input of the
    ReLU itself (`residual="sum"`) is named by that ReLU. ReLUs that work in place are left alone, as are
    pairs with hooks of others between the two; a hook that is put there afterwards and alters tensors in
    place would be passed by. Rows of more than 8,192 numbers, and `torch.export`, go the old way. Where the
    layer is compiled and the ReLU is not, the input of the norm lives as long as its result.

    >>> import nap, torch
    >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))
    >>> applied = nap.normalize_(net, torch.randn(2, 8))
    >>> fuse_relus_(net, torch.randn(2, 8))
    {'0': '1'}
    """
    pairs = neighbours(model, args, kwargs, gives=_over_features, takes=_is_plain_relu, alone=True)
    for layer, relu in pairs.items():
        model.get_submodule(layer).__dict__[TELLS] = True
        model.get_submodule(relu).__class__ = FusedReLU
    return pairs


def _over_images(norm: Norm) -> bool:
    return norm.layout == "sample" and norm.spatial == 2 and norm.gain == 1.0


def _over_features(norm: Norm) -> bool:
    return norm.layout == "features" and norm.gain == 1.0


def _is_plain_relu(module: nn.Module) -> bool:
    return type(module) is nn.ReLU and not module.inplace
