"""Sharded weights: projected as on one process."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from nap.projection.project import Projector
from projection_nets import net, sgd, step, traced, worst


def _sharded_run(rank: int, port: int) -> None:
    from torch.distributed import destroy_process_group, init_device_mesh, init_process_group
    from torch.distributed.fsdp import fully_shard

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    init_process_group("gloo", rank=rank, world_size=2)
    cases: list[dict[str, Any]] = [{"affine": "joint"}, {"per": "row", "affine": "decay"}]
    for options in cases:
        runs = []
        for shard in (False, True):
            model: Any = traced(net())
            if shard:
                fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
            optimizer = sgd(model.parameters())
            projector = Projector(model, **options).attach(optimizer)
            for seed in range(3):
                step(model, optimizer, seed)
                assert worst(projector) <= 1e-6
            runs.append({k: v.full_tensor() if shard else v for k, v in model.state_dict().items()})
        assert_close(runs[1], runs[0])
    destroy_process_group()


@pytest.mark.slow
def test_sharded_weights_come_out_as_on_one_process() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_sharded_run, args=(port,), nprocs=2)
