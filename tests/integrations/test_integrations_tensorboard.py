"""The monitors log to TensorBoard, each in the way of its library; read back from TensorBoard's own files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from stable_baselines3 import PPO
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

import nap
from lightning_runs import Classifier, data, trainer
from nap.integrations import lightning, stable_baselines3
from nap.integrations.monitor import Monitor
from projection_nets import net, sgd, step


def curve(folder: Path, name: str) -> dict[int, float]:
    (file,) = folder.rglob("events.*")
    events = EventAccumulator(str(file)).Reload()
    return {event.step: event.value for event in events.Scalars(name)}


def test_a_loop_of_ones_own(tmp_path: Path) -> None:
    model = net()
    optimizer = sgd(model.parameters())
    nap.Projector(model).attach(optimizer)
    board = SummaryWriter(tmp_path)

    def log(numbers: dict[str, float]) -> None:
        for name, number in numbers.items():
            board.add_scalar(name, number, monitor.updates)

    monitor = Monitor(model, torch.randn(32, 6), log, every=2)
    monitor.attach(optimizer)
    for seed in range(5):
        step(model, optimizer, seed)
    board.close()
    rates = curve(tmp_path, "nap/rate/0.weight")
    assert list(rates) == [0, 2, 4]
    assert list(rates.values()) == pytest.approx([rates[0]] * 3)


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:The number of training batches")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_lightning(tmp_path: Path) -> None:
    monitor = lightning.MonitorCallback(torch.randn(32, 5), every=3)
    logger = TensorBoardLogger(tmp_path)
    trainer(tmp_path, lightning.NaPCallback(), monitor, logger=logger).fit(Classifier(), data())
    assert list(curve(tmp_path, "nap/rate/net.0.weight")) == [0, 2, 5]  # Lightning numbers steps from zero
    assert all(curve(tmp_path, "nap/rank/penultimate").values())


def test_stable_baselines3(tmp_path: Path) -> None:
    settings = {"n_steps": 32, "batch_size": 16, "device": "cpu", "seed": 0}
    policy, board = stable_baselines3.NaPActorCriticPolicy, str(tmp_path)
    agent = PPO(policy, "CartPole-v1", tensorboard_log=board, **settings)  # type: ignore[arg-type]
    monitor = stable_baselines3.MonitorCallback(np.zeros((8, 4), np.float32), every=4)
    agent.learn(96, callback=monitor, log_interval=1)
    assert list(curve(tmp_path, "nap/rate/mlp_extractor.policy_net.0.weight")) == [32, 64, 96]
