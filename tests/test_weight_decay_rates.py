"""The schedule that weight decay hides: the formula against weights that a real optimizer moves, and ours."""

from __future__ import annotations

import json
import math
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import nap
from nap.lab.experiments.table1_cifar import PAPER
from nap.rates.learning_rate import Update, effective_lr

RATES = [0.1] * 1000 + [0.01] * 4000 + [0.03] * 1000
SIZE, DECAY = 4000, 0.02


def raw_gradient(weight: Tensor) -> Tensor:
    """Chance, at right angles to the weight, and the smaller the longer that is."""
    chance = torch.randn_like(weight)
    chance -= chance @ weight / (weight @ weight) * weight
    return chance / weight.norm()


def free_rates(optimizer: torch.optim.Optimizer, weight: Tensor, update: Update) -> np.ndarray:
    """Effective rates of a weight that gets longer by chance and shorter by decay."""
    found = []
    for rate in RATES:
        optimizer.param_groups[0]["lr"] = rate
        found.append(effective_lr(rate, weight.norm().item(), update=update))
        weight.grad = raw_gradient(weight.detach())
        optimizer.step()
    return np.array(found)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_sgd_s_weights_learn_at_these_rates(momentum: float, nesterov: bool) -> None:
    torch.manual_seed(0)
    decay = DECAY * (1 - momentum)
    balanced = (0.1 * SIZE / (2 * decay * (1 - momentum))) ** 0.25  # where |gradient|² · ‖w‖² is SIZE
    weight = torch.randn(SIZE, dtype=torch.float64)
    weight.mul_(balanced / weight.norm()).requires_grad_()
    optimizer = torch.optim.SGD([weight], momentum=momentum, nesterov=nesterov, weight_decay=decay)
    rates = nap.weight_decay_rates(RATES, decay, momentum=momentum)
    free = free_rates(optimizer, weight, Update.RAW)
    assert free * balanced**2 == pytest.approx(rates, rel=0.03)
    assert 0.25 < free[4999] / free[0] < 0.1**0.5  # and not a tenth


def test_adamw_s_weights_learn_at_these_rates() -> None:
    torch.manual_seed(0)
    weight = torch.randn(SIZE, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.AdamW([weight], weight_decay=DECAY, betas=(0.0, 0.99), eps=0)
    for _ in range(2000):  # until the norm is in balance
        optimizer.param_groups[0]["lr"] = 0.1
        weight.grad = raw_gradient(weight.detach())
        optimizer.step()
    balanced = weight.norm().item()
    rates = nap.weight_decay_rates(RATES, DECAY, update="normalised")
    free = free_rates(optimizer, weight, Update.NORMALISED)
    assert free * balanced == pytest.approx(rates, rel=0.05)


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=20), st.floats(0, 10), st.floats(0, 0.99))
def test_they_are_between_the_given_and_those_in_balance(
    rates: list[float], decay: float, momentum: float
) -> None:
    found = nap.weight_decay_rates(rates, decay, momentum=momentum)
    given_, largest = np.array(rates), max(rates)
    assert found[0] == pytest.approx(rates[0])
    assert (found >= given_ * (1 - 1e-12)).all()
    assert (found <= given_ * math.sqrt(largest / min(rates)) * (1 + 1e-12)).all()


@given(st.lists(st.floats(0, 1), min_size=1).filter(any))
def test_without_decay_they_are_those_given(rates: list[float]) -> None:
    assert nap.weight_decay_rates(rates, 0.0).tolist() == rates


def test_they_are_what_norms_without_projection_had_at_paper_scale(tmp_path: Path) -> None:
    archive = Path(__file__).parents[1] / "evidence" / "table1-cifar-paper.tar.xz"
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    [path] = tmp_path.rglob("norm-only-seeds-0-2/rows.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    found = nap.weight_decay_rates(
        [PAPER.rate(step) for step in range(PAPER.steps)], PAPER.weight_decay, momentum=PAPER.momentum
    )
    settled = {row["seed"]: row["effective_rate"] for row in rows if row["step"] == 187_440}
    shares = [
        row["effective_rate"] / settled[row["seed"]] / (found[row["step"] - 1] / found[0])
        for row in rows
        if row["step"] >= 93_720
    ]
    assert min(shares) > 0.95
    assert max(shares) < 1.25  # of rates that fall by a factor of 25


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: nap.weight_decay_rates([], 0.1), "the learning rate of each update"),
        (lambda: nap.weight_decay_rates([0.1, -0.1], 0.1), "none below 0"),
        (lambda: nap.weight_decay_rates([0.1, math.nan], 0.1), "finite"),
        (lambda: nap.weight_decay_rates([0.1], -1.0), "weight_decay is -1.0"),
        (lambda: nap.weight_decay_rates([0.1], 0.1, momentum=1.0), "momentum is 1.0.*0 ≤ momentum < 1"),
        (lambda: nap.weight_decay_rates([0.1], 0.1, update="other"), "other"),
    ],
)
def test_what_is_no_recipe_is_refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
