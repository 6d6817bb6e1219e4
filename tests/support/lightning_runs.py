"""A small classifier, its data and a quiet Trainer that the tests of Lightning share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import pytorch_lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

BATCHES = 6


def features(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 12), nn.ReLU(), nn.Linear(12, 3))


class Steps:
    """A classifier, for either name of the library."""

    example_input_array: Any

    def __init__(self, *, width: int = 16, example: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = features(width)
        self.example_input_array = torch.zeros(2, 5) if example else None

    def forward(self, x: Tensor) -> Any:
        return self.net(x)

    def training_step(self, batch: Any, index: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.net.parameters(), lr=0.05)


class Classifier(Steps, lightning.LightningModule):
    pass


class OtherName(Steps, pytorch_lightning.LightningModule):
    pass


def data() -> Any:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(8 * BATCHES, 5, generator=g), torch.randint(3, (8 * BATCHES,), generator=g)
    return DataLoader(TensorDataset(x, y), batch_size=8)


def trainer(folder: Path, *callbacks: Any, package: Any = lightning, **options: Any) -> Any:
    settings = {"max_epochs": 1, "logger": False, "enable_checkpointing": False, "accelerator": "cpu"}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": folder}
    return package.Trainer(callbacks=list(callbacks), **settings | quiet | options)
