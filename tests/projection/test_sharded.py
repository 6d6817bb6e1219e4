"""Sharded weights: projected as on one process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from forked import run_ranks
from nap.projection.project import Projector
from projection_nets import net, sgd, step, traced, worst

pytestmark = pytest.mark.multiprocess


def _sharded_run(rank: int, meeting_place: str) -> None:
    from torch.distributed import barrier, destroy_process_group, init_device_mesh, init_process_group
    from torch.distributed.fsdp import fully_shard

    init_process_group("gloo", init_method=f"file://{meeting_place}", rank=rank, world_size=2)
    cases: list[dict[str, Any]] = [{"affine": "joint"}, {"per": "row", "affine": "decay"}]
    cases += [{"update": "relative"}, {"update": "relative", "per": "row"}, {"brake": 0.5}]
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
                assert "brake" in options or worst(projector) <= 1e-6
            runs.append({k: v.full_tensor() if shard else v for k, v in model.state_dict().items()})
        assert_close(runs[1], runs[0])
    _after_an_evaluation(fully_shard, init_device_mesh("cpu", (2,)))
    barrier()
    destroy_process_group()
    os._exit(0)  # all is checked; a thread of gloo may still abort the interpreter on its way out


def _after_an_evaluation(fully_shard: Any, mesh: Any) -> None:
    """A forward without a backward leaves the outermost module whole; the pieces count all the same."""
    model: Any = traced(net())
    fully_shard(model, mesh=mesh)
    optimizer = sgd(model.parameters())
    x = torch.randn(4, 6)
    with torch.no_grad():
        model(x)
    projector = Projector(model).attach(optimizer)
    with torch.no_grad():
        model.reshard()
        for parameter in model.parameters():
            parameter.mul_(3)
        model(x)
    projector.project_()
    norms = {name: p.full_tensor().norm().item() for name, p in model.state_dict().items()}
    for row in projector.plan.rows:
        if row.radius is not None:
            assert norms[row.name] == pytest.approx(row.radius, rel=1e-5), row.name
    with torch.no_grad():
        model(x)
    assert worst(projector) <= 1e-6


@pytest.mark.slow
@pytest.mark.skipif(torch.__version__.startswith("2.6."), reason="its fully_shard needs a GPU")
def test_sharded_weights_come_out_as_on_one_process(tmp_path: Path) -> None:
    run_ranks(_sharded_run, (str(tmp_path / "store"),), 2)
