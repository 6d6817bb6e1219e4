"""What conversions say of every weight, judged below autograd: right, or refused by name."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap
from nap.weights import PLAN_ATTRIBUTE, WeightTable
from zoo import (
    handmade,
    huggingface,
    huggingface_more,
    huggingface_senses,
    stable_baselines,
    unfamiliar_agents,
    unfamiliar_attentions,
    unfamiliar_bends,
    unfamiliar_conditioned,
    unfamiliar_domains,
    unfamiliar_fields,
    unfamiliar_flows,
    unfamiliar_graphs,
    unfamiliar_libraries,
    unfamiliar_masked,
    unfamiliar_multiplied,
    unfamiliar_opaque,
    unfamiliar_paired,
    unfamiliar_queries,
    unfamiliar_recurrences,
    unfamiliar_reduced,
    unfamiliar_remembering,
    unfamiliar_reparametrised,
    unfamiliar_scenes,
    unfamiliar_shared,
    unfamiliar_structured,
    unfamiliar_texts,
)
from zoo.entry import Entry
from zoo.soundness import lost_gradients, unsound
from zoo.written import Written, mlp

UNFAMILIAR = [
    *unfamiliar_conditioned.FAMILY,
    *unfamiliar_structured.FAMILY,
    *unfamiliar_reparametrised.FAMILY,
    *unfamiliar_opaque.FAMILY,
    *unfamiliar_domains.FAMILY,
    *unfamiliar_remembering.FAMILY,
    *unfamiliar_paired.FAMILY,
    *unfamiliar_shared.FAMILY,
    *unfamiliar_scenes.FAMILY,
    *unfamiliar_graphs.FAMILY,
    *unfamiliar_texts.FAMILY,
    *unfamiliar_agents.FAMILY,
    *unfamiliar_multiplied.FAMILY,
    *unfamiliar_queries.FAMILY,
    *unfamiliar_reduced.FAMILY,
    *unfamiliar_recurrences.FAMILY,
    *unfamiliar_attentions.FAMILY,
    *unfamiliar_bends.FAMILY,
    *unfamiliar_flows.FAMILY,
    *unfamiliar_fields.FAMILY,
    *unfamiliar_libraries.FAMILY,
    *unfamiliar_masked.FAMILY,
]
PUBLIC = [*huggingface.ENTRIES, *huggingface_more.ENTRIES, *huggingface_senses.ENTRIES]
ENTRIES = [
    *UNFAMILIAR,
    *handmade.ENTRIES[::2],
    *stable_baselines.ENTRIES,
    *PUBLIC[::20],
]  # all of them: benchmarks/zoo.py


@pytest.mark.parametrize(
    "entry",
    ENTRIES,
    ids=lambda entry: f"{entry.family}: {entry.name}",
)
@pytest.mark.filterwarnings("default")  # what other libraries warn of is theirs
def test_right_or_refused(entry: Entry):
    model, args, kwargs = entry.build()
    if (refusal := refused(model, args, kwargs, entry)) is not None:
        assert entry.refusal, refusal
        assert re.search(entry.refusal, refusal, re.IGNORECASE)
        return
    keep = entry.options.get("batch_norm") == "keep"
    plan = vars(model)[PLAN_ATTRIBUTE]
    assert unsound(model, plan, args, kwargs, batch_statistics=keep) == []
    assert lost_gradients(entry.build()[0], model, args, kwargs) == []
    with torch.no_grad():
        leaves = torch.utils._pytree.tree_leaves(model(*args, **kwargs))
    assert all(leaf.isfinite().all() for leaf in leaves if isinstance(leaf, Tensor))


def refused(model: nn.Module, args: Any, kwargs: Any, entry: Entry) -> str | None:
    """Why a model cannot be converted; None once it is."""
    try:
        nap.normalize_(model, args, kwargs, **entry.options)
    except ValueError as refusal:
        return str(refusal)
    return None


X = torch.linspace(-1, 1, 12).reshape(2, 6)


@pytest.mark.parametrize(
    ("bend", "what"),
    [
        (F.relu, "relu"),
        (torch.erf, "erf"),
        (torch.round, "round"),
        (lambda h: h.sort(-1).values, "sort"),
        (lambda h: torch.where(h > 0, h, 0 * h), "gt"),
        (lambda h: h * h, "power or product"),
        (lambda h: h / (1 + h.abs()), "abs"),
        (lambda h: h.cummax(-1).values, "cummax"),
        (lambda h: F.hardshrink(h), "hardshrink"),
        (lambda h: torch.bucketize(h, torch.tensor([0.0, 0.1])).to(h), "bucketize"),
    ],
)
def test_whatever_bends_is_seen_without_a_list(bend, what: str):
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(bend(self.first(x)))

    torch.manual_seed(0)
    model = Plain().eval()
    plan = nap.Plan(weights=nap.weight_groups(model))  # roles "weight": nothing is claimed
    assert any("first.weight" in line and what in line for line in unsound(model, plan, (X,), {}))


@pytest.mark.parametrize(
    "straight",
    [
        lambda h: h.flip(-1).roll(1, -1),
        lambda h: torch.fft.irfft(torch.fft.rfft(h), n=h.shape[-1]),
        lambda h: F.layer_norm(h, (8,)),
        lambda h: h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6),
        lambda h: h.masked_fill(torch.eye(8).bool()[:2], 0.0).cumsum(-1),
        lambda h: F.pad(h, (1, 1))[..., 1:-1].clone(),
    ],
)
def test_what_is_linear_or_a_norm_is_not(straight):
    torch.manual_seed(0)
    model = Written(
        lambda net, x: net.last(straight(net.first(x))),
        first=nn.Linear(6, 8, bias=False),
        last=nn.Linear(8, 3),
    ).eval()
    assert unsound(model, nap.Plan(weights=nap.weight_groups(model)), (X,), {}) == []


def converted() -> tuple[nn.Sequential, nap.Plan]:
    torch.manual_seed(0)
    net = mlp(6, 8, 3)
    return net, nap.normalize_(net, X)


def test_a_norm_that_was_lost_is_seen():
    net, plan = converted()
    net[0]._forward_hooks.clear()
    assert any("0.weight is called scale-invariant" in line for line in unsound(net, plan, (X,), {}))


def test_a_bias_in_front_of_a_norm_is_seen():
    net, plan = converted()
    net[0].bias = nn.Parameter(torch.ones(8))
    assert "0.bias was left in front of its norm" in unsound(net, plan, (X,), {})


def test_a_weight_that_is_called_a_bias_is_seen():
    net, plan = converted()
    rows = {**plan.weights, "2.weight": replace(plan.weights["2.weight"], role=nap.Role.BIAS)}
    net._nap_plan = replace(plan, weights=WeightTable(rows))  # type: ignore[assignment]
    assert any("enters a product, and its role is bias" in line for line in unsound(net, plan, (X,), {}))


def test_gradients_that_a_conversion_takes_away_are_seen():
    def forward(net: Any, x: Tensor, cut: bool) -> Tensor:
        h = net.a(x)
        return net.b(F.relu(h.detach() if cut else h))

    torch.manual_seed(0)
    net = Written(lambda net, x: forward(net, x, False), a=nn.Linear(6, 8), b=nn.Linear(8, 3))
    cut = Written(lambda net, x: forward(net, x, True), a=nn.Linear(6, 8), b=nn.Linear(8, 3))
    assert lost_gradients(net, net, (X,), {}) == []
    assert lost_gradients(net, cut, (X,), {}) == ["a.weight has no gradient", "a.bias has no gradient"]


@pytest.mark.parametrize(
    "entry",
    [*unfamiliar_multiplied.FAMILY, *unfamiliar_queries.FAMILY, *unfamiliar_reduced.FAMILY],
    ids=lambda entry: f"{entry.family}: {entry.name}",
)
@pytest.mark.filterwarnings("default")  # what other libraries warn of is theirs
def test_verify_and_coverage_say_the_same(entry: Entry):
    if entry.refusal:
        pytest.skip("refused, as it should be")
    model, args, kwargs = entry.build()
    plan = nap.normalize_(model, args, kwargs)
    verified = nap.verify(model, args, kwargs)
    assert set(verified.left_alone) <= {note.name for note in plan.left_alone}
    covered = {row.name: row for row in nap.coverage(model, args, kwargs)}
    assert set(covered) == {name for name, p in model.named_parameters() if p.ndim > 1}
    settled = (nap.Role.SCALE_INVARIANT, nap.Role.NORMALISED)
    assert {n for n, row in covered.items() if row.normalised} == {
        n for n in covered if plan.weights[n].role in settled
    }
    assert all(row.reason for row in covered.values())
