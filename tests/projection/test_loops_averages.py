"""Averages of the weights (EMA, SWA) of a projected network: they lie inside of the sphere."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, StochasticWeightAveraging
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.testing import assert_close

import lightning_runs as lightnings
import nap
from nap.integrations.lightning import NaPCallback
from projection_nets import F64, step, worst

EMA: dict[str, Any] = {"multi_avg_fn": get_ema_multi_avg_fn(0.8)}


def converted(*norms: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs in (6, 16, 16):
        layers += [nn.Linear(inputs, 16, bias=False), *(norm(16) for norm in norms), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(16, 5, bias=False)).to(F64)
    nap.normalize_(model, torch.randn(4, 6, dtype=F64), **options)
    return model


def averaged(model: Any, projector: nap.Projector, **options: Any) -> AveragedModel:
    """An average over ten updates of a rate at which directions change much."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    average = AveragedModel(model, **options)
    projector.attach(optimizer)
    for seed in range(10):
        step(model, optimizer, seed)
        average.update_parameters(model)
    return average


def ratios(projector: nap.Projector, average: AveragedModel) -> dict[str, float]:
    """‖W̄‖/ρ of each projected weight."""
    norms = {row.name: row.radius for row in projector.plan.rows if row.radius is not None}
    return {name: average.module.get_parameter(name).norm().item() / ρ for name, ρ in norms.items()}


@pytest.mark.parametrize("options", [{}, EMA], ids=["SWA", "EMA"])
def test_an_average_is_shorter_and_its_function_is_that_on_the_sphere(options: dict[str, Any]) -> None:
    model = converted()
    projector = nap.Projector(model, output="free")
    average, x = averaged(model, projector, **options), torch.randn(9, 6, dtype=F64)
    assert max(ratios(projector, average).values()) < 0.999
    before = average(x)
    projector.project_(average)
    assert list(ratios(projector, average).values()) == pytest.approx([1.0] * 3, abs=1e-12)
    assert_close(average(x), before, rtol=0, atol=1e-10)  # to rescale them is no change


def test_a_projected_output_layer_gets_its_scale_back() -> None:
    model = converted()
    projector = nap.Projector(model)
    average, x = averaged(model, projector), torch.randn(9, 6, dtype=F64)
    before, short = average(x), ratios(projector, average)["6.weight"]
    projector.project_(average)
    assert_close(average(x), before / short, rtol=1e-9, atol=0)


def test_statistics_of_batch_norm_are_taken_after_it() -> None:
    """Under BatchNorm alone the running statistics are those of the longer weights of training."""
    model = converted(nn.BatchNorm1d, batch_norm="keep")
    projector, x = nap.Projector(model, output="free"), torch.randn(64, 6, dtype=F64)
    average = averaged(model, projector)
    projector.project_(average)
    update_bn([x], average)
    after = average.eval()(x)
    for name in projector.plan.names("project"):
        average.module.get_parameter(name).data *= 0.9  # as if it had stayed inside
    update_bn([x], average)
    assert_close(average.eval()(x), after, rtol=1e-4, atol=1e-5)  # the eps of BatchNorm


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:The number of training batches")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning", "ignore:Swapping scheduler")
@pytest.mark.parametrize(
    "averaging",
    [lambda: EMAWeightAveraging(decay=0.8), lambda: StochasticWeightAveraging(0.05, 1)],
    ids=["EMA", "SWA"],
)
def test_averaging_callbacks_of_lightning(averaging: Any, tmp_path: Any) -> None:
    model, callback = lightnings.Classifier(), NaPCallback()
    nap.normalize_(model, torch.zeros(2, 5))
    trainer: lightning.Trainer = lightnings.trainer(tmp_path, callback, averaging(), max_epochs=4)
    trainer.fit(model, lightnings.data())  # it leaves the average in the model
    assert callback.projector is not None
    assert set(callback.projector.updates.values()) == {4 * lightnings.BATCHES}
    assert 1e-4 < worst(callback.projector) < 0.5
    callback.projector.project_()
    assert worst(callback.projector) <= 1e-6
