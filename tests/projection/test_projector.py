"""`Projector`: the function stays the same, every kind of weight has its norms, the plan says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from nap.conversion.placement import Plan
from nap.projection.project import Projector
from nap.weights import PLAN_ATTRIBUTE, Role, Weight, WeightTable
from projection_nets import F64, net, traced, worst, zoo

# --- the function stays the same


def grown(model: nn.Module, projector: Projector, factors: Callable[[Tensor], Tensor]) -> None:
    for name in projector.norm_ratios():
        weight = model.get_parameter(name)
        weight.data *= factors(weight)


def test_per_tensor_keeps_a_layernorm_net() -> None:
    model = net(eps=0.0).to(F64)
    projector, x = Projector(model), torch.randn(9, 6, dtype=F64)
    before = model(x)
    grown(model, projector, lambda w: torch.tensor(3.7, dtype=F64))
    projector.project_()
    assert worst(projector) < 1e-14
    assert_close(model(x), before, rtol=0, atol=1e-12)


def test_per_row_keeps_a_batchnorm_net() -> None:
    model = net(nn.BatchNorm1d, eps=1e-30).to(F64)
    projector, x = Projector(model, per="row"), torch.randn(9, 6, dtype=F64)
    before = model(x)
    grown(model, projector, lambda w: 0.5 + torch.rand(len(w), 1, dtype=F64))
    assert worst(projector) > 0.05
    projector.project_()
    assert worst(projector) < 1e-14
    assert_close(model(x), before, rtol=0, atol=1e-12)


def test_joint_keeps_a_relu_layernorm_net_and_is_refused_for_gelu() -> None:
    # the last norm is the output, whose scale is the function's: it is left out
    model = traced(net(eps=0.0).to(F64))
    projector, x = Projector(model, affine="joint", exclude=["7"]), torch.randn(9, 6, dtype=F64)
    before = model(x)
    projector.project_()
    assert_close(model(x), before, rtol=0, atol=1e-12)
    norm = model.get_submodule("1")
    assert_close(sum(p.square().sum() for p in norm.parameters()), torch.tensor(8.0, dtype=F64))
    with pytest.raises(ValueError, match=r"1\.weight.*not ReLU-like.*affine='decay'"):
        Projector(traced(net(act=nn.GELU), homogeneous=False), affine="joint")


def test_joint_takes_a_scale_without_offset_and_decay_pulls_to_one_and_zero() -> None:
    model = traced(net(nn.RMSNorm))
    Projector(model, affine="joint").project_()
    assert_close(model.get_parameter("4.weight").norm(), torch.tensor(7.0).sqrt())
    model = net()
    scale, offset = (model.get_parameter(f"1.{leaf}").detach().clone() for leaf in ("weight", "bias"))
    Projector(model, affine="decay", decay=0.25).project_()
    assert_close(model.get_parameter("1.weight"), 0.75 * scale + 0.25)
    assert_close(model.get_parameter("1.bias"), 0.75 * offset)


# --- every kind of weight


@pytest.mark.parametrize("per", ["tensor", "row"])
def test_every_kind_of_weight_keeps_its_norms(per: Any) -> None:
    model = zoo()
    projector = Projector(model, per=per)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    rows = {row.name: row for row in projector.plan.rows}
    assert "head.weight" not in rows  # tied to the table: once
    expected = dict.fromkeys(["conv1.weight", "conv2.weight", "conv3.weight", "up.weight", "table.weight"], 1)
    expected["experts"] = 3
    if per == "row":  # up: (in, out, ...), experts: (expert, in, out)
        expected = {**dict.fromkeys(expected, 3), "table.weight": 5, "experts": 6}
    assert {name: row.norms for name, row in rows.items() if row.norms} == expected
    for name in expected:
        model.get_parameter(name).data *= 2
    model.experts.data[1] *= 5  # must not leak into the other experts
    assert worst(projector) > 0.9
    projector.project_()
    assert worst(projector) <= 1e-6
    for name, parameter in model.named_parameters():
        assert_close(parameter.detach(), before[name])


def test_the_plan_can_be_read_and_saved() -> None:
    projector = Projector(traced(net()), output="free", exclude=["0"])
    lines = str(projector.plan).splitlines()
    assert lines[0].split("  ")[0] == "parameter"
    assert lines[0].endswith("role             step 2     norm kept at  reason")
    assert [line.split()[0] for line in lines[1:]] == [name for name, _ in net().named_parameters()]
    assert lines[1].split()[-3:] == ["left", "free", "excluded"]
    assert lines[4].split()[1:4] == ["scale-invariant", "projected", f"{projector.plan.rows[3].radius:.4g}"]
    assert lines[4].endswith("the function stays the same")
    assert lines[7].endswith("output='free'")
    rows = json.loads(json.dumps(projector.plan.to_json()))
    assert rows[3]["radius"] == pytest.approx(net().get_parameter("3.weight").norm().item())
    assert rows[0]["radius"] is None
    assert projector.plan.names("project") == ["3.weight"]
    assert "only where BatchNorm follows" in Projector(traced(net()), per="row").plan.rows[0].reason


def test_unused_matrices_are_projected_and_unused_vectors_are_not() -> None:
    model = nn.Linear(3, 4)
    rows = {name: Weight(name, Role.UNUSED) for name, _ in model.named_parameters()}
    setattr(model, PLAN_ATTRIBUTE, Plan(weights=WeightTable(rows)))
    plan = Projector(model).plan
    assert plan.names("project") == ["weight"]
    assert "never used it" in plan.rows[0].reason


@pytest.mark.parametrize(
    "name",
    ["6", "6.weight", "parameter", "module", "list of both"],
)
def test_exclude_takes_names_parameters_and_modules(name: str) -> None:
    model = net()
    last: Any = model.get_submodule("6")
    entry = {"parameter": last.weight, "module": last, "list of both": ["6.weight", last]}.get(name, name)
    assert Projector(model, exclude=entry).plan.names("project") == ["0.weight", "3.weight"]


def test_a_tied_weight_is_excluded_by_either_name() -> None:
    assert "table.weight" not in Projector(zoo(), exclude=["head.weight"]).plan.names("project")
