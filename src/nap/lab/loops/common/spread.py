"""How processes share a network and its batches: one has all, each has a copy, or each has a piece.

The numbers are those of one process, but for the order of sums: a batch is the same set of examples, of
which each process takes an equal share, and losses, norms and states are those of the whole. The statistics
of a BatchNorm alone are those of a process's own share, as is the custom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nap.lab.loops.common.graph import compiled
from nap.lab.runner.distributed import ProcessGroup


class Alone:
    """One process has the whole network and every batch."""

    rank, size = 0, 1

    def wrapped(self, model: nn.Module, *, compile_: bool) -> nn.Module:
        """What to call in training; parameters of `model` may be others from here on."""
        return model

    def compiled(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        """The loss of a wrapped model, compiled."""
        return compiled(loss)

    def mine(self, strings: Tensor) -> Tensor:
        """The share of a batch that this process takes."""
        return strings.chunk(self.size)[self.rank]

    @contextmanager
    def part(self, *, last: bool) -> Iterator[None]:
        """Forward and backward of a part of a batch: gradients are exchanged in the last one."""
        yield

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Calls of the model itself, without learning: as many on every process."""
        yield

    def sum(self, numbers: Tensor) -> Tensor:
        """Sums over all processes."""
        return numbers

    def mean(self, numbers: Tensor) -> Tensor:
        """Means over all processes."""
        return self.sum(numbers) / self.size

    def norms(self, gradients: list[Tensor]) -> Tensor:
        """The norm of each gradient, as a vector."""
        return torch.stack(torch._foreach_norm(gradients))

    def alike_(self, model: nn.Module) -> None:
        """What a copy of `model` keeps besides its parameters is what rank 0 has."""

    def whole(self, tensor: Tensor) -> Tensor:
        """All of a parameter, or of what an optimizer keeps for it, on rank 0."""
        return tensor

    def held(self, whole: Tensor, like: Tensor) -> Tensor:
        """Of a whole tensor, what this process holds of the parameter `like`."""
        return whole


class Copies(Alone):
    """Each process has a copy (DistributedDataParallel)."""

    def __init__(self, group: ProcessGroup):
        self.rank, self.size = group.rank, group.world_size
        self._net: Any = None

    def wrapped(self, model: nn.Module, *, compile_: bool) -> nn.Module:
        device = next(model.parameters()).device
        self._net = nn.parallel.DistributedDataParallel(
            model, device_ids=[device] if device.type == "cuda" else None, gradient_as_bucket_view=True
        )
        return self._net

    @contextmanager
    def part(self, *, last: bool) -> Iterator[None]:
        with nullcontext() if last else self._net.no_sync():
            yield

    def sum(self, numbers: Tensor) -> Tensor:
        dist.all_reduce(numbers)
        return numbers

    def alike_(self, model: nn.Module) -> None:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


class Pieces(Alone):
    """Each process has a piece of every weight, and gathers a block when it comes to it (FSDP2)."""

    def __init__(self, group: ProcessGroup):
        self.rank, self.size = group.rank, group.world_size
        self._model: Any = None
        self._compiled = False

    def wrapped(self, model: Any, *, compile_: bool) -> nn.Module:
        from torch.distributed.fsdp import fully_shard

        if compile_:
            torch.compiler.reset()  # as in `compiled`
        mesh = dist.init_device_mesh(next(model.parameters()).device.type, (self.size,))
        for block in model.blocks:
            if compile_:
                block.compile(dynamic=False)
            fully_shard(block, mesh=mesh)
        self._model, self._compiled = fully_shard(model, mesh=mesh), compile_
        return model

    def compiled(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        return loss  # its blocks are, each by itself: what gathers them is no part of a graph

    @contextmanager
    def part(self, *, last: bool) -> Iterator[None]:
        self._model.set_requires_gradient_sync(last)
        yield

    @contextmanager
    def judging(self) -> Iterator[None]:
        # strings to judge have many lengths, and each would be compiled for
        with torch.compiler.set_stance("force_eager") if self._compiled else nullcontext():
            yield
        self._model.reshard()  # with no backward pass, tables and head would stay as they were gathered

    def sum(self, numbers: Tensor) -> Tensor:
        dist.all_reduce(numbers)
        return numbers

    def norms(self, gradients: list[Any]) -> Tensor:
        pieces = super().norms([gradient.to_local() for gradient in gradients])
        return self.sum(pieces.double().square()).sqrt().to(pieces.dtype)

    def whole(self, tensor: Any) -> Tensor:
        if not tensor.ndim:  # a count of steps, which each process has
            return tensor
        gathered: Tensor = tensor.full_tensor()
        return gathered.cpu() if self.rank == 0 else gathered.new_empty(0)

    def held(self, whole: Tensor, like: Any) -> Tensor:
        from torch.distributed.tensor import distribute_tensor

        if not whole.ndim:
            return whole
        on_device = whole.to(like.device)
        return distribute_tensor(on_device, like.device_mesh, like.placements, src_data_rank=None)


def spread_over(group: ProcessGroup) -> Alone:
    """How a network is spread over the processes of a group."""
    if group.world_size == 1:
        return Alone()
    return Pieces(group) if group.parallel == "fsdp" else Copies(group)
