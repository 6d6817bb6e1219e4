"""Hidden layers that are all zeros at the start: converted by structure, and free to grow from there."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap
from nap import Role
from zoo.soundness import unsound
from zoo.written import Written

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))


def zeros(module: Any) -> Any:
    nn.init.zeros_(module.weight)
    return module


def layer() -> nn.Sequential:
    return nn.Sequential(zeros(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 2))


def image() -> nn.Module:
    parts = zeros(nn.Conv2d(1, 8, (1, 3))), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2)
    return nn.Sequential(nn.Unflatten(1, (1, 1, 6)), *parts)


def gate() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.head(net.value(x) * net.gate(x).sigmoid())

    return Written(forward, value=nn.Linear(6, 8), gate=zeros(nn.Linear(6, 8)), head=nn.Linear(8, 2))


def product() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.head(F.linear(x, net.w, net.b).relu())

    w, b = nn.Parameter(torch.zeros(8, 6)), nn.Parameter(torch.linspace(-1, 1, 8))
    return Written(forward, w=w, b=b, head=nn.Linear(8, 2))


BUILDERS = [layer, image, gate, product]


@pytest.mark.parametrize("build", BUILDERS)
def test_the_network_computes_what_it_did_and_the_layer_learns(build: Any) -> None:
    torch.manual_seed(0)
    model = build()
    before = model(X)
    plan = nap.normalize_(model, X)
    torch.testing.assert_close(model(X), before)
    assert unsound(model, plan, (X,), {}) == []
    nap.verify(model, X)
    model(X).square().mean().backward()
    (gradient,) = (p.grad for p in model.parameters() if p.ndim > 1 and not p.any())
    assert gradient is not None
    assert gradient.norm() > 0


def test_a_small_step_is_not_blown_up_to_full_size() -> None:
    torch.manual_seed(0)
    model: Any = layer()
    nap.normalize_(model, X)
    with torch.no_grad():
        model[0].weight.copy_(torch.randn(8, 6) * 1e-4)
    assert (model[0](X) - model[0].nap_norm.bias).std() < 0.2


def test_its_weight_grows_up_to_its_full_radius_and_stays_there() -> None:
    torch.manual_seed(0)
    model: Any = layer()
    nap.normalize_(model, X)
    assert nap.weight_groups(model)["0.weight"].role is Role.NORMALISED
    projector, optimizer = nap.Projector(model), torch.optim.Adam(model.parameters(), 0.1)
    projector.attach(optimizer)
    for _ in range(200):
        optimizer.zero_grad()
        (model(X) - X[:, :2]).square().mean().backward()
        optimizer.step()
    assert 0 < model[0].weight.norm() <= 8**0.5 * (1 + 1e-6)


def test_a_part_of_what_is_zero_is_refused_by_name() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        a, b = net.both(x).chunk(2, -1)
        return net.head(a * b.sigmoid())

    model = Written(forward, both=zeros(nn.Linear(6, 16)), head=nn.Linear(8, 2))
    with pytest.raises(ValueError, match=r"both.weight: it is all zeros.*initialise it"):
        nap.normalize_(model, X)
    nn.init.normal_(model.both.weight, std=1e-3)
    nap.normalize_(model, X)
    nap.verify(model, X)
