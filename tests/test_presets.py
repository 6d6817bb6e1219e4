"""`nap.prepare`: its presets are the public calls that it prints, and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nap
from nap.presets import PRESETS


class Agent(nn.Module):
    """As in CleanRL: two networks, and no forward."""

    def __init__(self, activation: type[nn.Module] = nn.Tanh) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 8), activation(), nn.Linear(8, 2))
        self.critic = nn.Sequential(nn.Linear(4, 8), activation(), nn.Linear(8, 1))


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.hidden, self.head = nn.Embedding(10, 8), nn.Linear(8, 16), nn.Linear(16, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.nn.functional.gelu(self.hidden(self.table(tokens))))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
    )


CASES: dict[str, tuple[Any, Any]] = {
    "rl": (mlp, torch.randn(2, 4)),
    "language": (LanguageModel, torch.randint(10, (2, 5))),
    "vision": (images, torch.randn(2, 3, 6, 6)),
    "continual": (mlp, torch.randn(2, 4)),
}


def train(model: nn.Module, optimizer: Any, batch: Any) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("preset", PRESETS)
def test_the_printed_code_does_the_same(preset: Any, weight_decay: float) -> None:
    make, batch = CASES[preset]
    model = make()
    scope: dict[str, Any] = {"nap": nap, "torch": torch, "model": copy.deepcopy(model), "batch": batch}
    prepared = nap.prepare(model, batch, preset=preset, lr=0.01, weight_decay=weight_decay)
    exec(prepared.code, scope)
    assert scope["projector"].plan == prepared.projector.plan
    train(model, prepared.optimizer, batch)
    train(scope["model"], scope["optimizer"], batch)
    for name, parameter in scope["model"].named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name
    assert prepared.code in str(prepared)
    assert prepared.notes[0] in str(prepared)


def test_every_case_is_a_preset() -> None:
    assert set(CASES) == set(PRESETS)


def test_unpacks() -> None:
    model = mlp()
    same, optimizer, projector = nap.prepare(model, torch.randn(2, 4), preset="rl", lr=3e-4)
    assert same is model
    assert projector.attached == (optimizer,)
    assert optimizer.param_groups[0]["eps"] == 1e-5


def test_decay_is_kept_off_projected_weights() -> None:
    prepared = nap.prepare(
        LanguageModel(), CASES["language"][1], preset="language", lr=1e-3, weight_decay=0.1
    )
    decay = {id(p): g["weight_decay"] for g in prepared.optimizer.param_groups for p in g["params"]}
    projected = prepared.projector.plan.names("project")
    for name, parameter in prepared.model.named_parameters():
        assert decay[id(parameter)] == (0.1 if parameter.ndim == 2 and name not in projected else 0.0), name
    assert "hidden.weight" in projected


def test_parts_of_a_model_without_forward() -> None:
    prepared = nap.prepare(Agent(), torch.randn(2, 4), preset="rl", lr=3e-4, parts=("actor", "critic"))
    assert "nap.normalize_(model.actor, batch)\nnap.normalize_(model.critic, batch)" in prepared.code
    assert set(prepared.plans) == {"actor", "critic"}
    assert prepared.projector.plan.names("project") == ["actor.0.weight", "critic.0.weight"]


def test_named_inputs() -> None:
    batch = {"tokens": CASES["language"][1]}
    prepared = nap.prepare(LanguageModel(), batch, preset="language", lr=1e-3)
    assert prepared.code.startswith("nap.normalize_(model, (), batch, norm='rms')")


def test_joint_scales_only_where_they_are_exact() -> None:
    batch = torch.randn(2, 4)
    relu = nap.prepare(mlp(), batch, preset="continual", lr=1e-3)
    assert "affine='joint'" in relu.code
    tanh = nap.prepare(Agent(), batch, preset="continual", lr=1e-3, parts=("actor", "critic"))
    assert "joint" not in tanh.code
    assert "scales and offsets stay free" in tanh.notes[0]
    with pytest.raises(ValueError, match="joint"):  # asked for by name it is refused, not dropped
        nap.prepare(
            Agent(), batch, preset="continual", lr=1e-3, parts=("actor",), project={"affine": "joint"}
        )


def test_another_optimizer_and_other_options() -> None:
    prepared = nap.prepare(
        mlp(),
        torch.randn(2, 4),
        preset="rl",
        lr=0.1,
        optimizer=torch.optim.SGD,
        momentum=0.5,
        normalize={"norm": "rms"},
        project={"output": "project"},
    )
    assert type(prepared.optimizer) is torch.optim.SGD
    assert "4.weight" in prepared.projector.plan.names("project")
    assert "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)" in prepared.code


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"preset": "vison"}, "did you mean 'vision'"),
        ({"lr": 0.0}, "lr is 0.0"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0"),
        ({"parts": ("acter",)}, "parts names 'acter'"),
    ],
)
def test_bad_calls_leave_the_model_alone(change: dict[str, Any], words: str) -> None:
    model = mlp()
    before = list(model.state_dict())
    with pytest.raises(ValueError, match=words):
        nap.prepare(model, torch.randn(2, 4), **{"preset": "rl", "lr": 3e-4, **change})
    assert list(model.state_dict()) == before
