"""From AdamW to Muon: the same relative steps in a real run, and groups that fit torch's optimizers."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

import nap
from nap.rates.muon import muon_groups
from nap.rates.relative import UpdateRatios

LR = 1e-3
HIDDEN = ["0.weight", "2.weight", "4.weight"]
needs_muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="Muon came with torch 2.9")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    hidden: list[nn.Module] = []
    for inside, outside in ((16, 64), (64, 32), (32, 32)):
        hidden += [nn.Linear(inside, outside), nn.ReLU()]
    model = nn.Sequential(*hidden, nn.Linear(32, 5))
    nap.normalize_(model, torch.zeros(2, 16))
    return model


def steps(model: nn.Module, optimizers: list[torch.optim.Optimizer], updates: int = 100) -> dict[str, float]:
    """Mean relative steps of the first optimizer's weights, in training on a task that can be learnt."""
    nap.Projector(model).attach(*optimizers)
    ratios = UpdateRatios(model, every=1).attach(optimizers[0])
    generator = torch.Generator().manual_seed(1)
    teacher = torch.randn(16, 5, generator=generator)
    for _ in range(updates):
        x = torch.randn(64, 16, generator=generator)
        model.zero_grad()
        nn.functional.cross_entropy(model(x), (x @ teacher).argmax(1)).backward()
        for optimizer in optimizers:
            optimizer.step()
    return ratios.mean


def translated(model: nn.Module, **options: Any) -> dict[str, float]:
    recipe = muon_groups(model, LR, **options)
    return steps(model, [torch.optim.Muon(recipe.muon), torch.optim.AdamW(recipe.adamw)])


@needs_muon
def test_muon_goes_on_by_the_steps_that_adamw_was_seen_to_take() -> None:
    model = network()
    after = copy.deepcopy(model)
    adamw = steps(model, [torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)])
    assert max(adamw[name] for name in HIDDEN) > 1.3 * min(adamw[name] for name in HIDDEN)
    muon = translated(after, measured=adamw)
    for name in HIDDEN:
        assert 0.75 < muon[name] / adamw[name] < 1.1, name


@needs_muon
@pytest.mark.parametrize("rms", [0.2, 0.4])
def test_without_a_measurement_the_step_is_the_rms_that_was_said(rms: float) -> None:
    model = network()
    sizes = {name: model.get_parameter(name).detach().square().mean().sqrt().item() for name in HIDDEN}
    muon = translated(model, rms=rms)
    for name in HIDDEN:
        assert muon[name] * sizes[name] / LR == pytest.approx(rms, rel=0.25)


@needs_muon
def test_on_the_sphere_the_rate_is_the_step_of_both() -> None:
    found = []
    for kind in (torch.optim.AdamW, torch.optim.Muon):
        model = network()
        hidden = [model.get_parameter(name) for name in HIDDEN]
        others = [p for p in model.parameters() if all(p is not q for q in hidden)]
        optimizers = [kind(hidden, lr=0.01, weight_decay=0.0), torch.optim.AdamW(others, lr=0.01)]
        nap.Projector(model, update="relative").attach(*optimizers)
        ratios = UpdateRatios(model, every=1, weights=HIDDEN).attach(optimizers[0])
        model(torch.randn(64, 16, generator=torch.Generator().manual_seed(1))).square().mean().backward()
        optimizers[0].step()
        found.append(ratios.last)
    for name in HIDDEN:
        assert [steps[name] for steps in found] == pytest.approx([0.01, 0.01], rel=0.05)


def test_every_trainable_parameter_is_in_just_one_group_and_decay_shrinks_as_fast() -> None:
    model = network()
    model[2].weight.requires_grad_(False)
    recipe = muon_groups(model, LR, weight_decay=0.1, measured=dict.fromkeys(HIDDEN, 0.01))
    held = [id(p) for group in recipe.muon + recipe.adamw for _, p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters() if p.requires_grad)
    names = [[name for name, _ in group["params"]] for group in recipe.muon]
    assert names == [["0.weight"], ["4.weight"]]  # the output layer stays with AdamW
    assert all(g["lr"] * g["weight_decay"] == pytest.approx(LR * 0.1) for g in recipe.muon + recipe.adamw)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": 0.0}, "lr is 0.0"),
        ({"rms": math.nan}, "rms is nan"),
        ({"weight_decay": -0.1}, r"weight_decay is -0\.1"),
        ({"measured": {"0.weight": 0.01}}, r"measured has no step of 2\.weight.*UpdateRatios"),
        ({"weights": ["6.bias"]}, "no hidden matrix"),
        ({"weights": ["nothing"]}, "no parameter 'nothing'"),
    ],
)
def test_wrong_calls_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        muon_groups(network(), **{"lr": LR, **options})


def test_a_model_that_was_never_traced_is_asked_about() -> None:
    with pytest.raises(ValueError, match=r"0\.weight: never traced.*nap\.normalize_.*weights="):
        muon_groups(nn.Sequential(nn.Linear(4, 4)), LR)
