"""What the monitor costs: one measurement beside the updates of the interval between two of them.

    python benchmarks/monitor.py

Updates and measurements take turns within one run, so that a slow moment strikes both; their medians are
compared. The share of training time is a measurement over the updates of a whole interval.
"""

from __future__ import annotations

import argparse
import inspect
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import nap
from nap.integrations.monitor import Monitor

EVERY: int = inspect.signature(Monitor).parameters["every"].default


def mlp(width: int, inputs: int) -> nn.Sequential:
    hidden = [layer for _ in range(2) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), *hidden, nn.Linear(width, 10))


def cnn() -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(before, after, 3, stride=2 if before != after else 1, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 8 * 8, 256), nn.ReLU(), nn.Linear(256, 10))


class Sequences(nn.Module):
    """A small transformer over tokens."""

    def __init__(self, width: int = 128, tokens: int = 512):
        super().__init__()
        self.table = nn.Embedding(tokens, width)
        shape = {"nhead": 4, "dim_feedforward": 4 * width, "dropout": 0.0}
        layer = nn.TransformerEncoderLayer(width, **shape, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, ids: Any) -> Any:
        return self.head(self.body(self.table(ids)).mean(1))


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "MLP 4-64×3-10, batch 64": lambda: (mlp(64, 4), torch.randn(64, 4)),
    "MLP 64-256×3-10, batch 96": lambda: (mlp(256, 64), torch.randn(96, 64)),
    "MLP 3072-512×3-10, batch 128": lambda: (mlp(512, 3072), torch.randn(128, 3072)),
    "CNN 32-32-64-64, 256, batch 64": lambda: (cnn(), torch.randn(64, 3, 32, 32)),
    "transformer 4×128, batch 16×64": lambda: (Sequences(), torch.randint(512, (16, 64))),
}


def seconds(act: Callable[[], Any], wait: Callable[[], None]) -> float:
    wait()
    start = time.perf_counter()
    act()
    wait()
    return time.perf_counter() - start


def update_and_measurement(name: str, probe: int, device: str, rounds: int) -> tuple[float, float]:
    """Median seconds of an update with NaP, and of a measurement on `probe` samples."""
    torch.manual_seed(0)
    model, x = MODELS[name]()
    nap.normalize_(model, x[:2])
    model, x = model.to(device), x.to(device)
    labels = torch.randint(10, (len(x),), device=device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    nap.Projector(model).attach(optimizer)
    samples = x[torch.arange(probe, device=device) % len(x)]
    if samples.is_floating_point():
        samples = samples + torch.randn_like(samples)  # no two alike
    monitor = Monitor(model, samples, lambda numbers: None).attach(optimizer)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def update() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()

    updates, measurements = [], []
    for turn in range(rounds + 1):
        new = [seconds(update, wait) for _ in range(10)]
        measured = seconds(monitor.measure, wait)
        if turn:  # the first is a warm-up
            updates += new
            measurements.append(measured)
    return statistics.median(updates), statistics.median(measurements)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=10, help="each of ten updates and a measurement")
    parser.add_argument("--probe", type=int, default=256, help="samples that are measured on")
    parser.add_argument("--nets", nargs="*", default=list(MODELS))
    args = parser.parse_args()
    print(f"every {EVERY} updates, a probe of {args.probe}, {args.device}, torch {torch.__version__}")
    print(f"{torch.get_num_threads()} threads\n\n{'net':32}  {'update':>9}  {'measurement':>11}  share")
    for name in args.nets:
        update, measurement = update_and_measurement(name, args.probe, args.device, args.rounds)
        share = measurement / (EVERY * update)
        print(f"{name:32}  {1e3 * update:6.2f} ms  {1e3 * measurement:8.2f} ms  {share:.2%}", flush=True)


if __name__ == "__main__":
    main()
