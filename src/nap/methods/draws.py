"""Random tensors from explicit generators, for one network or a stacked population.

A single generator draws for all members at once. A sequence of them, one per member, makes member k
draw exactly what a single run with generator k draws, so that a population equals its single runs.
Numbers are drawn on the generator's device, so a CPU generator gives the same ones on every device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

Generators = Generator | Sequence[Generator]


def normal_like(tensor: Tensor, generator: Generators) -> Tensor:
    """Standard normal numbers with the shape, dtype and device of `tensor`.

    >>> generator = Generator().manual_seed(0)
    >>> normal_like(torch.zeros(2, dtype=torch.float64), generator).dtype
    torch.float64
    """
    if isinstance(generator, Generator):
        draw = torch.randn(tensor.shape, generator=generator, device=generator.device, dtype=tensor.dtype)
        return draw.to(tensor.device)
    return torch.stack([normal_like(t, g) for t, g in zip(tensor, generator, strict=True)])


def fresh_like(initial: Tensor, generator: Generators, *, stacked: bool = False) -> Tensor:
    """A fresh initialisation: entries drawn with replacement from the tensor's own initial values.

    That keeps the distribution of any initialiser without knowing it: uniform stays uniform, biases
    of zero stay zero, a norm's scales stay one. What it does not keep is structure between entries,
    such as orthogonality. With `stacked`, each member draws from its own values.

    >>> fresh_like(torch.ones(3), Generator().manual_seed(0))
    tensor([1., 1., 1.])
    """
    if not isinstance(generator, Generator):
        draws = [fresh_like(t, g) for t, g in zip(initial, generator, strict=True)]
        return torch.stack(draws)
    members = initial.reshape(len(initial) if stacked else 1, -1)
    count = members.shape[1]
    index = torch.randint(count, members.shape, generator=generator, device=generator.device)
    return members.gather(1, index.to(initial.device)).view(initial.shape)
