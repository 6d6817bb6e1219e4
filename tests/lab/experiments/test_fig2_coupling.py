"""Figure 2's coupled population is one `nap.TwinPair` for every seed and mode."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from statistics import mean
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nap.lab.datasets.streams import batches
from nap.lab.experiments.fig2 import MODES, Fig2Config
from nap.lab.experiments.fig2.runs import TWIN_MODES, TwinRun
from nap.lab.loops.population.continual_run import Row
from nap.lab.loops.population.settings import Network
from nap.projection.sphere import norms_of
from nap.rates.twins import TwinPair
from tiny_runs import (
    CPU,
    DIGITS,
    assert_same_numbers,
    assert_same_parameters,
    finished,
    module_of,
    on_disk_and_back,
)

TWINS = Fig2Config(
    data="digits",
    images=48,
    width=12,
    depth=2,
    channels=(4, 4),
    epochs=12,
    batch_size=16,
    learning_rate=1e-2,
    precision="float64",
    probe=32,
    seeds=2,
)
NETWORKS = get_args(Network)
LIMIT = 1e-12


@cache
def trained(network: Network) -> tuple[TwinRun, list[Row]]:
    """A finished run, 36 updates; nobody may change it."""
    run = TwinRun(replace(TWINS, network=network), DIGITS, CPU)
    return run, finished(run)


def pair_of(run: TwinRun, mode: str, seed: int) -> tuple[TwinPair, list[Row]]:
    """The same training with the library's twins, and the rows that it would write."""
    start = TwinRun(run.config, DIGITS, CPU)
    x, y = start.trainer.images, DIGITS.labels
    pair = TwinPair(
        module_of(start.trainer, seed),
        lambda groups: torch.optim.Adam(groups, lr=TWINS.learning_rate),
        mode=TWIN_MODES[mode],
    )
    first = total_norm(pair)
    rows = []
    for epoch in range(TWINS.epochs):
        index = batches(seed, 1, epoch, count=len(x), batch_size=TWINS.batch_size)
        losses = [pair.step(cross_entropy(x[some], y[some])) for some in index]
        growth = total_norm(pair) / first
        rows.append(
            {
                "step": len(index) * (epoch + 1),
                "loss_free": mean(of.free for of in losses),
                "loss_projected": mean(of.projected for of in losses),
                "function_distance": pair.distance(x[: TWINS.probe]),
                "norm_growth": growth,
                "rate_multiplier": 1.0 if mode == "none" else 1 / growth,
            }
        )
    return pair, rows


def cross_entropy(x: Tensor, y: Tensor) -> Callable[[nn.Module], Tensor]:
    return lambda net: F.cross_entropy(net(x), y)


def total_norm(pair: TwinPair) -> float:
    return math.hypot(*(pair.free.get_parameter(name).norm().item() for name in pair.coupled))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_member_of_a_mode_is_the_projected_twin_of_a_pair(network: Network, mode: str) -> None:
    seed, (run, rows) = 1, trained(network)
    pair, expected = pair_of(run, mode, seed)
    assert set(pair.coupled) == set(run.coupling.radii)
    ours = [row for row in rows if row["arm"] == mode and row["seed"] == seed]
    assert ours[-1]["step"] >= 30
    assert_same_numbers([{key: row[key] for key in expected[0]} for row in ours], expected, LIMIT)
    for group, twin in ((0, pair.free), (1 + MODES.index(mode), pair.projected)):
        members = {name: run.coupling.group(p, group)[seed] for name, p in run.trainer.parameters.items()}
        assert_same_parameters(members, dict(twin.named_parameters()), LIMIT)


@pytest.mark.parametrize("network", NETWORKS)
def test_the_exact_mode_follows_its_free_twin_and_no_other_does(network: Network) -> None:
    _, rows = trained(network)
    assert max(row["loss_gap"] for row in rows if row["arm"] == "exact") <= LIMIT
    assert max(row["accuracy_gap"] for row in rows if row["arm"] == "exact") == 0
    assert max(row["function_distance"] for row in rows if row["arm"] == "exact") <= LIMIT
    for mode in ("per layer", "global", "none"):
        last = [row for row in rows if row["arm"] == mode][-TWINS.seeds :]
        assert min(row["loss_gap"] for row in last) > 1e-6
        assert min(row["function_distance"] for row in last) > 1e-4


def test_gaps_are_between_what_the_rows_say_of_both_twins() -> None:
    for row in trained("mlp")[1]:
        for what in ("loss", "accuracy"):
            gap = abs(row[f"{what}_projected"] - row[f"{what}_free"])
            assert row[f"{what}_gap"] == pytest.approx(gap, abs=1e-15)


@pytest.mark.parametrize("network", NETWORKS)
def test_twins_stay_on_the_sphere_and_free_networks_leave_it(network: Network) -> None:
    run, rows = trained(network)
    for name, radius in run.coupling.radii.items():
        ratio = (norms_of(run.trainer.parameters[name], stacked=1) / radius).flatten()
        assert (ratio[run.coupling.seeds :] - 1).abs().max() <= LIMIT
        assert ratio[: run.coupling.seeds].min() > 1.01
    assert "head.weight" not in run.coupling.radii
    assert min(row["norm_growth"] for row in rows[-TWINS.seeds :]) > 1.01


def test_free_networks_do_not_feel_their_twins() -> None:
    """All modes read the same free networks, so their rows agree on them to the bit."""
    rows = trained("mlp")[1]
    for name in ("loss_free", "accuracy_free", "norm_growth"):
        columns = [[row[name] for row in rows if row["arm"] == mode] for mode in MODES]
        assert all(column == columns[0] for column in columns)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_twins_resume_after_any_epoch_bit_for_bit(precision: Any) -> None:
    config = replace(TWINS, network="mlp", epochs=3, precision=precision)
    unbroken = TwinRun(config, DIGITS, CPU)
    expected = finished(unbroken)
    run, rows = TwinRun(config, DIGITS, CPU), []
    while run.done < run.total:
        rows += run.step()
        state = on_disk_and_back(run.state_dict())
        run = TwinRun(config, DIGITS, CPU)
        run.load_state_dict(state)
    assert rows == expected
    assert_same_parameters(run.trainer.parameters, unbroken.trainer.parameters, 0.0)
