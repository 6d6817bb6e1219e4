"""per="row" of transposed convolutions in groups: each group has output features of its own."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import nap
from nap.weights import Weight, WeightTable

X = torch.randn(3, 4, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv_transpose2d(x, self.weight, groups=2)


def model_of(layer: nn.Module) -> Any:
    tail = (nn.BatchNorm2d(6, eps=1e-12), nn.ReLU(), nn.Flatten(), nn.Linear(294, 2))
    return nn.Sequential(layer, *tail).double().train()


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("functional", [False, True])
def test_a_norm_for_each_output_of_each_group_leaves_the_function(traced: bool, functional: bool) -> None:
    if functional and not traced:
        pytest.skip("of a parameter that was never traced no one can tell")
    model = model_of(Functional() if functional else nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False))
    if traced:
        nap.normalize_(model, X, batch_norm="keep")
    projector = nap.Projector(model, per="row", output="free" if traced else None)
    before, weight = model(X), model[0].weight
    rows = weight.detach().unflatten(0, (2, 2)).square().sum((1, 3, 4)).sqrt()
    assert {row.name: row.norms for row in projector.plan.rows}["0.weight"] == 6
    scales = torch.linspace(0.5, 3, 6, dtype=torch.float64).view(2, 1, 3, 1, 1)
    weight.data.view(2, 2, 3, 3, 3).mul_(scales)
    assert_close(model(X), before, rtol=1e-6, atol=1e-6)
    assert projector.norm_ratios()["0.weight"] == pytest.approx(3.0)
    projector.project_()
    assert_close(weight.detach().unflatten(0, (2, 2)).square().sum((1, 3, 4)).sqrt(), rows)
    assert_close(model(X), before, rtol=1e-6, atol=1e-6)
    again = nap.Projector(model, per="row", output="free" if traced else None)
    again.load_state_dict(projector.state_dict())


def test_rows_of_a_table_that_was_saved_before_there_were_groups() -> None:
    table = WeightTable({"w": Weight("w", nap.Role.WEIGHT, groups=2)})
    saved = [{key: value for key, value in row.items() if key != "groups"} for row in table.to_json()]
    assert WeightTable.from_json(saved)["w"].groups == 1
    assert WeightTable.from_json(table.to_json())["w"].groups == 2
