"""A norm directly in front of a BatchNorm has no scale: it would be undone, and its gradient is noise."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import nap
from nap import Plan
from nap.norms.norm import Norm

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Between(nn.Module):
    """A layer, something between, a BatchNorm, a ReLU and a head."""

    def __init__(self, layer: nn.Module, between: Callable[[Tensor], Tensor], norm: nn.Module) -> None:
        super().__init__()
        self.layer, self.norm, self.between = layer, norm, between

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.between(self.layer(x)))).flatten(1).mean(1)


def conv() -> nn.Module:
    return nn.Conv2d(3, 4, 3, padding=1)


DIRECTLY: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda y: y,
    "a pool": lambda y: F.max_pool2d(y, 2),
    "padding": lambda y: F.pad(y, (1, 1)),
    "a constant factor": lambda y: 0.5 * y,
    "dropout": lambda y: F.dropout(y, 0.5, training=False),
    "its shape is asked for": lambda y: y.view(y.size(0), y.shape[1], -1).view_as(y),
    "transposed back": lambda y: y.transpose(1, 2).contiguous().transpose(1, 2),
}
SHARED: dict[str, Callable[[Tensor], Tensor]] = {
    "a sum with other data": lambda y: y + torch.ones_like(y).cumsum(0) * y.mean().detach(),
    "a sum with itself": lambda y: y + y.flip(1),
    "features mixed": lambda y: y + y.roll(1, 1),
    "features moved into each other": lambda y: F.pixel_shuffle(y, 2).repeat(1, 4, 1, 1),
    "features for rows": lambda y: y.reshape(-1, 8, 4, 8).transpose(1, 2),
    "a gate of its own": lambda y: y * y.mean((2, 3), keepdim=True),
}


def only_norm(model: nn.Module) -> Norm:
    (norm,) = (m for m in model.modules() if isinstance(m, Norm))
    return norm


@pytest.mark.parametrize("between", DIRECTLY.values(), ids=DIRECTLY.keys())
@pytest.mark.parametrize("over", ["sample", "position"])
def test_a_norm_directly_in_front_of_a_batch_norm_has_no_scale(between: Any, over: str) -> None:
    model = Between(conv(), between, nn.BatchNorm2d(4))
    nap.normalize_(model, IMAGES, over=over)
    assert list(only_norm(model).parameters()) == []
    assert nap.verify(model, IMAGES).scale_invariant == 1


@pytest.mark.parametrize("between", SHARED.values(), ids=SHARED.keys())
def test_a_scale_that_is_not_undone_stays(between: Any) -> None:
    model = Between(conv(), between, nn.BatchNorm2d(between(torch.ones(1, 4, 8, 8)).shape[1]))
    nap.normalize_(model, IMAGES)
    assert [name for name, _ in only_norm(model).named_parameters()] == ["weight"]


def test_features_on_the_last_axis_that_are_transposed_for_a_batch_norm() -> None:
    model = Between(nn.Linear(8, 6), lambda y: y.flatten(1, 2).transpose(1, 2), nn.BatchNorm1d(6))
    nap.normalize_(model, IMAGES)
    assert list(only_norm(model).parameters()) == []


class Both(nn.Module):
    """The first layer's result enters a BatchNorm and is used beside it; the second one's is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = conv(), conv(), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        return (
            (F.relu(self.norm(self.second(x))) + F.relu(self.norm(first)) + F.tanh(first)).flatten(1).sum(1)
        )


def test_what_is_used_beside_the_batch_norm_keeps_its_scale() -> None:
    model = Both()
    plan = nap.plan(model, IMAGES)
    assert {p.module: (p.scale, p.before_batch_norm) for p in plan.placements} == {
        "first": (True, False),
        "second": (False, True),
    }


def block() -> nn.Sequential:
    return nn.Sequential(conv(), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 5))


def test_its_scale_had_a_gradient_of_rounding_noise() -> None:
    model = block().double().train()
    nap.normalize_(model, IMAGES.double())
    norm = only_norm(model)
    norm.weight = nn.Parameter(torch.ones(4, dtype=torch.float64))
    F.cross_entropy(model(IMAGES.double()), torch.arange(4)).backward()
    head = model[4].weight.grad
    assert norm.weight.grad is not None
    assert isinstance(head, Tensor)
    assert norm.weight.grad.abs().max() < 1e-4 * head.abs().max()  # BatchNorm's eps is all of it


def old_plan() -> Plan:
    """As `nap.plan` made it before: with the scale, and without knowing of BatchNorm."""
    text = nap.plan(block(), IMAGES).to_json()
    assert '"scale": false' in text
    text = text.replace('"scale": false', '"scale": true')
    return Plan.from_json(text.replace('"before_batch_norm": true,', ""))


def test_an_old_plan_is_applied_as_it_was_made() -> None:
    model = block()
    nap.normalize_(model, old_plan())
    assert [name for name, _ in only_norm(model).named_parameters()] == ["weight"]


@pytest.mark.parametrize("trained", [False, True])
def test_a_checkpoint_with_a_scale_is_the_same_function_without_one(trained: bool) -> None:
    old, new = block(), block()
    nap.normalize_(old, old_plan())
    nap.normalize_(new, IMAGES)
    if trained:
        nn.init.uniform_(only_norm(old).weight, 0.5, 2.0)  # type: ignore[arg-type]
        old.train()(IMAGES)
    new.load_state_dict(copy.deepcopy(old.state_dict()))
    assert_close(new.eval()(IMAGES), old.eval()(IMAGES))
    assert list(only_norm(new).parameters()) == []
    assert ("0.nap_norm.weight" in new.state_dict()) == trained
    again = copy.deepcopy(new)
    again.load_state_dict(new.state_dict())
    assert_close(again(IMAGES), new(IMAGES), rtol=0, atol=0)
    assert nap.Projector(new).plan.names() == ["0.weight", "1.weight", "1.bias", "4.weight", "4.bias"]


def test_a_norm_that_was_to_have_no_scale_takes_none() -> None:
    old, new = block(), block()
    nap.normalize_(old, old_plan())
    nap.normalize_(new, IMAGES, affine="none", batch_norm="keep")
    with pytest.raises(RuntimeError, match="Unexpected key"):
        new.load_state_dict(old.state_dict())
