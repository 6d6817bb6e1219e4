"""Networks broken on purpose, one cause at a time, most of them by training: each cause is found."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap
from healthy_nets import Setup, digits, mlp, on_digits, policy
from nap.diagnostics.doctor import Diagnosis, diagnose, diagnose_log
from nap.diagnostics.doctor.growth import FRESH
from nap.integrations.monitor import Monitor
from nap.projection.misuse import MisuseWarning
from nap.schedules import linear


def look(setup: Setup, start: Diagnosis | None = None) -> Diagnosis:
    return diagnose(setup.model, setup.optimizer, setup.probe, loss=setup.loss, start=start)


def relabel(setup: Setup, seed: int) -> None:
    """A new task: random labels for 512 digits."""
    x = digits()[0][:512]
    y = torch.randint(10, (512,), generator=torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(seed)

    def batch() -> tuple[Tensor, Tensor]:
        chosen = torch.randint(512, (64,), generator=generator)
        return x[chosen], y[chosen]

    setup.batches, setup.loss = batch, lambda out: F.cross_entropy(out, y[:256])


def with_layer_norms(width: int = 64) -> nn.Sequential:
    hidden = [nn.Linear(64, width), nn.LayerNorm(width), nn.ReLU()]
    more = [nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU()]
    return nn.Sequential(*hidden, *more, nn.Linear(width, 10))


def test_units_that_a_high_rate_killed_and_features_that_collapsed() -> None:
    torch.manual_seed(0)
    setup = on_digits(mlp(), lr=0.03)
    first = look(setup)
    for task in range(3):
        relabel(setup, task)
        setup.train(100)
    found = look(setup, first)
    assert {"units are dead", "features collapsed"} <= set(found.names)
    dead = next(finding for finding in found.findings if finding.name == "units are dead")
    assert dead.where == "1, 3"
    assert "nap.normalize_" in dead.advice
    assert found.numbers["dead/1"] > 0.9


def test_a_network_whose_gradients_died_out() -> None:
    torch.manual_seed(0)
    setup = on_digits(mlp(), lr=0.03)
    for task in range(6):
        relabel(setup, task)
        setup.train(100)
    setup.model[0].bias.data.fill_(-1e3)  # type: ignore[index]
    found = look(setup)
    assert "gradients are zero" in found.names
    assert found.findings[0].severity == "critical"


def test_units_that_a_change_of_task_linearized() -> None:
    torch.manual_seed(0)
    setup = on_digits(with_layer_norms())
    setup.train(1500)
    first = look(setup)
    relabel(setup, 1)
    setup.train(30)
    found = look(setup, first)
    assert "units are linearized" in found.names
    assert found.numbers["linearized/5"] > 0.6 > first.numbers["linearized/5"]


def test_weights_that_grew_behind_norms_lower_the_effective_rate() -> None:
    torch.manual_seed(0)
    setup = on_digits(with_layer_norms(), lr=1e-2)
    first = look(setup)
    for task in range(5):
        relabel(setup, task)
        setup.train(150)
    found = look(setup, first)
    (finding,) = [f for f in found.findings if f.name == "weights have grown, and are not projected"]
    assert "0.weight" in finding.where
    assert "Projector(model).attach(optimizer)" in finding.advice
    growth = found.numbers["size/0.weight"] / FRESH
    assert f"×{growth:.3g}" in finding.measure
    assert "weights have grown, and are not projected" in look(setup).names  # without the first, too


def test_a_head_that_grew() -> None:
    torch.manual_seed(0)
    model = mlp()
    setup = on_digits(model)
    head: list[Any] = list(model[4].parameters())
    body: list[Any] = [p for p in model.parameters() if all(p is not h for h in head)]
    groups: list[dict[str, Any]] = [{"params": body}, {"params": head, "lr": 0.1}]
    setup.optimizer = torch.optim.Adam(groups, lr=1e-4)
    first = look(setup)
    for task in range(3):
        relabel(setup, task)
        setup.train(150)
    found = look(setup, first)
    assert "the output layer has grown" in found.names
    assert "weights have grown" not in found.names


def test_second_moments_of_a_task_that_is_over() -> None:
    torch.manual_seed(0)
    setup = on_digits(with_layer_norms())
    first = look(setup)
    setup.train(1500)
    assert look(setup, first).healthy  # solved: gradients are small behind large moments, and no fault
    relabel(setup, 1)
    found = look(setup, first)
    assert found.names == ("Adam's second moments are far smaller than gradients now",)
    assert "optimizer.state.clear()" in found.findings[0].advice
    setup.train(70)
    found = look(setup, first)
    assert "Adam's second moments are far larger than gradients now" in found.names
    setup.optimizer.state.clear()
    setup.train(20)
    assert not any("moments" in name for name in look(setup, first).names)


def train_by_hand(setup: Setup) -> None:
    """Updates of which no hook knows."""
    for _ in range(50):
        x, y = setup.batches()
        F.cross_entropy(setup.model(x), y).backward()
        with torch.no_grad():
            for p in setup.model.parameters():
                p.sub_(0.3 * p.grad)  # type: ignore[operator]
                p.grad = None


def test_a_projector_beside_which_weights_move() -> None:
    torch.manual_seed(0)
    setup = on_digits(mlp(), nap_too=True)
    setup.train(50)
    assert look(setup).healthy
    with pytest.warns(UserWarning, match="not projected"):
        train_by_hand(setup)
    found = look(setup)
    assert "projection does not act" in found.names
    assert "projector.project_()" in found.findings[0].advice


def test_a_rate_too_high_for_the_sphere() -> None:
    torch.manual_seed(0)
    setup = on_digits(mlp(), nap_too=True, lr=2e-2)
    setup.train(20)
    found = look(setup)
    (finding,) = [f for f in found.findings if f.name == "learning rate too high on the sphere"]
    step = found.numbers["step/2.weight"]
    assert step == pytest.approx(2e-2 / (128**-0.5 / 3**0.5), rel=0.02)
    assert "divide the rate by 4" in finding.advice


def test_a_schedule_that_has_ended() -> None:
    torch.manual_seed(0)
    setup = on_digits(mlp())
    schedule = linear(setup.optimizer, total_steps=50, end_value=0.0)
    first = look(setup)
    for _ in range(60):
        setup.train(1)
        schedule.step()
    found = look(setup, first)
    assert {"learning rate is about zero", "the schedule has ended"} == set(found.names)
    assert any("restart()" in finding.advice for finding in found.findings)
    assert look(setup).names == found.names  # its peak is known from the scheduler


def test_tanh_that_saturates() -> None:
    torch.manual_seed(0)
    setup = policy()
    setup.optimizer = torch.optim.Adam(setup.model.parameters(), lr=0.1)
    setup.train(100)
    found = look(setup)
    assert "outputs are saturated" in found.names
    assert found.numbers["saturated/3"] > 0.6


def test_scales_and_offsets_that_ran_away() -> None:
    torch.manual_seed(0)
    setup = on_digits(mlp(), nap_too=True)
    usual = setup.optimizer
    setup.optimizer = torch.optim.Adam(
        [p for name, p in setup.model.named_parameters() if "nap_norm" in name], lr=0.2
    )
    for task in range(4):
        relabel(setup, task)
        setup.train(150)
    found = diagnose(setup.model, usual, setup.probe, loss=setup.loss)
    assert "scales and offsets have grown" in found.names


def test_numbers_that_are_none() -> None:
    torch.manual_seed(0)
    setup = on_digits(mlp(), kind=torch.optim.SGD, lr=1e6)
    setup.train(10)
    found = look(setup)
    assert found.findings[0].name == "NaN or infinity"
    assert found.findings[0].severity == "critical"
    assert found.to_json()["healthy"] is False


class Forgetful(nn.Module):
    """One layer is never called, and what enters the head is detached."""

    def __init__(self, detach: bool = False):
        super().__init__()
        self.body, self.extra, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.detach = detach

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x).relu()
        return self.head(h.detach() if self.detach else h)


def test_layers_that_nothing_reaches() -> None:
    setup = on_digits(Forgetful())
    found = look(setup)
    assert found.names == ("layers are not reached",)
    assert found.findings[0].where == "extra.weight, extra.bias"
    cut = diagnose(setup.model, setup.optimizer, setup.probe, loss=lambda out: out.detach().mean())
    assert cut.findings[0].measure.startswith("6 trainable weights have no path to the loss")
    setup = on_digits(Forgetful(detach=True))
    assert look(setup).findings[0].where == "body.weight, body.bias, extra.weight, extra.bias"


def test_an_optimizer_made_before_the_norms() -> None:
    setup = on_digits(mlp())
    nap.normalize_(setup.model, setup.probe[:2])
    found = diagnose(setup.model, setup.optimizer, setup.probe)  # that takes no gradients
    assert found.names == ("weights are not in the optimizer",)
    assert "0.nap_norm.weight" in found.findings[0].where


def test_weight_decay_on_projected_weights() -> None:
    torch.manual_seed(0)
    setup = on_digits(mlp())
    nap.normalize_(setup.model, setup.probe[:2])
    setup.optimizer = torch.optim.AdamW(setup.model.parameters(), weight_decay=0.1)
    with pytest.warns(MisuseWarning, match="weight decay"):
        nap.Projector(setup.model).attach(setup.optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the diagnosis itself warns of nothing
        found = look(setup)
    assert found.names == ("weight decay on projected weights",)
    assert "projector.param_groups" in found.findings[0].advice


def test_a_projector_that_was_never_attached() -> None:
    torch.manual_seed(0)
    setup = on_digits(mlp())
    nap.normalize_(setup.model, setup.probe[:2])
    setup.optimizer = torch.optim.Adam(setup.model.parameters(), lr=1e-3)
    assert look(setup).names == ()  # norms alone are a choice
    nap.Projector(setup.model)  # gone at once
    setup.train(20)
    found = look(setup)
    assert found.names == ("the projector is not attached",)
    assert "attach(optimizer)" in found.findings[0].advice
    projector = nap.Projector(setup.model)
    assert look(setup).names == ("the projector is not attached",)
    projector.project_()
    assert look(setup).names == ()


def test_a_projector_that_came_after_the_training() -> None:
    torch.manual_seed(0)
    setup = on_digits(mlp())
    nap.normalize_(setup.model, setup.probe[:2])
    setup.optimizer = torch.optim.Adam(setup.model.parameters(), lr=1e-3)
    setup.train(20)
    projector = nap.Projector(setup.model).attach(setup.optimizer)
    found = look(setup)
    assert found.names == ("the projector has seen no update",)
    assert "counts 20 updates" in found.findings[0].measure
    setup.train(1)
    assert look(setup).names == ()
    assert all(count == 1 for count in projector.updates.values())


def test_the_default_weight_decay_of_adamw_on_projected_weights() -> None:
    torch.manual_seed(0)
    setup = on_digits(mlp())
    nap.normalize_(setup.model, setup.probe[:2])
    projector = nap.Projector(setup.model)
    setup.optimizer = torch.optim.AdamW(setup.model.parameters(), lr=1e-3)
    projector.attach(setup.optimizer)
    setup.train(20)
    found = look(setup)
    assert found.names == ("weight decay does nothing to projected weights",)
    assert found.healthy  # a note
    assert "0.weight" in found.findings[0].where
    setup.optimizer = torch.optim.AdamW(projector.param_groups(weight_decay=0.1), lr=1e-3)
    projector.detach()
    projector.attach(setup.optimizer)
    setup.train(20)
    assert look(setup).names == ()


# from a log alone


def monitored(setup: Setup, train: Callable[[], Any]) -> list[dict[str, float]]:
    rows: list[dict[str, float]] = []
    monitor = Monitor(setup.model, setup.probe, lambda numbers: None, every=50)
    monitor._log = lambda numbers: rows.append({"step": monitor.updates, **numbers})
    monitor.attach(setup.optimizer)
    train()
    return rows


def test_a_log_shows_rates_that_fell_and_since_when() -> None:
    torch.manual_seed(0)
    setup = on_digits(with_layer_norms(32), lr=3e-2)

    def train() -> None:
        for task in range(12):
            relabel(setup, task)
            setup.train(150)

    rows = monitored(setup, train)
    found = diagnose_log(rows)
    (finding,) = [f for f in found.findings if f.name == "effective rate fell"]
    weights = [name for name in rows[0] if name.startswith("nap/rate/")]
    falls = {name.removeprefix("nap/rate/"): rows[0][name] / rows[-1][name] for name in weights}
    worst = max(falls, key=lambda name: falls[name])
    assert falls[worst] >= 8
    assert f"that of {worst} fell ×{falls[worst]:.3g}" in finding.measure
    assert "since step" in finding.measure
    assert "growth of single weights" in found.not_looked_at
    assert "stale second moments" in found.not_looked_at


def test_a_log_shows_units_that_died() -> None:
    torch.manual_seed(0)
    setup = on_digits(mlp(), lr=0.1)
    rows = monitored(setup, lambda: setup.train(200))
    assert "units are dead" in diagnose_log(rows).names
    assert diagnose_log(rows[:1]).names == ()


def test_a_log_shows_a_schedule_that_ended_where_norms_stayed() -> None:
    torch.manual_seed(0)
    setup = on_digits(mlp(), nap_too=True)
    schedule = linear(setup.optimizer, total_steps=300, end_value=1e-6)

    def train() -> None:
        for _ in range(450):
            setup.train(1)
            schedule.step()

    rows = monitored(setup, train)
    found = diagnose_log(rows)
    assert found.names == ("the schedule has ended",)
    assert not found.healthy
    assert diagnose_log(rows[:7]).healthy  # a run that ends with its schedule is as planned
    with_rates = [{**row, "lr": row["nap/rate/0.weight"] * 4} for row in rows]
    assert diagnose_log(with_rates).names == found.names
    assert diagnose_log(with_rates[:7]).healthy


def test_a_log_shows_where_numbers_ended() -> None:
    rows = [{"step": 100 * i, "nap/norm/gradients": 1.0, "loss": 2.0} for i in range(3)]
    rows.append({"step": 300, "nap/norm/gradients": math.nan, "loss": math.nan})
    (finding,) = diagnose_log(rows).findings
    assert finding.name == "NaN or infinity"
    assert "finite until step 200" in finding.measure


def test_a_log_without_measures_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no measure that nap knows.*Monitor"):
        diagnose_log([{"step": 1, "accuracy": 0.5}])
