"""Where the features of a product are in what its module returns."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap
from zoo.soundness import unsound
from zoo.written import Written

SERIES = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
IMAGE = torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(1))


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) / 5)


def heads(net: Written, x: Tensor) -> Tensor:
    return (x @ net.w).view(2, 5, 2, 4).transpose(1, 2)


MOVED = {
    "convolved over time": (SERIES, (7, 8, 3), lambda m, x: F.conv1d(x.mT, m.w, padding=1).mT, 7),
    "copied": (SERIES, (7, 8, 3), lambda m, x: F.conv1d(x.mT, m.w, padding=1).mT.contiguous(), 7),
    "linear over channels": (IMAGE, (7, 8), lambda m, x: F.linear(x.movedim(1, -1), m.w).movedim(-1, 1), 6),
    "in heads": (SERIES, (8, 8), heads, 4),
    "flattened": (SERIES, (8, 7), lambda m, x: (x @ m.w).flatten(1), 35),
    "channels last": (IMAGE, (7, 8, 3, 3), lambda m, x: F.conv2d(x, m.w, padding=1).movedim(1, -1), 7),
    "patches": (IMAGE, (7, 8, 3, 3), lambda m, x: F.conv2d(x, m.w, stride=3).flatten(2).mT, 7),
    "squeezed": (SERIES, (7, 8, 1), lambda m, x: F.conv1d(x[:, 0, :, None], m.w).squeeze(-1), 7),
    "shuffled": (IMAGE, (8, 8, 1, 1), lambda m, x: F.pixel_shuffle(F.conv2d(x, m.w), 2), 12),
}


@pytest.mark.parametrize("name", MOVED)
def test_a_product_whose_features_move_before_its_module_returns_has_its_norm_where_it_is_made(name: str):
    torch.manual_seed(0)
    x, shape, function, out = MOVED[name]
    part = Written(function, w=weight(*shape))
    model = Written(lambda net, x: net.head(net.part(x).tanh()), part=part, head=nn.Linear(out, 2))
    plan = nap.normalize_(model, x)
    (placement,) = plan.placements
    features = shape[0] if len(shape) > 2 or "channels" in name else shape[1]
    assert (placement.action, placement.width) == ("normalise product", features)
    assert unsound(model, plan, (x,), {}) == []
    nap.verify(model, x)


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: (x.reshape(-1, 8) @ m.w).view(2, 5, 7),
        lambda m, x: (x @ m.w)[:, :3],
        lambda m, x: (x @ m.w).flip(-1).masked_fill(torch.eye(5)[..., None].bool()[0], 0.0),
        lambda m, x: (x @ m.w).view(2, 5, 7, 1).squeeze(-1).contiguous(),
    ],
)
def test_one_whose_features_stay_on_their_axis_has_it_on_what_the_module_returns(function):
    torch.manual_seed(0)
    part = Written(function, w=weight(8, 7))
    model = Written(lambda net, x: net.head(net.part(x).tanh()), part=part, head=nn.Linear(7, 2))
    (placement,) = nap.normalize_(model, SERIES).placements
    assert (placement.action, placement.width) == ("normalise output", 7)
    nap.verify(model, SERIES)


def test_a_low_rank_sum_that_is_moved_is_refused_rather_than_normalised_over_time():
    def moved(net: Written, x: Tensor) -> Tensor:
        return (net.base(x) + net.up(net.down(x))).mT

    torch.manual_seed(0)
    part = Written(moved, base=nn.Linear(8, 7), down=nn.Linear(8, 2), up=nn.Linear(2, 7))
    model = Written(lambda net, x: net.head(net.part(x).tanh()), part=part, head=nn.Linear(5, 2))
    with pytest.raises(ValueError, match=r"part\.base\.weight: .*no place to hang a norm"):
        nap.normalize_(model, SERIES)


def test_each_layer_of_a_sum_that_is_moved_has_its_own_norm():
    torch.manual_seed(0)
    part = Written(lambda net, x: net.a(x) + net.b(x.mT).mT, a=nn.Linear(8, 7), b=nn.Conv1d(8, 7, 1))
    model = Written(lambda net, x: net.head(net.part(x).tanh()), part=part, head=nn.Linear(7, 2))
    plan = nap.normalize_(model, SERIES)
    assert [(p.module, p.width) for p in plan.placements] == [("part.a", 7), ("part.b", 7)]
    nap.verify(model, SERIES)


ENTERED: dict[str, tuple[Tensor, tuple[int, ...], Any, tuple[str, int, int]]] = {
    "images": (IMAGE, (7, 8, 1, 1), F.conv2d, ("sample", 7, 2)),
    "series": (SERIES.mT, (7, 8, 1), F.conv1d, ("channels", 7, 1)),
    "features": (SERIES, (7, 8), F.linear, ("features", 7, 0)),
}


def low_rank(net: Written, x: Tensor, product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    return product(x, net.w) + product(product(x, net.down), net.up)


@pytest.mark.parametrize("name", ENTERED)
def test_a_norm_in_front_of_an_activation_is_over_the_features_of_what_enters(name: str):
    torch.manual_seed(0)
    x, shape, product, expected = ENTERED[name]
    parts = {"w": weight(*shape), "down": weight(2, *shape[1:]), "up": weight(7, 2, *shape[2:])}
    model = Written(lambda net, x: net.act(low_rank(net, x, product)).sum(), act=nn.GELU(), **parts)
    (placement,) = nap.normalize_(model, x).placements
    assert placement.action == "normalise input"
    assert (placement.layout, placement.width, placement.spatial) == expected
    nap.verify(model, x)


def test_where_they_are_on_another_axis_it_is_refused():
    torch.manual_seed(0)
    parts = {"w": weight(7, 8), "down": weight(2, 8), "up": weight(7, 2)}
    model = Written(lambda net, x: net.act(low_rank(net, x, F.linear).mT).sum(), act=nn.GELU(), **parts)
    with pytest.raises(ValueError, match="no place to hang a norm"):
        nap.normalize_(model, SERIES)


def written(h: Tensor) -> Tensor:
    h[..., 0] = 1.0
    return h


FILLED: dict[str, Callable[[Tensor], Tensor]] = {
    "pad": lambda h: F.pad(h, (0, 1), value=1.0)[..., 1:],
    "where": lambda h: torch.where(torch.eye(7).bool()[:5], 1.0, h),
    "masked_fill": lambda h: h.masked_fill(torch.eye(7).bool()[:5], 1.0),
    "scatter": lambda h: h.scatter(-1, torch.zeros(2, 5, 1, dtype=torch.long), 1.0),
    "index_fill": lambda h: h.index_fill(-1, torch.tensor([0]), 1.0),
    "setitem": written,
}


@pytest.mark.parametrize("name", FILLED)
def test_numbers_beside_features_do_not_scale_with_the_weight(name: str):
    torch.manual_seed(0)
    parts = {"layer": nn.Linear(8, 7, bias=False), "norm": nn.LayerNorm(7)}
    model = Written(lambda net, x: net.norm(FILLED[name](net.layer(x))), **parts)
    nap.normalize_(model, SERIES)
    assert nap.weight_groups(model)["layer.weight"].role is nap.Role.JOINT


def test_heads_are_told_from_vectors_that_are_seen_more_than_once():
    """Keys of 8 features, the second time rotated: labels alone take each feature for a head."""

    def forward(net: Any, x: Tensor) -> Tensor:
        q, k = net.qk(x).chunk(2, -1)
        a, b = k.chunk(2, -1)
        angle = torch.arange(1.0, 5.0)
        turned = torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
        return net.head((q @ torch.cat([k, turned], 1).mT).softmax(-1))

    model = Written(forward, qk=nn.Linear(8, 16), head=nn.Linear(10, 2))
    (placement,) = nap.normalize_(model, SERIES).placements
    assert [(part.name, part.head) for part in placement.sections] == [("q", 8), ("k", 8)]
