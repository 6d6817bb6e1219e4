"""Plans made without the values of a model's weights: the same ones, or made with them after all."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap
from nap.conversion import light, normalize
from nap.conversion.light import is_large, light_copy
from nap.conversion.trial import record_all
from nap.norms.norm import EPS, Norm
from nap.tracing.product_shapes import product_shape
from zoo import handmade, unfamiliar_masked
from zoo.entry import Entry
from zoo.sequence import Recurrent, tokens


def planned(entry: Entry, monkeypatch: pytest.MonkeyPatch, is_light: bool) -> str:
    """A plan, or why there is none."""
    monkeypatch.setattr(normalize, "is_large", lambda model: is_light)
    model, args, kwargs = entry.build()
    try:
        return nap.plan(model, args, kwargs, **entry.options).to_json()
    except ValueError as refusal:
        return str(refusal)


@pytest.mark.parametrize("entry", handmade.ENTRIES[::3], ids=lambda entry: f"{entry.family}: {entry.name}")
def test_the_plan_is_the_same_without_values(entry: Entry, monkeypatch: pytest.MonkeyPatch):
    assert planned(entry, monkeypatch, True) == planned(entry, monkeypatch, False)


MASKED = {"autoregressive", "mixing of the past by a triangle", "one pixel after another", "pruned at random"}


@pytest.mark.parametrize(
    "entry", [e for e in unfamiliar_masked.FAMILY if e.name in MASKED], ids=lambda entry: entry.name
)
def test_masks_are_read_from_values(entry: Entry, monkeypatch: pytest.MonkeyPatch):
    assert planned(entry, monkeypatch, True) == planned(entry, monkeypatch, False)


class Branching(nn.Module):
    """What runs depends on numbers."""

    def __init__(self, decide: Callable[[Tensor], Any]):
        super().__init__()
        self.first, self.left, self.right = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.head, self.decide = nn.Linear(8, 2), decide

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.head(F.relu(self.left(h) if self.decide(h) else self.right(h)))


@pytest.mark.parametrize(
    "decide",
    [
        lambda h: h.mean() > 0,
        lambda h: h.sum().item() > 0,
        lambda h: len(h[h > 0]) > 3,
        lambda h: int(h.abs().max()) == 0,
        lambda h: torch.where(h > 0)[0].numel() > 2,
        lambda h: h.detach().numpy().mean() > 0,
        lambda h: torch.equal(h, h.abs()),
        lambda h: (h > 0).any(),
    ],
)
def test_where_numbers_decide_they_are_asked_for(decide: Callable[[Tensor], Any]):
    model = Branching(decide)
    trial = light_copy(model)
    with pytest.raises(ValueError, match="NeedsValues"):
        record_all(trial.twin, [((torch.randn(3, 6),), {})], watching=trial.watching)


@pytest.mark.parametrize("sign", [1, -1])
def test_and_the_plan_follows_the_branch_that_the_values_take(sign: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(normalize, "is_large", lambda model: True)
    model = Branching(lambda h: h.mean() > 0)
    nn.init.constant_(model.first.bias, 100.0 * sign)
    plan = nap.plan(model, torch.randn(3, 6))
    assert plan.weights["left.weight" if sign < 0 else "right.weight"].role == "unused"


def test_a_large_model_is_planned_without_a_copy_of_its_weights(monkeypatch: pytest.MonkeyPatch):
    wide = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 4))
    assert is_large(wide)
    assert not is_large(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)))
    monkeypatch.setattr(normalize, "trial_copy", pytest.fail)
    assert nap.plan(wide, torch.randn(2, 2048)).weights["0.weight"].role == "scale-invariant"
    assert all(p.is_meta for p in light_copy(wide).twin.parameters() if p.ndim > 1)


def test_a_zero_weight_is_found_without_values(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(normalize, "is_large", lambda model: True)
    first = nn.Linear(6, 8)
    net = nn.Sequential(first, nn.ReLU(), nn.Linear(8, 2))
    nn.init.zeros_(first.weight)
    assert nap.plan(net, torch.randn(2, 6)).placements[0].eps == EPS
    first.weight.data[-1, -1] = 1.0
    assert nap.plan(net, torch.randn(2, 6)).placements[0].eps == "relative"


def test_weights_are_left_alone(monkeypatch: pytest.MonkeyPatch):
    """Look-ups use the model's own table, and max_norm changes a table in place."""
    monkeypatch.setattr(normalize, "is_large", lambda model: True)
    net = nn.Sequential(nn.Embedding(5, 8, max_norm=0.1), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    before = [p.detach().clone() for p in net.parameters()]
    nap.plan(net, torch.tensor([1, 2]))
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


@pytest.mark.parametrize(
    ("build", "x"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(2, 6)),
        (
            lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 3)),
            torch.randn(2, 3, 9, 9),
        ),
        (lambda: Recurrent(nn.GRU), tokens()),
    ],
    ids=["mlp", "convolutions", "recurrent"],
)
def test_a_model_on_the_meta_device_is_planned_and_converted(build: Callable[[], nn.Module], x: Tensor):
    options: dict[str, Any] = {"rnn": "layernorm"}
    with torch.device("meta"):
        empty = build()
    plan = nap.normalize_(empty, x, **options)
    real = build()
    assert plan.to_json() == nap.normalize_(real, x, **options).to_json()
    assert all(parameter.is_meta for parameter in empty.parameters())
    empty.to_empty(device="cpu")
    for module in empty.modules():
        getattr(module, "reset_parameters", int)()
    norms = [module for module in empty.modules() if isinstance(module, Norm)]
    assert norms
    scales = [norm.weight for norm in norms if not norm.before_batch_norm]
    assert all(scale is not None and bool((scale == 1).all()) for scale in scales)
    assert not any(norm.bias is not None and bool(norm.bias.any()) for norm in norms)
    assert nap.verify(empty.eval(), x).scale_invariant


def test_a_model_on_the_meta_device_whose_numbers_decide_is_refused():
    with torch.device("meta"):
        empty = Branching(lambda h: h.mean() > 0)
    with pytest.raises(ValueError, match=r"first\.weight has no values yet.*to_empty"):
        nap.plan(empty, torch.randn(3, 6))


CONVOLUTIONS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("conv1d", (torch.ones(2, 4, 9), torch.ones(6, 2, 3)), {"groups": 2}),
    ("conv2d", (torch.ones(2, 4, 9, 8), torch.ones(6, 4, 3, 2), None, 2, (1, 0), 2), {}),
    ("conv2d", (torch.ones(4, 9, 8), torch.ones(6, 4, 3, 3), torch.ones(6)), {"padding": "same"}),
    ("conv3d", (torch.ones(1, 2, 5, 6, 7), torch.ones(3, 2, 2, 2, 2)), {"stride": (1, 2, 3)}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        *CONVOLUTIONS,
        ("linear", (torch.ones(2, 3, 4), torch.ones(5, 4), torch.ones(5)), {}),
        ("matmul", (torch.ones(2, 3, 4), torch.ones(4, 5)), {}),
        ("mm", (torch.ones(3, 4), torch.ones(4, 5)), {}),
        ("addmm", (torch.ones(5), torch.ones(3, 4), torch.ones(4, 5)), {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_shapes_of_products(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]):
    function = getattr(F if name == "linear" else torch, name)
    found, true = product_shape(name, args, kwargs), function(*args, **kwargs)
    assert found is not None
    assert (found.shape, found.dtype) == (true.shape, true.dtype)


def test_the_glance_at_a_weight_sees_what_is_not_zero():
    weight = torch.zeros(3, 5000)
    assert light.is_zero(weight)
    weight[2, 4999] = 1e-30
    assert not light.is_zero(weight)


class Experts(nn.Module):
    """Expert layers in one stack; the input says which of them runs."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(3, 16, 6)), nn.Parameter(torch.randn(3, 6, 8))

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for i in index:
            gate, value = F.linear(x, self.up[i]).chunk(2, -1)
            out = out + F.linear(F.silu(gate) * value, self.down[i])
        return out


def test_experts_that_the_input_chooses_need_no_values(monkeypatch: pytest.MonkeyPatch):
    example = (torch.randn(4, 6), torch.tensor([2, 0]))
    plans = {}
    for is_light in (True, False):
        monkeypatch.setattr(normalize, "is_large", lambda model, is_light=is_light: is_light)
        plans[is_light] = nap.plan(Experts(), example)
    assert plans[True].problems == ()
    assert plans[True].to_json() == plans[False].to_json()
    assert [p.what for p in plans[True].placements] == [
        "LayerNorm on 8 of its 16 features in the product of up"
    ]
