"""Which norms that step 1 put in are computed together with the ReLU after them, and making it so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from nap.conversion.neighbours import neighbours
from nap.norms.joined import TELLS
from nap.norms.joined_relu import JoinedReLU
from nap.norms.norm import Norm


def join_relus_(model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Computes norms over the last axis that `normalize_` put in front of an `nn.ReLU` together with it.

    The model's function stays as it is but for rounding. Under `torch.compile` on a GPU, norm and ReLU are
    then one pass each way, with kernels of our own (Triton); elsewhere nothing changes. `args` and `kwargs`
    are example inputs, as for `normalize_`; a copy of the model is called with them, in eval and in train
    mode.

    Returns the names of the layers whose norms were joined, each with that of its ReLU: those that are called
    once, one right after the other, where nothing else uses what the norm gives. A norm on the input of the
    ReLU itself (`residual="sum"`) is named by that ReLU. ReLUs that work in place are left alone, as are
    pairs with hooks of others between the two; a hook that is put there afterwards and alters tensors in
    place would be passed by. Rows of more than 8,192 numbers, and `torch.export`, go the old way. Where the
    layer is compiled and the ReLU is not, what the norm was given lives as long as its result.

    >>> import nap, torch
    >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))
    >>> applied = nap.normalize_(net, torch.randn(2, 8))
    >>> join_relus_(net, torch.randn(2, 8))
    {'0': '1'}
    """
    pairs = neighbours(model, args, kwargs, gives=_over_features, takes=_is_plain_relu, alone=True)
    for layer, relu in pairs.items():
        model.get_submodule(layer).__dict__[TELLS] = True
        model.get_submodule(relu).__class__ = JoinedReLU
    return pairs


def _over_features(norm: Norm) -> bool:
    return norm.layout == "features" and norm.gain == 1.0


def _is_plain_relu(module: nn.Module) -> bool:
    return type(module) is nn.ReLU and not module.inplace
