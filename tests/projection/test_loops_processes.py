"""DDP and FSDP2 on two processes, by hand and in the trainers of others: the weights of one process.

accelerate has no FSDP on CPUs: there its own code runs all the same, told that this is the way.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, DistributedSampler

import nap
from nap.integrations.monitor import Monitor
from nap.projection.project import Projector
from processes import on_two
from projection_nets import worst

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
Found = dict[str, Any]


def found(model: nn.Module, projector: Projector | None) -> Found:
    """What a test wants to know of a run; weights are gathered where they are in pieces."""
    assert projector is not None
    named = [(name.removeprefix("module."), p.detach()) for name, p in model.named_parameters()]
    return {
        "kind": type(named[0][1]).__name__,
        "worst": worst(projector),
        "updates": set(projector.updates.values()),
        "weights": {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in named},
        "radii": [r.clone() for r in projector.state_dict()["radii"].values()],
    }


def assert_as_on_one(runs: list[Found], expected: Found, kind: str | None = None) -> None:
    for run in runs:
        assert run["kind"] == (kind or expected["kind"])
        assert run["worst"] <= 1e-6
        assert run["updates"] == expected["updates"]
        assert_close(run["radii"], expected["radii"])
        assert_close(run["weights"], expected["weights"], rtol=1e-4, atol=1e-5)


# --- by hand, with checkpoints of torch.distributed


def converted() -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5))
    nap.normalize_(model, torch.randn(4, 6))
    return model


def learn(model: Any, optimizer: Any, updates: range, share: slice) -> None:
    for seed in updates:
        x = torch.randn(16, 6, generator=torch.Generator().manual_seed(seed))[share]
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()


def by_hand(folder: Path) -> Found:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group("gloo")
    rank, results = torch.distributed.get_rank(), dict[str, Found]()
    coarse = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for way in ("ddp", "fsdp", "fsdp in bf16"):
        model = converted()
        if way == "ddp":
            model = DistributedDataParallel(model)
        else:
            fully_shard(model, mp_policy=coarse if way == "fsdp in bf16" else MixedPrecisionPolicy())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        projector, measured = Projector(model, every=2).attach(optimizer), list[dict[str, float]]()
        Monitor(model, torch.ones(8, 6), measured.append, every=2).attach(optimizer)
        learn(model, optimizer, range(3), slice(8 * rank, 8 * rank + 8))  # stops off the radius
        if way == "fsdp":
            dcp.save({"model": model, "projector": projector}, checkpoint_id=folder / "checkpoint")
        learn(model, optimizer, range(3, 4), slice(8 * rank, 8 * rank + 8))
        results[way] = found(model, projector) | {"measured": measured}
    return results


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # as meant: one process reads
def test_by_hand_and_a_checkpoint_that_one_process_reads(tmp_path: Path) -> None:
    runs = on_two(by_hand, tmp_path)
    model = converted()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    projector, measured = Projector(model, every=2).attach(optimizer), list[dict[str, float]]()
    Monitor(model, torch.ones(8, 6), measured.append, every=2).attach(optimizer)
    learn(model, optimizer, range(3), slice(None))
    third = {name: p.detach().clone() for name, p in model.named_parameters()}
    learn(model, optimizer, range(3, 4), slice(None))
    expected = found(model, projector)
    assert_as_on_one([run["ddp"] for run in runs], expected)
    assert_as_on_one([run["fsdp"] for run in runs], expected, "DTensor")
    for way in ("ddp", "fsdp"):
        for rank in runs:
            for here, there in zip(measured, rank[way]["measured"], strict=True):
                there = {name.replace("module.", ""): number for name, number in there.items()}
                assert there == pytest.approx(here, rel=1e-4)  # gradients and rates of the whole
    for run in (run["fsdp in bf16"] for run in runs):  # computed in 16 bits, kept and projected in 32
        assert run["weights"]["0.weight"].dtype == torch.float32
        assert run["worst"] <= 1e-6
        assert_close(run["radii"], expected["radii"])

    alone = converted()
    for parameter in alone.parameters():
        parameter.data *= 3  # neither weights nor radii may come from here
    again = Projector(alone, every=2)
    dcp.load({"model": alone, "projector": again}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
    assert_close(dict(alone.named_parameters()), third, rtol=1e-4, atol=1e-5)
    assert_close(again.state_dict()["radii"], projector.state_dict()["radii"])
    assert set(again.updates.values()) == {3}
    other, slower = Projector(nn.Linear(6, 3)), Projector(converted(), every=3)
    with pytest.raises(dcp.api.CheckpointException, match=r"Missing key .*projector\.actions\.weight"):
        dcp.load({"projector": other}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
    with pytest.raises(ValueError, match=r"settings\.every: 2 in the state, 3 here"):
        dcp.load({"projector": slower}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)


# --- Lightning


def in_lightning(folder: Path, ways: tuple[str, ...] = ("ddp", "fsdp"), batch_size: int = 8) -> Found:
    from lightning.pytorch.strategies import ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard

    from lightning_runs import Classifier, data, trainer
    from nap.integrations.lightning import NaPCallback

    class Sharded(Classifier):
        def configure_model(self) -> None:
            if not hasattr(self.net[0].weight, "full_tensor"):
                fully_shard(self.net, mesh=self.device_mesh["data_parallel"])  # type: ignore[index]

    def fit(way: str, epochs: int = 2, **options: Any) -> tuple[Any, Any, NaPCallback]:
        strategy: Any = {"ddp": "ddp", "alone": "auto"}.get(way)
        strategy = strategy or ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
        model, callback = Sharded() if way == "fsdp" else Classifier(), NaPCallback(every=2)
        nap.normalize_(model, torch.zeros(2, 5))
        examples, devices = data().dataset, 1 if way == "alone" else 2
        share: Any = DistributedSampler(examples, devices, int(os.environ.get("RANK", 0)), shuffle=False)
        batches = DataLoader(examples, batch_size=batch_size, sampler=share)
        settings = {"devices": devices, "strategy": strategy, "use_distributed_sampler": False}
        run = trainer(folder, callback, max_epochs=epochs, **settings)
        run.fit(model, batches, **options)
        return run, model, callback

    results = {}
    for way in ways:
        run, model, callback = fit(way)
        results[way] = found(model, callback.projector)
        if way == "fsdp":
            run.save_checkpoint(folder / "checkpoint")
            _, model, callback = fit(way, 3, ckpt_path=folder / "checkpoint")
            results["resumed"] = found(model, callback.projector)
    return results


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:The number of training batches")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_lightning(tmp_path: Path) -> None:
    runs = on_two(in_lightning, tmp_path)
    expected = in_lightning(tmp_path, ("alone",), batch_size=16)["alone"]
    assert_as_on_one([run["ddp"] for run in runs], expected)
    assert_as_on_one([run["fsdp"] for run in runs], expected, "DTensor")
    for run in runs:
        assert_close(run["resumed"]["radii"], expected["radii"])
        assert run["resumed"]["updates"] == {9}


# --- Hugging Face


def in_huggingface(folder: Path, ways: tuple[str, ...] = ("ddp", "fsdp"), batch_size: int = 4) -> Found:
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.utils import DistributedType

    from hugging_runs import Tokens, gpt2, trainer
    from nap.integrations.huggingface import NaPCallback

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["GPT2Block"],
        reshard_after_forward=True,
    )

    def shard(accelerator: Accelerator) -> None:
        accelerator.state.distributed_type, accelerator.state.fsdp_plugin = DistributedType.FSDP, plugin

    results = {}
    for way in ways:
        model, callback = gpt2(dropout=0.0), NaPCallback()
        settings: dict[str, Any] = {"optim": "sgd", "learning_rate": 0.5}  # Adam would enlarge roundings
        run: Any = trainer(model, folder, callback, per_device_train_batch_size=batch_size, **settings)
        if way == "fsdp":
            shard(run.accelerator)
            run.is_fsdp_enabled = True
        run.train()
        results[f"Trainer {way}"] = found(model, callback.projector)

        accelerator, model = Accelerator(cpu=True), gpt2(dropout=0.0)
        if way == "fsdp":
            shard(accelerator)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.5)
        batches: Any = DataLoader(Tokens(), batch_size=batch_size)
        model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
        projector = nap.Projector(model).attach(optimizer)
        for batch in batches:
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
        results[f"accelerate {way}"] = found(model, projector)
    return results


def test_hugging_face(tmp_path: Path) -> None:
    runs = on_two(in_huggingface, tmp_path)
    expected = in_huggingface(tmp_path, ("alone",), batch_size=8)
    for library in ("Trainer", "accelerate"):
        alone = expected[f"{library} alone"]
        assert_as_on_one([run[f"{library} ddp"] for run in runs], alone)
        assert_as_on_one([run[f"{library} fsdp"] for run in runs], alone, "DTensor")
