"""Values that would spoil a training silently: refused where they come in, named where they arise."""

from __future__ import annotations

import copy
import json
import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import nap
from nap.diagnostics import jacobian_norm
from nap.projection.apply import CHECK_EVERY, DirectionCheck


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


# saved radii


@pytest.mark.parametrize("bad", [math.nan, 0.0, -1.0, math.inf])
def test_radii_that_no_weight_has_are_refused(bad: float) -> None:
    projector = nap.Projector(net())
    before = projector.state_dict()
    state = projector.state_dict()
    state["radii"]["2.weight"].fill_(bad)
    with pytest.raises(ValueError, match=r"^2\.weight: a radius in the state .* load an older checkpoint"):
        projector.load_state_dict(state)
    assert projector.state_dict()["radii"] == before["radii"]


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("radii", 2.5, "radii.2.weight: 2.5 in the state"),
        ("radii", None, "radii.2.weight: None in the state"),
        ("radii", torch.ones(1, 1, dtype=torch.int64), "no tensor of numbers"),
        ("radii", torch.ones(3), r"radii.2.weight: \[3\] in the state"),
        ("updates", -1, "no whole number"),
        ("updates", math.nan, "updates.2.weight: nan in the state"),
        ("updates", True, "no whole number"),
        ("updates", torch.ones(2), "a tensor of shape"),
    ],
)
def test_a_state_of_other_types_is_refused(part: str, value: Any, message: str) -> None:
    projector = nap.Projector(net())
    state = projector.state_dict()
    state[part]["2.weight"] = value
    with pytest.raises(ValueError, match=message):
        projector.load_state_dict(state)


# saved plans


def change_placement(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda body: body["placements"][0].update(changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_placement(action="explode"), "placements.0.: action is 'explode', where 'normalise output'"),
        (change_placement(remove=["weight"]), "'weight' is a weight, and only biases are removed"),
        (change_placement(eps=math.nan), "eps is nan"),
        (change_placement(eps=-1.0), "eps=-1.0 must be"),
        (change_placement(eps=None), "eps is None"),
        (change_placement(gain=0), "gain=0.0 are no sizes"),
        (change_placement(width="wide"), "width is 'wide', where a whole number belongs"),
        (change_placement(width=10**30), "width is 1000"),
        (change_placement(layout="diagonal"), "layout is 'diagonal'"),
        (change_placement(sections=[{"length": "x"}]), "length is 'x'"),
        (change_placement(sections=7), "sections is 7, where a list belongs"),
        (change_placement(colour="red"), "'colour' is not known"),
        (lambda body: body["placements"][0].pop("module"), "module is missing"),
        (lambda body: body.pop("options"), "options is missing"),
        (lambda body: body.pop("weights"), "'weights' is missing"),
        (lambda body: body["weights"][0].update(role="king"), "role is 'king', and must be one of"),
        (lambda body: body["options"].update(norm="batch"), "norm is 'batch'"),
        (lambda body: body["options"].update(eps=math.nan), "eps is nan"),
        (lambda body: body.update(placements={}), "placements is {}, where a list belongs"),
        (lambda body: body.update(left_alone=[None]), "is no object with names"),
    ],
)
def test_a_plan_that_was_made_up_is_refused(change: Callable[[dict[str, Any]], None], message: str) -> None:
    body = json.loads(nap.plan(net(), torch.randn(2, 6)).to_json())
    change(body)
    with pytest.raises(ValueError, match="this text is no plan that nap saved") as caught:
        nap.Plan.from_json(json.dumps(body))
    assert message.replace(".", "") in str(caught.value).replace("[", "").replace("]", "").replace(".", "")


@pytest.mark.parametrize("text", ["", "[]", "null", "7", '"plan"', "{}", "[" * 100_000, '{"weights": 1}'])
def test_a_text_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="this text is no plan that nap saved"):
        nap.Plan.from_json(text)


def test_a_plan_removes_vectors_alone() -> None:
    model = net()
    body = json.loads(nap.plan(model, torch.randn(2, 6)).to_json())
    body["placements"][0] |= {"weights": [], "zero": ["weight"], "remove": []}
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="takes 'weight' of '0' for a bias, but it has 2 axes"):
        nap.normalize_(model, nap.Plan.from_json(json.dumps(body)))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# weights that are lost in training


@pytest.mark.filterwarnings("ignore:.*has no norms")
@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf])
@pytest.mark.parametrize("per", ["tensor", "row"])
def test_a_weight_that_is_lost_is_named_once(bad: float, per: Any) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    projector = nap.Projector(model, per=per).attach(optimizer)
    model(torch.randn(4, 6)).square().sum().backward()
    optimizer.step()
    model.get_parameter("2.weight").data[0 if per == "row" else slice(None)] = bad
    with pytest.warns(UserWarning, match=r"^2\.weight: became zero, infinite or NaN in training") as heard:
        optimizer.step()
    assert len(heard) == 1
    for again in (projector, pickle.loads(pickle.dumps(projector))):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again.project_()


def test_a_pickled_projector_from_before_such_warnings_still_loads() -> None:
    projector = nap.Projector(net())
    state = projector.__getstate__()
    del state["_direction"]
    again = nap.Projector.__new__(nap.Projector)
    again.__setstate__(state)
    again.project_()
    assert again.norm_ratios() == pytest.approx({"0.weight": 1.0, "2.weight": 1.0})


def test_where_norms_are_not_known_every_hundredth_projection_is_looked_at() -> None:
    check = DirectionCheck()
    assert [check.is_due([]) for _ in range(2 * CHECK_EVERY)].count(True) == 2


# what is no model, optimizer or number


def odd(value: Any) -> Any:
    """A value of a wrong type, which a type checker would refuse."""
    return value


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nap.Projector(odd(None)), "Projector takes a torch.nn.Module, not None"),
        (lambda: nap.Projector(odd({})), "not a dict"),
        (lambda: nap.Projector(net(), decay=odd("much"), affine="decay"), "decay='much'"),
        (
            lambda: nap.schedules.linear(odd(None), total_steps=3, end_value=0.0),
            "torch.optim.Optimizer, not None",
        ),
        (lambda: nap.schedules.linear(sgd(), total_steps=odd("3"), end_value=0.0), "total_steps is '3'"),
        (lambda: nap.schedules.linear(sgd(), total_steps=odd(math.nan), end_value=0.0), "total_steps is nan"),
        (lambda: nap.schedules.linear(sgd(), total_steps=odd(math.inf), end_value=0.0), "total_steps is inf"),
        (lambda: nap.schedules.linear(sgd(), total_steps=3, end_value=odd(None)), "end_value is None"),
        (lambda: nap.schedules.linear(sgd(), total_steps=3, end_value=0.0, end_at=odd("x")), "end_at is x"),
        (lambda: nap.plan(odd(None), torch.ones(2, 6)), "nap works on a torch.nn.Module"),
        (lambda: nap.normalize_(odd(None), torch.ones(2, 6)), "nap works on a torch.nn.Module"),
        (lambda: nap.weight_groups(odd(None)), "torch.nn.Module, not None"),
    ],
)
def test_errors_are_in_our_words(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD(net().parameters(), lr=0.1)


# numbers that are none


@pytest.mark.parametrize("wrt", ["inputs", "parameters"])
@pytest.mark.parametrize("probes", [None, 2])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_the_jacobian_of_what_is_no_number_is_none(wrt: Any, probes: int | None, bad: float) -> None:
    inputs = torch.randn(4, 6)
    inputs[1, 2] = bad
    assert jacobian_norm(net(), inputs, wrt=wrt, probes=probes).isnan()
