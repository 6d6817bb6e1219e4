"""Schedules: the curves of the paper, and the manners of a torch LRScheduler."""

import io
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import ChainedScheduler, ExponentialLR, LRScheduler, SequentialLR

from nap import schedules

RAINBOW: dict[str, Any] = {"warmup_steps": 10, "total_steps": 50, "init_value": 1e-8, "end_value": 1e-6}
MAKERS = {
    "linear": lambda opt: schedules.linear(opt, total_steps=40, end_value=1e-6, end_at=0.5),
    "warmup_cosine": lambda opt: schedules.warmup_cosine(opt, **RAINBOW),
}
each_schedule = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def adam(*lrs: float | torch.Tensor) -> torch.optim.Adam:
    return torch.optim.Adam([{"params": [torch.zeros(2, requires_grad=True)], "lr": lr} for lr in lrs])


def follow(optimizer: torch.optim.Optimizer, scheduler: LRScheduler, steps: int) -> list[list[float]]:
    """The rates that `steps` updates were made with."""
    rates = []
    for _ in range(steps):
        rates.append([float(group["lr"]) for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    return rates


def test_the_paper_s_linear_schedule_ends_halfway_and_stays():
    optimizer = adam(6.25e-5)
    rates = [lr for (lr,) in follow(optimizer, MAKERS["linear"](optimizer), 45)]
    assert rates[0] == 6.25e-5
    assert rates[10] == pytest.approx((6.25e-5 + 1e-6) / 2)
    assert rates[20:] == [1e-6] * 25  # exactly


def test_the_paper_s_warmup_cosine_schedule():
    optimizer = adam(6.25e-5)
    rates = [lr for (lr,) in follow(optimizer, MAKERS["warmup_cosine"](optimizer), 60)]
    assert rates[0] == 1e-8
    assert rates[5] == pytest.approx((1e-8 + 6.25e-5) / 2)
    assert rates[10] == max(rates) == 6.25e-5
    assert rates[30] == pytest.approx((6.25e-5 + 1e-6) / 2)
    assert rates[50:] == [1e-6] * 10
    assert rates[10:51] == sorted(rates[10:51], reverse=True)


@given(
    step=st.integers(0, 300),
    peak=st.floats(1e-6, 1.0),
    end=st.floats(0, 1.0),
    total=st.integers(2, 200),
    warmup=st.integers(0, 100),
)
def test_values_stay_between_their_ends(step, peak, end, total, warmup):
    warmup = min(warmup, total - 1)
    line = schedules.linear_value(step, peak, total_steps=total, end_value=end)
    wave = schedules.warmup_cosine_value(
        step, peak, warmup_steps=warmup, total_steps=total, init_value=0.0, end_value=end
    )
    assert min(peak, end) * (1 - 1e-12) <= line <= max(peak, end) * (1 + 1e-12)
    assert 0 <= wave <= max(peak, end) * (1 + 1e-12)
    if step >= total:
        assert line == wave == end


@each_schedule
def test_each_group_has_its_own_peak_and_the_common_end(make):
    together, apart = adam(1e-3, 2e-2), [adam(1e-3), adam(2e-2)]
    expected = [follow(opt, make(opt), 55) for opt in apart]
    assert follow(together, make(together), 55) == [a + b for a, b in zip(*expected, strict=True)]


@each_schedule
def test_tensor_rates_are_changed_in_place(make):
    lr = torch.tensor(1e-3, dtype=torch.float64)
    optimizer, plain = adam(lr), adam(1e-3)
    assert follow(optimizer, make(optimizer), 55) == follow(plain, make(plain), 55)
    assert optimizer.param_groups[0]["lr"] is lr


def test_a_float32_tensor_rate_does_not_drift():
    optimizer = adam(torch.tensor(6.25e-5))
    rates = follow(optimizer, MAKERS["warmup_cosine"](optimizer), 60)
    assert rates[-1] == [torch.tensor(1e-6).item()]


@each_schedule
@pytest.mark.parametrize("stop", [0, 7, 30])
@pytest.mark.parametrize("order", ["documented", "scheduler first", "optimizer before the scheduler exists"])
def test_a_resumed_run_has_the_same_rates(make, stop, order):
    optimizer = adam(1e-3, 2e-2)
    scheduler = make(optimizer)
    follow(optimizer, scheduler, stop)
    file = io.BytesIO()
    torch.save([optimizer.state_dict(), scheduler.state_dict()], file)
    file.seek(0)
    optimizer_state, scheduler_state = torch.load(file, weights_only=True)

    resumed = adam(1e-3, 2e-2)
    if order == "optimizer before the scheduler exists":
        resumed.load_state_dict(optimizer_state)
    again = make(resumed)
    if order == "scheduler first":
        again.load_state_dict(scheduler_state)
        resumed.load_state_dict(optimizer_state)
    elif order == "documented":
        resumed.load_state_dict(optimizer_state)
        again.load_state_dict(scheduler_state)
    else:
        again.load_state_dict(scheduler_state)
    assert follow(resumed, again, 20) == follow(optimizer, scheduler, 20)


@each_schedule
def test_restart_begins_again_at_once(make):
    optimizer = adam(1e-3)
    scheduler = make(optimizer)
    scheduler.restart()  # before the first task: nothing to undo, and no warning
    first = follow(optimizer, scheduler, 33)
    scheduler.restart()
    assert scheduler.get_last_lr() == first[0]
    assert follow(optimizer, scheduler, 33) == first


@each_schedule
def test_chained_schedules_multiply(make):
    optimizer, alone = adam(1e-3), adam(1e-3)
    both = ChainedScheduler([make(optimizer), ExponentialLR(optimizer, gamma=0.9)])
    expected = [[lr * 0.9**step] for step, (lr,) in enumerate(follow(alone, make(alone), 55))]
    assert follow(optimizer, both, 55) == [pytest.approx(lr) for lr in expected]


@pytest.mark.filterwarnings(
    "ignore:The epoch parameter in `scheduler.step:UserWarning"
)  # of torch 2.6 itself
@each_schedule
def test_schedules_take_turns_in_sequential_lr(make):
    optimizer, alone = adam(1e-3), adam(1e-3)
    turns = SequentialLR(optimizer, [ExponentialLR(optimizer, gamma=0.5), make(optimizer)], milestones=[5])
    assert follow(optimizer, turns, 40)[5:] == follow(alone, make(alone), 35)


def test_a_rate_of_zero_does_not_end_the_schedule():
    optimizer = adam(1e-3)
    scheduler = schedules.warmup_cosine(
        optimizer, warmup_steps=4, total_steps=8, init_value=0.0, end_value=0.0
    )
    rates = [lr for (lr,) in follow(optimizer, scheduler, 8)]
    assert rates[0] == 0
    assert rates[4] == 1e-3
    scheduler.restart()
    assert [lr for (lr,) in follow(optimizer, scheduler, 8)] == rates


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda o: schedules.linear(o, total_steps=0, end_value=0.0), "total_steps is 0.*at least 1"),
        (lambda o: schedules.linear(o, total_steps=5, end_value=-1.0), "end_value is -1.0.*at least 0"),
        (lambda o: schedules.linear(o, total_steps=5, end_value=math.nan), "end_value is nan"),
        (lambda o: schedules.linear(o, total_steps=5, end_value=0.0, end_at=0.0), "0 < end_at ≤ 1"),
        (lambda o: schedules.linear(o, total_steps=5, end_value=0.0, end_at=1.5), "0 < end_at ≤ 1"),
        (lambda o: schedules.warmup_cosine(o, **RAINBOW | {"warmup_steps": -1}), "warmup_steps is -1"),
        (lambda o: schedules.warmup_cosine(o, **RAINBOW | {"warmup_steps": 50}), "total_steps is 50.*51"),
        (lambda o: schedules.warmup_cosine(o, **RAINBOW | {"init_value": math.inf}), "init_value is inf"),
        (lambda o: schedules.Schedule(o, [lambda step, peak: peak] * 3), "3 schedules for the 1 param"),
    ],
)
def test_bad_arguments_are_named_with_their_range(call, words):
    optimizer = adam(1e-3)
    with pytest.raises(ValueError, match=words):
        call(optimizer)
    assert optimizer.param_groups[0]["lr"] == 1e-3


@each_schedule
def test_a_group_that_comes_late_is_an_error_with_a_way_out(make):
    optimizer = adam(1e-3)
    scheduler = make(optimizer)
    state = scheduler.state_dict()
    follow(optimizer, scheduler, 3)
    optimizer.add_param_group({"params": [torch.zeros(3, requires_grad=True)], "lr": 2e-2})
    words = r"1 parameter groups.*the 2 that Adam has now.*add_param_group before.*new schedule"
    for call in (scheduler.step, scheduler.restart, lambda: make(optimizer).load_state_dict(state)):
        with pytest.raises(ValueError, match=words):
            call()
    for group, peak in zip(optimizer.param_groups, (1e-3, 2e-2), strict=True):
        group["lr"] = peak
    fresh = adam(1e-3, 2e-2)
    assert follow(optimizer, make(optimizer), 20) == follow(fresh, make(fresh), 20)
