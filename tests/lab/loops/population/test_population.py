"""A population of K networks computes what K single runs compute, whatever the arm."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nap
from nap.lab.loops.population.settings import NAP, Arm
from nap.lab.loops.population.stacking import build, forward, initial_values
from tiny_runs import (
    ARMS,
    CPU,
    DIGITS,
    METHOD_ARMS,
    assert_same_numbers,
    assert_same_parameters,
    continual,
    finished,
)

SEEDS = [0, 1, 2]
ROUNDING = 1e-10  # Adam divides gradients by their own size: of those near zero rounding is a large share


def assert_population_is_its_single_runs(arm: Arm, **changes: Any) -> None:
    together = continual(arm, seeds=SEEDS, **changes)
    rows = finished(together)
    for k, seed in ((0, SEEDS[0]), (2, SEEDS[2])):
        alone = continual(arm, seeds=[seed], **changes)
        assert_same_numbers([row for row in rows if row["seed"] == seed], finished(alone), 1e-12)
        ours = {name: p[k] for name, p in together.trainer.parameters.items()}
        assert_same_parameters(ours, {name: p[0] for name, p in alone.trainer.parameters.items()}, ROUNDING)


@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("arm", ARMS.values(), ids=ARMS)
def test_a_population_is_its_single_runs(arm: Arm, network: str) -> None:
    assert_population_is_its_single_runs(arm, network=network)


@pytest.mark.parametrize("stream", ["permuted labels", "permuted pixels"])
def test_a_population_is_its_single_runs_in_every_stream(stream: str) -> None:
    assert_population_is_its_single_runs(NAP, stream=stream)


@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("name", ["none", "NaP + none", "NaP + ReDo", "Langevin"])
def test_members_one_by_one_are_members_batched(name: str, network: str) -> None:
    runs = [
        continual(METHOD_ARMS[name], network=network, strategy=strategy) for strategy in ("batched", "loop")
    ]
    rows = [finished(run) for run in runs]
    assert_same_numbers(rows[0], rows[1], 1e-12)
    assert_same_parameters(runs[0].trainer.parameters, runs[1].trainer.parameters, ROUNDING)


def test_seeds_are_not_each_other() -> None:
    rows = [row for row in finished(continual(NAP)) if row["task"] > 0]
    for name in ("loss", "gradient_norm", "parameter_norm"):
        assert len({row[name] for row in rows}) == len(rows)


def test_a_member_starts_as_the_fresh_network_of_its_seed() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))

    torch.manual_seed(1)
    expected = make()
    torch.manual_seed(99)
    state = torch.get_rng_state()
    skeleton = build(make, seed=5).double()
    nap.normalize_(skeleton, torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator()))
    stacks = initial_values(skeleton, make, [0, 1], CPU)
    assert torch.equal(torch.get_rng_state(), state)  # nobody else's random numbers were taken
    assert stacks.keys() == dict(skeleton.named_parameters()).keys()
    assert torch.equal(stacks["0.weight"][1], expected.get_parameter("0.weight").double())
    assert not torch.equal(stacks["0.weight"][0], stacks["0.weight"][1])
    assert (stacks["0.nap_norm.weight"] == 1).all()
    assert (stacks["0.nap_norm.bias"] == 0).all()


@pytest.mark.parametrize("strategy", ["batched", "loop"])
def test_each_member_sees_its_own_batch_with_its_own_parameters(strategy: Any) -> None:
    nets = [build(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), seed).double() for seed in SEEDS]
    stacks = {name: torch.stack([net.get_parameter(name) for net in nets]) for name in ("1.weight", "1.bias")}
    x = DIGITS.normalised(torch.float64)[:12].unflatten(0, (3, 4))
    expected: list[Tensor] = [net(batch) for net, batch in zip(nets, x, strict=True)]
    torch.testing.assert_close(forward(nets[0], strategy)(stacks, x), torch.stack(expected))
