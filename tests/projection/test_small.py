"""Small weights on a CPU are projected with numbers: as all others are, or by the code for all others."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nap import Projector
from nap.projection.small import SmallWeights
from nap.projection.sphere import project_tensors_


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("size", [1e-9, 0.1, 1.0, 10.0, 1e9])
def test_they_go_where_large_ones_go(dtype: torch.dtype, grows: bool, size: float) -> None:
    generator = torch.Generator().manual_seed(0)
    modules = [nn.Linear(4, 3, dtype=dtype) for _ in range(3)]
    with torch.no_grad():
        for module in modules:
            module.weight.copy_(torch.randn(3, 4, generator=generator, dtype=dtype) * size)
    expected = [module.weight.detach().clone() for module in modules]
    radii = {str(k): torch.full((1, 1), 2.0, dtype=dtype) for k in range(3)}
    small = SmallWeights.of(
        {str(k): (module, "weight") for k, module in enumerate(modules)}, radii, set(radii) if grows else ()
    )
    assert small is not None
    assert small.project_()
    project_tensors_(expected, list(radii.values()), ceiling=grows)
    for module, other in zip(modules, expected, strict=True):
        torch.testing.assert_close(module.weight.detach(), other, rtol=1e-6, atol=0)


def small_of(**weights: Tensor) -> SmallWeights | None:
    modules = {name: nn.ParameterDict({"weight": weight}) for name, weight in weights.items()}
    radii = {name: torch.ones(1, 1) for name in weights}
    return SmallWeights.of({name: (module, "weight") for name, module in modules.items()}, radii, ())


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf, 1e-30])
def test_one_without_direction_leaves_all_to_others(bad: float) -> None:
    weights = [nn.Parameter(torch.full((2, 2), value)) for value in (3.0, bad)]
    small = small_of(a=weights[0], b=weights[1])
    assert small is not None
    assert not small.project_()
    assert torch.equal(weights[0], torch.full((2, 2), 3.0))


def test_what_is_large_or_of_another_type_is_not_taken() -> None:
    assert small_of(a=nn.Parameter(torch.ones(300, 300))) is None
    assert small_of(a=nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16))) is None
    assert small_of(a=nn.Parameter(torch.ones(2, 2)), b=nn.Parameter(torch.ones(300, 300))) is None


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2)).float()


def train(model: Any, optimizer: torch.optim.Optimizer, updates: int = 3) -> None:
    for step in range(updates):
        optimizer.zero_grad()
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
        model(x).square().mean().backward()
        optimizer.step()


def weights_of(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_training_is_the_same_as_by_the_code_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for short in (True, False):
        if not short:
            monkeypatch.setattr(SmallWeights, "of", lambda *_: None)
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        projector = Projector(model).attach(optimizer)
        train(model, optimizer)
        assert projector.updates == {"0.weight": 3, "3.weight": 3}
        found.append(weights_of(model))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def freeze(model: Any) -> None:
    model[0].weight.requires_grad_(False)
    model[0].weight.grad = None


def replace_data(model: Any) -> None:
    model[0].weight.data = 2.0 * model[0].weight.data


@pytest.mark.parametrize("change", [freeze, replace_data])
def test_a_change_of_the_model_is_seen(change: Any) -> None:
    model: Any = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projector = Projector(model).attach(optimizer)
    train(model, optimizer, 1)
    change(model)
    frozen = model[0].weight.detach().clone()
    train(model, optimizer, 1)
    if change is freeze:
        assert torch.equal(model[0].weight, frozen)
        assert projector.norm_ratios()["3.weight"] == pytest.approx(1, abs=1e-6)
    else:
        assert projector.norm_ratios() == pytest.approx({"0.weight": 1, "3.weight": 1}, abs=1e-6)


def test_radii_of_a_loaded_state_count_at_once() -> None:
    model: Any = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projector = Projector(model).attach(optimizer)
    train(model, optimizer, 1)
    state = projector.state_dict()
    state["radii"]["0.weight"] *= 3
    projector.load_state_dict(state)
    train(model, optimizer, 1)
    assert projector.norm_ratios() == pytest.approx({"0.weight": 1, "3.weight": 1}, abs=1e-6)
    torch.testing.assert_close(model[0].weight.norm(), state["radii"]["0.weight"].squeeze())
    assert projector.updates == {"0.weight": 2, "3.weight": 2}
    projector.project_()
    torch.testing.assert_close(model[0].weight.norm(), state["radii"]["0.weight"].squeeze())


def test_projecting_by_hand_counts_no_update_and_a_copy_projects_its_own() -> None:
    model: Any = net()
    projector = Projector(model)
    twin, copied = copy.deepcopy((model, projector))
    with torch.no_grad():
        model[0].weight.mul_(2)
        twin[0].weight.mul_(4)
    projector.project_()
    assert projector.norm_ratios() == pytest.approx({"0.weight": 1, "3.weight": 1}, abs=1e-6)
    assert copied.norm_ratios()["0.weight"] == pytest.approx(4)
    copied.project_()
    assert copied.norm_ratios()["0.weight"] == pytest.approx(1, abs=1e-6)
    assert projector.updates == copied.updates == {"0.weight": 0, "3.weight": 0}
