"""Twins: the free run and the projected one, exactly and nearly (paper §4.1, Figure 2)."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, RMSprop

import nap
from nap.rates.implicit import ImplicitSchedule
from nap.rates.learning_rate import Update, effective_learning_rates, per_weight_groups
from nap.rates.twins import TwinPair
from nap.schedules import linear

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, MakeOptimizer] = {
    "Adam": partial(Adam, lr=0.01),
    "Adam, large eps": partial(Adam, lr=0.01, eps=1e-3),
    "Adam with L2": partial(Adam, lr=0.01, weight_decay=0.01),
    "AdamW": partial(AdamW, lr=0.01, weight_decay=0.3),
    "RMSprop, momentum": partial(RMSprop, lr=0.003, momentum=0.5),
    "SGD": partial(SGD, lr=0.5),
    "SGD, momentum": partial(SGD, lr=0.2, momentum=0.9),
    "SGD, Nesterov, L2": partial(SGD, lr=0.2, momentum=0.9, nesterov=True, weight_decay=0.01),
}
HIDDEN = ["0.weight", "3.weight"]


def mlp(*, dropout: float = 0.0) -> nn.Sequential:
    """Two layers that eps = 0 makes scale-invariant to the last bit, and a head that is not."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(8, 32, bias=False), nn.LayerNorm(32, eps=0), nn.ReLU()),
        *(nn.Linear(32, 32, bias=False), nn.LayerNorm(32, eps=0), nn.ReLU()),
        nn.Dropout(dropout),
        nn.Linear(32, 4),
    ).double()


def cross_entropy_on_random_batches(seed: int = 1):
    """Endless losses: each a function of a model, on a batch of its own."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2048, 8, generator=generator, dtype=torch.float64)
    y = torch.randint(4, (2048,), generator=generator)
    while True:
        batch = torch.randint(2048, (32,), generator=generator)
        yield lambda model, batch=batch: nn.functional.cross_entropy(model(x[batch]), y[batch])


def gaps(make_optimizer: MakeOptimizer, mode: Any, *, steps: int = 200, seed: int = 1) -> np.ndarray:
    """The difference of the twins' losses at each step."""
    pair = TwinPair(mlp(), make_optimizer, mode=mode, coupled=HIDDEN)
    losses = cross_entropy_on_random_batches(seed)
    return np.array([pair.step(next(losses)).gap for _ in range(steps)])


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_exact_twins_stay_together_while_the_free_norms_move(make_optimizer):
    pair = TwinPair(mlp(), make_optimizer, coupled=HIDDEN)
    losses = cross_entropy_on_random_batches()
    assert max(pair.step(next(losses)).gap for _ in range(200)) <= 1e-10
    assert pair.distance(torch.randn(64, 8, dtype=torch.float64)) <= 1e-10
    for name, parameter in pair.free.named_parameters():
        twin = pair.projected.get_parameter(name)
        if name in HIDDEN:
            start = mlp().get_parameter(name).norm()
            assert abs(parameter.norm() / start - 1) > 0.01  # there was something to follow
            torch.testing.assert_close(twin.norm(), start, rtol=1e-12, atol=0)
            torch.testing.assert_close(twin / twin.norm(), parameter / parameter.norm(), rtol=0, atol=1e-10)
        else:
            torch.testing.assert_close(twin, parameter, rtol=0, atol=1e-10)


def test_rescaling_the_rate_alone_is_exact_only_without_memory():
    """The paper's "identical by construction" holds for plain SGD and for Adam with β = 0, eps = 0."""
    memoryless_adam = partial(Adam, lr=0.01, betas=(0.0, 0.0), eps=1e-30)
    assert gaps(OPTIMIZERS["SGD"], "per-layer").max() <= 1e-10
    assert gaps(memoryless_adam, "per-layer", steps=20).max() <= 1e-10
    assert gaps(OPTIMIZERS["Adam"], "per-layer").max() > 1e-3
    assert gaps(OPTIMIZERS["SGD, momentum"], "per-layer").max() > 1e-3


def test_figure_2_rescaled_rates_are_nearer_than_constant_ones():
    """Between per-layer and global, Adam's memory leaves no order that holds for every seed."""

    def gap(mode: str) -> float:
        return np.mean([gaps(OPTIMIZERS["Adam"], mode, seed=seed) for seed in (1, 3)]).item()

    assert 1e-3 < max(gap("per-layer"), gap("global")) < gap("none")


def test_the_scheduler_belongs_to_the_free_optimizer_and_moves_both():
    pair = TwinPair(mlp(), OPTIMIZERS["Adam"], coupled=HIDDEN)
    schedule = linear(pair.free_optimizer, total_steps=60, end_value=1e-4)
    losses = cross_entropy_on_random_batches()
    for _ in range(60):
        assert pair.step(next(losses)).gap < 1e-10
        schedule.step()
    head, twin_s_head = pair.free_optimizer.param_groups[-1], pair.projected_optimizer.param_groups[-1]
    assert head["lr"] == 1e-4
    assert twin_s_head["lr"] == pytest.approx(1e-4 + 9.9e-3 / 60)  # that of the last update


def test_the_projected_twin_has_the_effective_rates_of_the_free_one():
    """§4.1: "so that the explicit learning rate is equal to the effective learning rate of its twin"."""
    pair = TwinPair(mlp(), OPTIMIZERS["SGD"], coupled=HIDDEN, mode="per-layer")
    losses = cross_entropy_on_random_batches()
    for _ in range(20):
        free = effective_learning_rates(pair.free, pair.free_optimizer, weights=HIDDEN)
        pair.step(next(losses))
        projected = effective_learning_rates(pair.projected, pair.projected_optimizer, weights=HIDDEN)
        assert projected == pytest.approx(free, rel=1e-12)


def test_both_twins_see_the_same_random_numbers():
    pair = TwinPair(mlp(dropout=0.5), OPTIMIZERS["Adam"], coupled=HIDDEN)
    losses = cross_entropy_on_random_batches()
    assert max(pair.step(next(losses)).gap for _ in range(30)) < 1e-10
    first = pair.free(torch.ones(1, 8, dtype=torch.float64))
    assert not torch.equal(first, pair.free(torch.ones(1, 8, dtype=torch.float64)))  # dropout was on


def test_the_model_given_is_left_alone():
    model, untouched = mlp(), mlp()
    TwinPair(model, OPTIMIZERS["SGD"], coupled=HIDDEN).step(next(cross_entropy_on_random_batches()))
    torch.testing.assert_close(model.state_dict(), untouched.state_dict(), rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_converted_model_needs_no_names():
    """What nap.normalize_ calls scale-invariant is coupled, and follows exactly; affine parts are free."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
    ).double()
    nap.normalize_(model, torch.randn(4, 8, dtype=torch.float64))
    pair = TwinPair(model, OPTIMIZERS["Adam"])
    assert pair.coupled == ["0.weight", "2.weight"]
    losses = cross_entropy_on_random_batches()
    assert max(pair.step(next(losses)).gap for _ in range(50)) <= 1e-10


def frozen() -> nn.Sequential:
    model = mlp()
    model.get_parameter("0.weight").requires_grad_(False)
    return model


def zeroed() -> nn.Sequential:
    model = mlp()
    nn.init.zeros_(model.get_parameter("0.weight"))
    return model


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TwinPair(mlp(), Adam), "nothing to couple; use nap.normalize_ first"),
        (lambda: TwinPair(mlp(), Adam, coupled=["0.wieght"]), "no parameter '0.wieght'"),
        (lambda: TwinPair(frozen(), Adam, coupled=HIDDEN), "0.weight is frozen"),
        (lambda: TwinPair(zeroed(), Adam, coupled=HIDDEN), "0.weight has zero norm"),
        (lambda: TwinPair(mlp(), Adam, coupled=HIDDEN, mode="nearly"), "mode is 'nearly'"),  # type: ignore[arg-type]
        (lambda: TwinPair(mlp(), torch.optim.Adafactor, coupled=HIDDEN), "proportional to the weights"),
        (
            lambda: TwinPair(mlp(), lambda groups: Adam(mlp().parameters()), coupled=HIDDEN),
            "must keep the param",
        ),
        (lambda: ImplicitSchedule(zeroed()), "0.weight has zero norm"),
        (lambda: ImplicitSchedule(mlp(), every=0), "every is 0"),
        (lambda: ImplicitSchedule(mlp(), weights=[]), r"no weights to record: weights=\[\] names none"),
        (lambda: ImplicitSchedule(nn.LayerNorm(3)), "no weights to record: LayerNorm has none"),
    ],
)
def test_bad_arguments_are_named_with_the_way_out(make, words):
    with pytest.raises(ValueError, match=words):
        make()


# The record of a free run


def train(model, optimizer, steps, *, scheduler=None, schedule=None, radii=None) -> list[float]:
    batches, losses = cross_entropy_on_random_batches(), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = next(batches)(model)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if scheduler is not None:
            scheduler.step()
        if schedule is not None:
            schedule.record(model)
        for name, radius in (radii or {}).items():
            weight = model.get_parameter(name)
            weight.data.mul_(radius / weight.detach().norm())
    return losses


def recorded(make_optimizer, steps: int = 60, **options) -> tuple[ImplicitSchedule, list[float]]:
    model = mlp()
    schedule = ImplicitSchedule(model, weights=HIDDEN, **options)
    return schedule, train(model, make_optimizer(model.parameters()), steps, schedule=schedule)


def replayed(make_optimizer, schedule, mode, steps: int = 60) -> list[float]:
    model = mlp()
    optimizer = make_optimizer(per_weight_groups(model, HIDDEN))
    scheduler = schedule.scheduler(optimizer, mode=mode) if schedule is not None else None
    radii = {name: model.get_parameter(name).detach().norm() for name in HIDDEN}
    return train(model, optimizer, steps, scheduler=scheduler, radii=radii)


def test_a_replayed_record_is_the_free_run_for_sgd():
    """(‖W₀‖/‖Wₜ‖)² per layer, explicitly: the same losses on the sphere, in float64."""
    schedule, losses = recorded(OPTIMIZERS["SGD"])
    assert replayed(OPTIMIZERS["SGD"], schedule, "per-layer") == pytest.approx(losses, abs=1e-10)
    assert replayed(OPTIMIZERS["SGD"], schedule, "global") != pytest.approx(losses, abs=1e-4)


@pytest.mark.parametrize("mode", ["per-layer", "global"])
def test_a_replayed_record_is_nearer_the_free_run_than_a_constant_rate_for_adam(mode):
    schedule, losses = recorded(OPTIMIZERS["Adam"], 200)

    def gap(replay: list[float]) -> float:
        return np.abs(np.subtract(replay, losses)).mean().item()

    explicit = gap(replayed(OPTIMIZERS["Adam"], schedule, mode, 200))
    constant = gap(replayed(OPTIMIZERS["Adam"], None, mode, 200))
    assert 1e-10 < explicit < constant


def test_multipliers_use_the_power_of_the_update():
    schedule = ImplicitSchedule.from_state_dict(
        {"names": ["a", "b"], "every": 2, "steps": 4, "norms": [[3.0, 4.0], [6.0, 8.0], [6.0, 4.0]]}
    )
    assert schedule.multipliers(2, update="normalised") == {"a": 0.5, "b": 0.5}
    assert schedule.multipliers(2, update=Update.RAW) == {"a": 0.25, "b": 0.25}
    assert schedule.multipliers(4, update=Update.RAW, mode="per-layer") == {"a": 0.25, "b": 1.0}
    together = pytest.approx(dict.fromkeys("ab", 25 / 52))
    assert schedule.multipliers(4, update=Update.RAW, mode="global") == together
    assert schedule.multipliers(1, update="normalised") == {"a": 0.75, "b": 0.75}  # between two records
    assert schedule.multipliers(99, update="raw") == schedule.multipliers(4, update="raw")
    with pytest.raises(ValueError, match="mode is 'both'"):
        schedule.multipliers(0, update="raw", mode="both")  # type: ignore[arg-type]


def test_one_default_mode_for_curves_multipliers_and_scheduler():
    schedule, _ = recorded(OPTIMIZERS["SGD"], 5)
    curves = schedule.curves(update="raw")
    together = schedule.curves(update="raw", mode="global")
    assert all(np.array_equal(curves[name], together[name]) for name in HIDDEN)
    assert schedule.multipliers(3, update="raw") == schedule.multipliers(3, update="raw", mode="global")
    optimizer = SGD(mlp().parameters(), lr=1.0)
    scheduler = schedule.scheduler(optimizer)
    for step in range(5):
        (rate,) = scheduler.get_last_lr()
        assert rate == pytest.approx(schedule.multipliers(step, update="raw")[HIDDEN[0]])
        optimizer.step()
        scheduler.step()


def test_a_record_of_a_converted_model_is_of_its_scale_invariant_weights():
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    assert ImplicitSchedule(model).names == ["0.weight", "2.weight"]  # not traced
    nap.normalize_(model, torch.randn(4, 8))
    assert ImplicitSchedule(model).names == ["0.weight"]  # the norm of the output layer hides no rate
    assert ImplicitSchedule(model, weights=["2.weight"]).names == ["2.weight"]


def test_a_record_survives_json_and_goes_on():
    whole, _ = recorded(OPTIMIZERS["Adam"], 20, every=3)
    model = mlp()
    optimizer = OPTIMIZERS["Adam"](model.parameters())
    half = ImplicitSchedule(model, every=3, weights=HIDDEN)
    handle = half.attach(model, optimizer)
    batches = cross_entropy_on_random_batches()
    for step in range(20):
        if step == 10:
            state = json.loads(json.dumps(half.state_dict()))
            handle.remove()
            half = ImplicitSchedule.from_state_dict(state)
            half.attach(model, optimizer)
        optimizer.zero_grad()
        next(batches)(model).backward()
        optimizer.step()
    assert half.state_dict() == whole.state_dict()
    assert str(half) == str(whole)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_scaler_skips_is_no_step_of_the_record(fused):
    model = mlp().float()
    optimizer = Adam(model.parameters(), lr=0.01, fused=fused)
    schedule = ImplicitSchedule(model, weights=HIDDEN)
    schedule.attach(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    norms = [[model.get_parameter(name).detach().norm().item() for name in HIDDEN]]
    for overflow in [False, True, True, False, True]:
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(16, 8)).square().mean()).backward()
        if overflow:
            gradient = model.get_parameter("0.weight").grad
            assert gradient is not None
            gradient[0, 0] = torch.inf
        scaler.step(optimizer)
        scaler.update()
        if not overflow:
            norms.append([model.get_parameter(name).detach().norm().item() for name in HIDDEN])
    assert schedule.steps == 2
    np.testing.assert_allclose(schedule.state_dict()["norms"], norms, rtol=1e-6)


def test_a_record_prints_the_growth_of_each_weight():
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    schedule = ImplicitSchedule(model)
    nn.init.constant_(model.weight, 3.0)
    schedule.record(model)
    assert str(schedule).split("\n")[1].split() == ["weight", "1", "3", "×3.000"]


def test_per_layer_replay_needs_a_group_to_each_weight():
    schedule, _ = recorded(OPTIMIZERS["SGD"], 2)
    for parameters in (mlp().parameters(), mlp().named_parameters()):
        with pytest.raises(ValueError, match=r"no group of its own for each of.*per_weight_groups"):
            schedule.scheduler(SGD(parameters, lr=0.1), mode="per-layer")
