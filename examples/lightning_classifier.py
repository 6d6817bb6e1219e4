"""A classifier of handwritten digits in PyTorch Lightning, with NaP in one line: a callback.

Halfway through, the labels are permuted, so that it has to learn again. The monitor logs to a CSV file.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from nap.integrations.lightning import MonitorCallback, NaPCallback


class Digits(lightning.LightningModule):
    def __init__(self, width: int = 128):
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Linear(64, width), nn.ReLU()),
            *(nn.Linear(width, width), nn.ReLU()),
            nn.Linear(width, 10),
        )
        self.example_input_array = torch.zeros(2, 64)  # the callback traces this

    def forward(self, x: Tensor) -> Any:
        return self.net(x)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        self.log("accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def loaders(permuted: bool) -> tuple[Any, Any, Tensor]:
    """Batches to learn, one to be judged on, and all images."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32)
    images = (images - images.mean()) / images.std()
    labels = torch.tensor(digits.target)
    if permuted:
        labels = torch.randperm(10, generator=torch.Generator().manual_seed(1))[labels]
    parts = [TensorDataset(images[part], labels[part]) for part in (slice(0, 1500), slice(1500, None))]
    return DataLoader(parts[0], batch_size=64, shuffle=True), DataLoader(parts[1], batch_size=297), images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20, help="for each of the two tasks")
    args = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    model, nap_callback = Digits(), NaPCallback()
    images = loaders(permuted=False)[2]
    with tempfile.TemporaryDirectory() as folder:
        for task, permuted in enumerate((False, True), 1):
            logger = CSVLogger(folder, name=f"task{task}")
            trainer = lightning.Trainer(
                max_epochs=args.epochs,
                callbacks=[nap_callback, MonitorCallback(images[:256], every=100)],
                logger=logger,
                accelerator="cpu",
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(model, *loaders(permuted)[:2])
            measured = (Path(logger.log_dir) / "metrics.csv").read_text().count("\n") - 1
            accuracy = float(trainer.callback_metrics["accuracy"])
            print(f"task {task}: accuracy {accuracy:.3f}, {measured} rows logged")
    assert nap_callback.projector is not None
    ratios = nap_callback.projector.norm_ratios().values()
    print(f"norms of the weights over those at the start: {min(ratios):.6f} to {max(ratios):.6f}")


if __name__ == "__main__":
    main()
