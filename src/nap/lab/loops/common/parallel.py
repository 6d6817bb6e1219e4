"""How processes share a network and its batches: one process alone, DDP or FSDP.

Results are those of one process, but for the order of sums: each process takes an equal share of the same
batch, and losses, norms and states are those of the whole. Only BatchNorm's statistics are of each share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nap.lab.loops.common.cuda_graph import compile_static
from nap.lab.runner.distributed import ProcessGroup


class Single:
    """One process with the whole network; the interface of the others."""

    rank, world_size = 0, 1

    def wrap(self, model: nn.Module, *, compile_: bool) -> nn.Module:
        """The module to call in training; from here on the parameters of `model` may be other tensors."""
        return model

    def compile(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        """The loss of a wrapped model, compiled."""
        return compile_static(loss)

    def shard(self, batch: Tensor) -> Tensor:
        """The share of a batch that this process takes."""
        return batch.chunk(self.world_size)[self.rank]

    @contextmanager
    def accumulation(self, *, last: bool) -> Iterator[None]:
        """Forward and backward pass of a part of a batch: gradients are exchanged in the last one."""
        yield

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Calls of the model itself, without learning: as many on every process."""
        yield

    def sum(self, numbers: Tensor) -> Tensor:
        return numbers

    def mean(self, numbers: Tensor) -> Tensor:
        return self.sum(numbers) / self.world_size

    def norms(self, gradients: list[Tensor]) -> Tensor:
        """The norm of each gradient, as a vector."""
        return torch.stack(torch._foreach_norm(gradients))

    def broadcast_buffers_(self, model: nn.Module) -> None:
        """Buffers of a replica become those of process 0."""

    def full_tensor(self, tensor: Tensor) -> Tensor:
        """All of a parameter, or of its optimizer state, on process 0."""
        return tensor

    def distribute(self, full: Tensor, like: Tensor) -> Tensor:
        """The part of a full tensor that this process holds of the parameter `like`."""
        return full


class DDP(Single):
    """Each process has a replica (DistributedDataParallel)."""

    def __init__(self, group: ProcessGroup):
        self.rank, self.world_size = group.rank, group.world_size
        self._net: Any = None

    def wrap(self, model: nn.Module, *, compile_: bool) -> nn.Module:
        device = next(model.parameters()).device
        self._net = nn.parallel.DistributedDataParallel(
            model, device_ids=[device] if device.type == "cuda" else None, gradient_as_bucket_view=True
        )
        return self._net

    @contextmanager
    def accumulation(self, *, last: bool) -> Iterator[None]:
        with nullcontext() if last else self._net.no_sync():
            yield

    def sum(self, numbers: Tensor) -> Tensor:
        dist.all_reduce(numbers)
        return numbers

    def broadcast_buffers_(self, model: nn.Module) -> None:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


class FSDP(Single):
    """Each process has a shard of every weight, and gathers a block when it comes to it (FSDP2)."""

    def __init__(self, group: ProcessGroup):
        self.rank, self.world_size = group.rank, group.world_size
        self._model: Any = None
        self._compiled = False

    def wrap(self, model: Any, *, compile_: bool) -> nn.Module:
        from torch.distributed.fsdp import fully_shard

        if compile_:
            torch.compiler.reset()  # as in `compile_static`
        mesh = dist.init_device_mesh(next(model.parameters()).device.type, (self.world_size,))
        for block in model.blocks:
            if compile_:
                block.compile(dynamic=False)
            fully_shard(block, mesh=mesh)
        self._model, self._compiled = fully_shard(model, mesh=mesh), compile_
        return model

    def compile(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        return loss  # the blocks are compiled one by one: gathering them is not part of a graph

    @contextmanager
    def accumulation(self, *, last: bool) -> Iterator[None]:
        self._model.set_requires_gradient_sync(last)
        yield

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        # eval sequences have many lengths, and each would be compiled for
        with torch.compiler.set_stance("force_eager") if self._compiled else nullcontext():
            yield
        self._model.reshard()  # without a backward pass, tables and head would stay gathered

    def sum(self, numbers: Tensor) -> Tensor:
        dist.all_reduce(numbers)
        return numbers

    def norms(self, gradients: list[Any]) -> Tensor:
        local = super().norms([gradient.to_local() for gradient in gradients])
        return self.sum(local.double().square()).sqrt().to(local.dtype)

    def full_tensor(self, tensor: Any) -> Tensor:
        if not tensor.ndim:  # a count of steps, which each process has
            return tensor
        gathered: Tensor = tensor.full_tensor()
        return gathered.cpu() if self.rank == 0 else gathered.new_empty(0)

    def distribute(self, full: Tensor, like: Any) -> Tensor:
        from torch.distributed.tensor import distribute_tensor

        if not full.ndim:
            return full
        on_device = full.to(like.device)
        return distribute_tensor(on_device, like.device_mesh, like.placements, src_data_rank=None)


def parallelism(group: ProcessGroup) -> Single:
    """How the processes of a group share a network."""
    if group.world_size == 1:
        return Single()
    return FSDP(group) if group.parallel == "fsdp" else DDP(group)
