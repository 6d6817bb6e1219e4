"""K networks of one architecture as stacked tensors: member k of every tensor is network k.

What is elementwise (Adam, decay, noise) acts on the stacks as it would on one network. What is not
(the forward pass, norms) goes over the first axis, with `torch.func.vmap` or one member at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

Stacked = dict[str, Tensor]
Strategy = Literal["batched", "loop"]
_STREAMS = 8


def build(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The network that `make` gives from this seed; the global random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def initial_values(
    skeleton: nn.Module, make: Callable[[], nn.Module], seeds: Sequence[int], device: torch.device
) -> Stacked:
    """The parameters of each seed's fresh network, stacked, by the names of `skeleton`.

    `skeleton` is what `make` gives, perhaps converted by `nap.normalize_`: it says which parameters there
    are, and what those that conversion added (scale 1, offset 0) start with.
    """
    fresh = [dict(build(make, seed).named_parameters()) for seed in seeds]
    stacks = {
        name: torch.stack([dict_.get(name, own).detach().to(own) for dict_ in fresh])
        for name, own in skeleton.named_parameters()
    }
    return {name: stack.to(device) for name, stack in stacks.items()}


def forward(model: nn.Module, strategy: Strategy) -> Callable[[Mapping[str, Tensor], Tensor], Tensor]:
    """f(stacked parameters, inputs (K, B, …)) → outputs (K, B, …): each member on its own batch."""

    def one(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, dict(parameters), (x,))

    if strategy == "batched":
        return vmap(one, randomness="error")

    def each(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        # unbind, not p[k]: its gradient is one stack, where K selections would add up K full tensors
        members = zip(*(p.unbind() for p in parameters.values()), strict=True)
        outputs = []
        with side_by_side(x.device, len(x)) as stream_of:
            for k, own in enumerate(members):
                with stream_of(k):
                    outputs.append(one(dict(zip(parameters, own, strict=True)), x[k]))
        return torch.stack(outputs)

    return each


@contextmanager
def side_by_side(device: torch.device, count: int) -> Iterator[Callable[[int], AbstractContextManager[Any]]]:
    """On CUDA a stream for each of `count` pieces of work, which may then overlap; else nothing."""
    if device.type != "cuda" or count == 1:
        yield lambda k: nullcontext()
        return
    here = torch.cuda.current_stream()
    streams = [torch.cuda.Stream() for _ in range(min(count, _STREAMS))]
    for stream in streams:
        stream.wait_stream(here)
    yield lambda k: torch.cuda.stream(streams[k % len(streams)])
    for stream in streams:
        here.wait_stream(stream)
