"""What `Projector` refuses, by name, with the reason and the way out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from nap.conversion.placement import Plan
from nap.projection.project import Projector
from nap.weights import PLAN_ATTRIBUTE, Role, Weight, WeightTable
from projection_nets import net, traced, zoo


def with_change(change: Callable[[Any], Any]) -> Any:
    model = net()
    change(model)
    return model


def set_weight(value: Any, row: Any = slice(None)) -> Any:
    return with_change(lambda m: m.get_parameter("3.weight").data[row].fill_(value))


def wrong(**options: Any) -> Projector:
    return Projector(net(), **options)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: wrong(every=0), "every=0"),
        (lambda: wrong(every=True), "every=True"),
        (lambda: wrong(every=1.5), "every=1.5"),
        (lambda: wrong(per="rows"), r"per='rows'.*'tensor', 'row'"),
        (lambda: wrong(output="none"), "output='none'"),
        (lambda: wrong(affine="fixed"), "affine='fixed'"),
        (lambda: wrong(affine="decay", decay=0.0), "decay=0.0"),
        (lambda: wrong(affine="decay", decay=float("nan")), "decay=nan"),
        (lambda: Projector(net(), exclude=["3.weigth"]), r"'3\.weigth' matches no.*did you mean '3\.weight'"),
        (lambda: Projector(net(), exclude=["2"]), "'2' matches no parameter"),
        (lambda: Projector(net(), exclude=[nn.Linear(2, 2)]), "this Linear matches no parameter"),
        (lambda: Projector(net(), exclude=[nn.Parameter(torch.ones(2))]), "this Parameter matches no"),
        (lambda: Projector(net(), exclude=[""]), "no parameter of the model is left to project"),
        (lambda: Projector(nn.LayerNorm(4)), r"none of the model's 2 parameters is projected.*quantised"),
        (lambda: Projector(net(), output="free"), r"never traced.*nap\.normalize_.*exclude"),
        (lambda: Projector(net(), affine="joint"), r"1\.weight.*never traced.*nap\.normalize_.*'decay'"),
        (
            lambda: Projector(
                traced(with_change(lambda m: m.get_parameter("1.bias").requires_grad_(False))), affine="joint"
            ),
            r"1\.weight, 1\.bias: affine='joint' moves both, and one of them is frozen; freeze both",
        ),
        (lambda: wrong(embeddings="small"), "embeddings='small'.*'grow'"),
        (lambda: wrong(branches="none"), "branches='none'.*'grow'"),
        (lambda: Projector(net(), embeddings="free"), r"never traced.*embeddings='free'.*nap\.normalize_"),
        (lambda: Projector(net(), branches="grow"), r"never traced.*branches='grow'.*nap\.normalize_"),
        (lambda: Projector(set_weight(float("nan"), 0)), r"3\.weight: a norm that is not finite"),
        (lambda: Projector(nn.Linear(1, 3), per="row"), "weight: one entry to each norm"),
        (lambda: Projector(net().to("meta")), "no values to measure.*initialise"),
        (lambda: Projector(nn.LazyLinear(3)), "no values to measure.*initialise"),
        (lambda: Projector(traced(net()), affine="joint", exclude=["1.bias"]), r"1\.weight.*move alone"),
        (lambda: Projector(traced(net()), affine="joint", exclude=["1.weight"]), r"1\.bias.*move alone"),
        (
            lambda: Projector(
                traced(with_change(lambda m: [p.data.zero_() for p in m[1].parameters()])), affine="joint"
            ),
            r"1\.weight, 1\.bias: a joint norm that is zero",
        ),
    ],
)
def test_refusals_name_the_thing_the_reason_and_the_way_out(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_a_stacked_weight_without_a_row_axis_is_refused_per_row_only() -> None:
    model = zoo()
    table = WeightTable({"experts": Weight("experts", Role.WEIGHT, stacked=1)})
    setattr(model, PLAN_ATTRIBUTE, Plan(weights=table))
    Projector(model)
    with pytest.raises(ValueError, match="experts: the axis of its rows is not known"):
        Projector(model, per="row")


def with_head(gain: float, axis: int = 0, **more: float) -> Any:
    """Output layers of 4096 entries that are `gain` times 1/√fan_in, fan_in being 1024."""
    model, shape = nn.Module(), (4, 1024) if axis == 0 else (1024, 4)
    model.register_parameter("hidden", nn.Parameter(1e-9 * torch.randn(3, 3)))  # only outputs count
    rows = {"hidden": Weight("hidden", Role.SCALE_INVARIANT)}
    for name, size in {"head": gain, **more}.items():
        model.register_parameter(name, nn.Parameter(torch.full(shape, size / 32)))
        rows[name] = Weight(name, Role.OUTPUT, out_axis=axis)
    setattr(model, PLAN_ATTRIBUTE, Plan(weights=WeightTable(rows)))
    return model


@pytest.mark.parametrize("axis", [0, 1])
def test_an_output_layer_that_starts_near_zero_may_grow(axis: int) -> None:
    for model in (with_head(0.029, axis), with_head(0.01, axis, other=1.0)):  # a policy beside its values
        plan = Projector(model).plan
        assert plan.names("grow") == ["head"]
        assert plan.rows[1].radius == pytest.approx(2.0)  # √4 rows: entries of 1/√fan_in
    assert Projector(with_head(0.01, axis), exclude=["head"]).plan.names("grow") == []
    assert Projector(with_head(0.01, axis), output="free").plan.names("project", "grow") == ["hidden"]
    meant = Projector(with_head(0.01, axis), output="project")
    assert meant.plan.names("project") == ["hidden", "head"]
    assert re.match(r"head: pinned at 0\.01 of.*output='grow'.*gains='small'", meant.plan.advice[0])
    assert f"note: {meant.plan.advice[0]}" in str(meant.plan)
    Projector(with_head(1.0, axis)).load_state_dict(meant.state_dict())  # the same treatment, chosen or not


@pytest.mark.parametrize("axis", [0, 1])
def test_an_output_layer_that_starts_small_may_grow(axis: int) -> None:
    assert Projector(with_head(0.13, axis)).plan.names("grow") == ["head"]
    assert Projector(with_head(0.15, axis)).plan.names("grow") == []
    assert Projector(with_head(0.13, axis), output="project").plan.names("grow") == []
    noisy = Projector(with_head(0.1, axis, mean=0.58)).plan  # σ of a noisy layer beside its μ
    assert noisy.names("grow") == []
    assert noisy.names("project") == ["hidden", "head", "mean"]


@pytest.mark.parametrize(("make", "size"), [(nn.Linear, 0.58), (nn.Conv2d, 0.58), (nn.Embedding, 16.0)])
def test_layers_as_pytorch_starts_them_are_not_small(make: Any, size: float) -> None:
    """The figures that the default compares with: RMS entry · √fan_in."""
    torch.manual_seed(0)
    layer = make(256, 64, 1) if make is nn.Conv2d else make(256, 64) if make is nn.Linear else make(64, 256)
    assert layer.weight.norm().item() / 8 == pytest.approx(size, rel=0.02)


def test_a_layer_that_was_replaced_is_not_projected_in_silence() -> None:
    """A new head for a new task: the plan is of the old one, even where all names are the same."""
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    projector = Projector(model)
    model[3] = nn.Linear(8, 5)
    optimizer = torch.optim.Adam(model.parameters())
    words = r"3\.weight \(another module\): parameters changed since the Projector was built.*build it after"
    with pytest.raises(ValueError, match=words):
        projector.attach(optimizer)
    Projector(model).attach(optimizer)
