"""How far AdamW and Muon move each weight: by the rule of 0.2, and at rates that were measured.

    python benchmarks/muon_steps.py         a few seconds

An MLP with NaP learns scikit-learn's digits in 150 updates. First with AdamW, whose relative steps are
measured; then from the same start with Muon at the rates of `muon_groups`, by its rule and by measurement.
"""

from __future__ import annotations

import argparse
import copy
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import nap
from nap.rates.muon import muon_groups
from nap.rates.relative import UpdateRatios

WIDTHS = (64, 96, 48, 48)


def steps(model: nn.Module, optimizers: list[torch.optim.Optimizer], batch: int) -> dict[str, float]:
    """Mean relative steps of the weights that the first optimizer trains."""
    nap.Projector(model).attach(*optimizers)
    ratios = UpdateRatios(model, every=1).attach(optimizers[0])
    digits, generator = load_digits(), torch.Generator().manual_seed(1)
    images, labels = torch.tensor(digits.data / 16.0, dtype=torch.float32), torch.tensor(digits.target)
    for _ in range(150):
        rows = torch.randint(len(images), (batch,), generator=generator)
        model.zero_grad()
        F.cross_entropy(model(images[rows]), labels[rows]).backward()
        for optimizer in optimizers:
            optimizer.step()
    return ratios.mean


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hidden = [layer for a, b in pairwise(WIDTHS) for layer in (nn.Linear(a, b), nn.ReLU())]
    start = nn.Sequential(*hidden, nn.Linear(WIDTHS[-1], 10))
    nap.normalize_(start, torch.zeros(2, WIDTHS[0]))
    print("batch  rate   weight    AdamW's RMS in rates  Muon over AdamW: by the rule, by measurement")
    for batch, rate in ((64, 1e-3), (512, 1e-3), (64, 1e-4)):
        model = copy.deepcopy(start)
        adamw = steps(model, [torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)], batch)

        def muon(batch: int = batch, rate: float = rate, **options: Any) -> dict[str, float]:
            twin = copy.deepcopy(start)
            recipe = muon_groups(twin, rate, **options)
            return steps(twin, [torch.optim.Muon(recipe.muon), torch.optim.AdamW(recipe.adamw)], batch)

        by_rule, by_measurement = muon(), muon(measured=adamw)
        for name in ("0.weight", "2.weight", "4.weight"):
            size = start.get_parameter(name).detach().square().mean().sqrt().item()
            shares = f"{by_rule[name] / adamw[name]:.2f}  {by_measurement[name] / adamw[name]:.2f}"
            print(f"{batch:5}  {rate:g}  {name}  {adamw[name] * size / rate:.2f}  {shares}")


if __name__ == "__main__":
    main()
