"""Several optimizers in one object, as torchtitan has them, and as loops of one's own do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import nap
from nap.integrations.monitor import Monitor
from projection_nets import worst


def model() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
    nap.normalize_(net, torch.zeros(2, 4))
    return net


def optimizers(net: nn.Module, **options: Any) -> list[Any]:
    """Matrices by SGD, all else by AdamW: every part of the plan is split."""
    matrices = [p for p in net.parameters() if p.ndim == 2]
    rest = [p for p in net.parameters() if p.ndim != 2]
    return [torch.optim.SGD(matrices, lr=0.1, **options), torch.optim.AdamW(rest, lr=0.05)]


class Plain:
    """Three methods and a list."""

    def __init__(self, parts: list[Any]):
        self.optimizers = parts

    def step(self) -> None:
        for part in self.optimizers:
            part.step()

    def zero_grad(self) -> None:
        for part in self.optimizers:
            part.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        return {str(number): part.state_dict() for number, part in enumerate(self.optimizers)}


class Whole(Plain, torch.optim.Optimizer):  # type: ignore[misc]
    """A torch optimizer itself, whose groups hold all parameters and no rate."""

    def __init__(self, parts: list[Any]):
        Plain.__init__(self, parts)
        everything = [p for part in parts for group in part.param_groups for p in group["params"]]
        torch.optim.Optimizer.__init__(self, everything, {})


class ByName(Plain):
    """A dict of optimizers inside of a wrapper."""

    def __init__(self, parts: list[Any]):
        super().__init__(parts)
        self.optimizer = type("Inner", (), {"optimizers": dict(enumerate(parts))})()
        del self.optimizers
        self.step = lambda: [part.step() for part in parts]  # type: ignore[method-assign, assignment]
        self.zero_grad = lambda: [part.zero_grad() for part in parts]  # type: ignore[method-assign, assignment]


CONTAINERS = [Plain, Whole, ByName]


def train(net: nn.Module, optimizer: Any, updates: int = 4) -> None:
    for seed in range(updates):
        optimizer.zero_grad()
        net(torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))).square().sum().backward()
        optimizer.step()


def by_hand() -> dict[str, Tensor]:
    net = model()
    parts = optimizers(net)
    nap.Projector(net).attach(*parts)
    train(net, Plain(parts))
    return net.state_dict()


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_container_is_its_optimizers(kind: Any) -> None:
    net = model()
    container = kind(optimizers(net))
    projector = nap.Projector(net).attach(container)
    train(net, container)
    assert worst(projector) < 1e-6
    assert set(projector.updates.values()) == {4}
    assert_close(net.state_dict(), by_hand(), rtol=0, atol=0)
    projector.detach()
    train(net, container, updates=1)
    assert set(projector.updates.values()) == {4}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_rates_are_those_of_the_optimizers_inside(kind: Any) -> None:
    net, logged = model(), list[dict[str, float]]()
    container = kind(optimizers(net))
    nap.Projector(net).attach(container)
    Monitor(net, torch.randn(16, 4), logged.append, every=2).attach(container)
    train(net, container)
    rates = [row["nap/rate/0.weight"] for row in logged]
    assert rates == pytest.approx([0.1 / net[0].weight.square().sum().item()] * 3, rel=1e-5)  # type: ignore[operator]


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_file_holds_them_all(kind: Any, tmp_path: Path) -> None:
    net = model()
    container = kind(optimizers(net, momentum=0.9))
    projector = nap.Projector(net).attach(container)
    train(net, container)
    nap.save(tmp_path / "run.pt", net, projector, container)
    fresh = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
    checkpoint = nap.load(tmp_path / "run.pt", fresh)
    again = kind(optimizers(fresh, momentum=0.9))
    resumed = checkpoint.resume(again)
    train(net, container, updates=2)
    train(fresh, again, updates=2)
    assert_close(fresh.state_dict(), net.state_dict(), rtol=0, atol=0)
    assert resumed is not None
    assert resumed.updates == projector.updates


@pytest.mark.parametrize("kind", CONTAINERS)
def test_mistakes_inside_of_a_container_are_seen(kind: Any) -> None:
    net = model()
    with pytest.warns(UserWarning, match="weight decay on projected weights"):
        nap.Projector(net).attach(kind(optimizers(net, weight_decay=0.1)))
    with pytest.raises(ValueError, match=r"does not train 0\.nap_norm\.weight"):
        nap.Projector(net).attach(kind(optimizers(net)[:1]))
    with pytest.raises(ValueError, match=r"Empty is not a torch\.optim\.Optimizer and does not wrap one"):
        nap.Projector(net).attach(type("Empty", (), {"optimizers": []})())


def test_torchtitan() -> None:
    """Its own container, where it is installed (docs/recipes.md says which version was)."""
    titan = pytest.importorskip("torchtitan.components.optimizer")
    net = model()
    groups = [
        titan.ParamGroupConfig(
            pattern=r"^[04]\.weight$", optimizer_name="Adam", optimizer_kwargs={"lr": 0.01}
        ),
        titan.ParamGroupConfig(pattern=r".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 0.02}),
    ]
    config = titan.OptimizersContainer.Config(param_groups=groups, implementation="foreach")
    container = titan.OptimizersContainer(config, model_parts=[net])
    projector = nap.Projector(net).attach(container)
    state = container.state_dict()  # makes the moments by a step of size zero, which is no update
    assert set(projector.updates.values()) == {0}
    train(net, container)
    assert len(list(container)) == 2
    assert worst(projector) < 1e-6
    assert set(projector.updates.values()) == {4}
    container.load_state_dict(state)
    assert set(projector.updates.values()) == {4}
