"""The schedule that weight decay hides: the formula against weights that a real optimizer moves, and ours."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from evidence_rows import rows_of
from nap.lab.experiments.table1_cifar import PAPER
from nap.rates.learning_rate import Update, effective_lr
from nap.schedules import weight_decay_rates

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
    rates = weight_decay_rates(RATES, decay, momentum=momentum)
    free = free_rates(optimizer, weight, Update.RAW)
    assert free * balanced**2 == pytest.approx(rates, rel=0.03)
    assert 0.25 < free[4999] / free[0] < 0.1**0.5  # and not a tenth


@pytest.mark.parametrize("betas", [(0.0, 0.99), (0.9, 0.99)], ids=str)
def test_adamw_s_weights_learn_at_these_rates(betas: tuple[float, float]) -> None:
    torch.manual_seed(0)
    weight = torch.randn(SIZE, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.AdamW([weight], weight_decay=DECAY, betas=betas, eps=0)
    for _ in range(2000):  # until the norm is in balance
        optimizer.param_groups[0]["lr"] = 0.1
        weight.grad = raw_gradient(weight.detach())
        optimizer.step()
    balanced = weight.norm().item()
    rates = weight_decay_rates(RATES, DECAY, update="normalised")
    free = free_rates(optimizer, weight, Update.NORMALISED)
    assert free * balanced == pytest.approx(rates, rel=0.03)


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=20), st.floats(0, 10), st.floats(0, 0.99))
def test_decay_takes_no_more_of_a_rate_than_the_schedule(
    rates: list[float], decay: float, momentum: float
) -> None:
    found = weight_decay_rates(rates, decay, momentum=momentum)
    given_ = np.array(rates)
    assert (found >= given_ * (1 - 1e-12)).all()
    assert (found <= given_ * math.sqrt(max(rates) / min(rates)) * (1 + 1e-12)).all()
    peak = rates.index(max(rates)) + 1
    assert found[:peak].tolist() == rates[:peak]  # a warm-up stays as it is


@given(st.lists(st.floats(0, 1), min_size=1).filter(any))
def test_without_decay_they_are_those_given(rates: list[float]) -> None:
    assert weight_decay_rates(rates, 0.0).tolist() == rates


@pytest.mark.parametrize(("table", "most"), [("", 1.18), ("-two", 1.15), ("-four", 1.21)])
def test_they_are_what_norms_without_projection_had_at_paper_scale(table: str, most: float) -> None:
    rows = rows_of(f"table1-cifar{table}-paper", "norm-only-seeds-0-2")
    found = weight_decay_rates(
        (PAPER.rate(step) for step in range(PAPER.steps)), PAPER.weight_decay, momentum=PAPER.momentum
    )
    settled, last = 187_440, max(row["step"] for row in rows)
    assert last == PAPER.steps
    measured = {
        step: np.mean([row["effective_rate"] for row in rows if row["step"] == step])
        for step in {row["step"] for row in rows if row["step"] >= settled}
    }
    assert measured[last] < 0.05 * measured[settled]
    shares = [measured[step] / measured[settled] / (found[step - 1] / found[0]) for step in sorted(measured)]
    assert min(shares) > 0.99
    assert max(shares) < most


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: weight_decay_rates([], 0.1), "those of each update"),
        (lambda: weight_decay_rates([0.1, -0.1], 0.1), "none below 0"),
        (lambda: weight_decay_rates([0.1, math.nan], 0.1), "finite"),
        (lambda: weight_decay_rates([0.0], 0.1), "not all of them 0"),
        (lambda: weight_decay_rates([0.1], -1.0), "weight_decay is -1.0"),
        (
            lambda: weight_decay_rates([0.1], 0.1, momentum=1.0),
            "momentum is 1.0.*0 ≤ momentum < 1",
        ),
        (lambda: weight_decay_rates([0.1], 0.1, update="other"), "other"),
        (lambda: weight_decay_rates([0.1], 0.1, update="relative"), "leave decay nothing to schedule"),
    ],
)
def test_what_is_no_recipe_is_refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
