"""Random strings to memorise, and strings that end with a copy of what came before (Appendix B.3)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_RANDOM, _COPIED, _HELD_OUT = range(3)  # what random numbers are for: none is used twice


def random_strings(seed: int, task: int, *, count: int, length: int, vocabulary: int) -> Tensor:
    """Tokens (count, length), uniform and independent: the data set of one task.

    >>> random_strings(0, 1, count=2, length=3, vocabulary=256).shape
    torch.Size([2, 3])
    """
    rng = np.random.default_rng((_RANDOM, seed, task))
    return torch.from_numpy(rng.integers(vocabulary, size=(count, length)))


def copied_strings(
    seed: int, *, count: int, prefix: int, suffix: int, vocabulary: int, held_out: bool = False
) -> Tensor:
    """Tokens (count, prefix + suffix): a random prefix, then a piece of it, from a place chosen at random.

    >>> one = copied_strings(0, count=1, prefix=5, suffix=2, vocabulary=9)[0].tolist()
    >>> any(one[i : i + 2] == one[5:] for i in range(4))
    True
    """
    rng = np.random.default_rng((_HELD_OUT if held_out else _COPIED, seed))
    first = rng.integers(vocabulary, size=(count, prefix))
    starts = rng.integers(prefix - suffix + 1, size=(count, 1))
    second = np.take_along_axis(first, starts + np.arange(suffix), axis=1)
    return torch.from_numpy(np.concatenate([first, second], axis=1))
