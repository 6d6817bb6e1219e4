"""The monitors log to Weights & Biases: real runs of it, offline, read back from its own files."""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nap
from nap.integrations.monitor import Monitor
from projection_nets import net, sgd, step

wandb = pytest.importorskip("wandb")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # what wandb warns of is its own
]


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    settings = {"MODE": "offline", "DIR": str(tmp_path), "SILENT": "true", "DISABLE_GIT": "true"}
    for key, value in settings.items():
        monkeypatch.setenv(f"WANDB_{key}", value)
    monkeypatch.chdir(tmp_path)
    yield
    wandb.teardown()


def records(content: bytes) -> Iterator[bytes]:
    """The records of a `.wandb` file, a log of LevelDB's format: pieces in blocks of 32 KiB."""
    at, whole = 7, b""  # after the file's own header
    while at < len(content):
        if (room := 2**15 - at % 2**15) < 7:
            at += room
            continue
        size, kind = struct.unpack("<4xHB", content[at : at + 7])
        whole += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a full record, or the last piece of one
            yield whole
            whole = b""


def logged(folder: Path) -> dict[str, float]:
    """The last value of everything that the only run logged, as wandb stored it."""
    Record = importlib.import_module("wandb.proto.wandb_internal_pb2").Record
    wandb.finish()
    wandb.teardown()  # its own process writes the file
    (file,) = folder.rglob("*.wandb")
    last: dict[str, float] = {}
    for record in map(Record.FromString, records(file.read_bytes())):
        for item in record.history.item:
            last[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    return last


def test_a_loop_of_ones_own(tmp_path: Path) -> None:
    model = net()
    optimizer = sgd(model.parameters())
    nap.Projector(model).attach(optimizer)
    run = wandb.init()
    Monitor(model, torch.randn(32, 6), run.log, every=2).attach(optimizer)
    for seed in range(4):
        step(model, optimizer, seed)
    last = logged(tmp_path)
    assert last["_step"] == 2  # three rows
    assert last["nap/rate/0.weight"] == nap.effective_learning_rates(model, optimizer)["0.weight"]


def test_lightning(tmp_path: Path) -> None:
    from lightning.pytorch.loggers import WandbLogger

    from lightning_runs import Classifier, data, trainer
    from nap.integrations.lightning import MonitorCallback, NaPCallback

    monitor = MonitorCallback(torch.randn(32, 5), every=3)
    logger = WandbLogger(save_dir=tmp_path, offline=True)
    trainer(tmp_path, NaPCallback(), monitor, logger=logger).fit(Classifier(), data())
    last = logged(tmp_path)
    assert last["trainer/global_step"] == 5  # Lightning numbers steps from zero
    assert last["nap/rate/net.0.weight"] > 0


def test_hugging_face(tmp_path: Path) -> None:
    from hugging_runs import Tokens, gpt2, trainer
    from nap.integrations.huggingface import MonitorCallback, NaPCallback

    run = trainer(gpt2(), tmp_path, NaPCallback(), report_to="wandb")
    run.add_callback(MonitorCallback(run, {"input_ids": Tokens(16).ids}, every=2))
    run.train()
    assert logged(tmp_path)["train/nap/rate/transformer.h.0.mlp.c_fc.weight"] > 0


def test_stable_baselines3(tmp_path: Path) -> None:
    """By way of TensorBoard, as in wandb's own guide to this library."""
    from stable_baselines3 import PPO

    from nap.integrations.stable_baselines3 import MonitorCallback, NaPActorCriticPolicy

    wandb.init(sync_tensorboard=True)
    settings: dict[str, Any] = {"n_steps": 32, "batch_size": 16, "device": "cpu", "seed": 0}
    agent = PPO(NaPActorCriticPolicy, "CartPole-v1", tensorboard_log=str(tmp_path / "board"), **settings)
    agent.learn(96, callback=MonitorCallback(np.zeros((8, 4), np.float32), every=4), log_interval=1)
    agent.logger.close()
    assert logged(tmp_path)["nap/rate/mlp_extractor.policy_net.0.weight"] > 0
