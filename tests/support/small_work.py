"""A small real training run, for tests of what can befall a run."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from nap.lab.runner import NotFinite, Outcome, RunFolder, run_work

CONFIG: dict[str, Any] = {
    "experiment": "fig1",
    "scale": "demo",
    "run": "nap",
    "config": {"seeds": 1, "lr": 1e-2},
}


class Training:
    """An MLP with Adam on labels that change with every unit; all draws depend on (seed, unit) alone."""

    unit = "epochs"
    steps_per_unit = 2

    def __init__(self, total: int = 30, *, seed: int = 0, hidden: int = 32, nan_at: int | None = None):
        self.total, self.done, self.seed, self.nan_at = total, 0, seed, nan_at
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.model = nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, 4))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)

    def step(self) -> list[dict[str, Any]]:
        draws = torch.Generator().manual_seed(1000 * self.seed + self.done)
        for _ in range(self.steps_per_unit):
            x = torch.randn(16, 8, generator=draws)
            loss = F.cross_entropy(self.model(x), torch.randint(4, (16,), generator=draws))
            loss = loss * (torch.nan if self.done == self.nan_at else 1.0)
            if not loss.isfinite():
                raise NotFinite(f"step {2 * self.done}, member {self.seed}: the loss is {loss.item()}")
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.done += 1
        return [{"arm": "Adam", "seed": self.seed, "task": self.done, "loss": loss.item()}]

    def state_dict(self) -> dict[str, Any]:
        return {
            "done": self.done,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def run(path: Path, work: Training | None = None, **options: Any) -> Outcome:
    """One session, with a checkpoint after every unit unless `options` say otherwise."""
    often: dict[str, Any] = {"checkpoint_every_seconds": 0.0, "save_share": 1e6}
    with RunFolder.open(path, **CONFIG) as folder:
        return run_work(work or Training(), folder, device=torch.device("cpu"), **(often | options))


def stop_at(path: Path, unit: int) -> None:
    """A session that ends with the checkpoint of that unit."""

    def stop(work: Training) -> None:
        if work.done == unit:
            signal.raise_signal(signal.SIGTERM)

    assert run(path, on_progress=stop).done == unit


def files(path: Path) -> dict[str, bytes]:
    """The files of a finished run that must not depend on how it was interrupted."""
    return {name: (path / name).read_bytes() for name in ("config.json", "rows.jsonl", "checkpoint.pt")}


def manifest(path: Path) -> dict[str, Any]:
    """What a run's manifest holds."""
    found: dict[str, Any] = json.loads((path / "manifest.json").read_text())
    return found
