"""Calls of step 1 that cannot be meant are answered with the way to write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import nap

X = torch.randn(2, 4)


@pytest.mark.parametrize("call", [nap.plan, nap.normalize_])
@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((), {}, r"example input is missing.*nap.normalize_\(model, example\)"),
        ((X, X), {}, r"third argument is a dict.*not a Tensor.*nap.normalize_\(model, \(first, second\)\)"),
        ((X,), {"norms": "rms"}, r"no option 'norms'; did you mean 'norm'\? It has norm, affine"),
        ((X,), {"zzz": 1}, r"no option 'zzz'\. It has norm"),
    ],
)
def test_bad_calls(call: Callable[..., Any], arguments: Any, options: Any, message: str) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.raises(ValueError, match=message):
        call(model, *arguments, **options)
    assert not hasattr(model[0], "nap_norm")
