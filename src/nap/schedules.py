"""Explicit learning-rate schedules: once the norm is fixed, the rate is yours to choose (§4.2).

Each schedule is a pure function of the step and a torch `LRScheduler` that follows it. `weight_decay_rates`
says what weight decay had made of yours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from nap.rates.weight_decay import weight_decay_rates as weight_decay_rates

Rate = float | Tensor
Value = Callable[[int, Any], Any]  # (step, peak) → rate, of the type that peak has


def linear_value(step: int, peak: Any, *, total_steps: int, end_value: float, end_at: float = 1.0) -> Any:
    """The rate on a straight line from `peak` to `end_value`, which it reaches at `end_at`·`total_steps`.

    >>> [linear_value(step, 1.0, total_steps=8, end_value=0.0, end_at=0.5) for step in (0, 2, 4, 8)]
    [1.0, 0.5, 0.0, 0.0]
    """
    done = min(1.0, step / (end_at * total_steps))
    return (1 - done) * peak + done * end_value


def warmup_cosine_value(
    step: int, peak: Any, *, warmup_steps: int, total_steps: int, init_value: float, end_value: float
) -> Any:
    """The rate after a linear warm-up to `peak` and a half cosine down to `end_value` at `total_steps`.

    >>> shape = dict(warmup_steps=2, total_steps=6, init_value=0.0, end_value=0.2)
    >>> [round(warmup_cosine_value(step, 1.0, **shape), 3) for step in range(8)]
    [0.0, 0.5, 1.0, 0.883, 0.6, 0.317, 0.2, 0.2]
    """
    if step < warmup_steps:
        return linear_value(step, init_value, total_steps=warmup_steps, end_value=peak)
    done = min(1.0, (step - warmup_steps) / (total_steps - warmup_steps))
    height = (1 + math.cos(math.pi * done)) / 2
    return height * peak + (1 - height) * end_value


def linear(optimizer: Optimizer, *, total_steps: int, end_value: float, end_at: float = 1.0) -> Schedule:
    """A scheduler that takes each group from its own rate to `end_value` on a line, then holds it (§4.2).

    `end_at` is the fraction of `total_steps` at which the line ends. The paper's Atari schedule goes
    from 6.25e-5 to 1e-6 and ends halfway:

    >>> optimizer = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=6.25e-5)
    >>> schedule = linear(optimizer, total_steps=4, end_value=1e-6, end_at=0.5)
    >>> for _ in range(3):
    ...     print(schedule.get_last_lr())
    ...     optimizer.step()
    ...     schedule.step()
    [6.25e-05]
    [3.175e-05]
    [1e-06]
    """
    _require_steps("total_steps", total_steps, 1)
    _require_rate("end_value", end_value)
    if not (_is_number(end_at) and 0 < end_at <= 1):
        raise ValueError(f"end_at is {end_at}, but it is a fraction of training: 0 < end_at ≤ 1")
    value = partial(linear_value, total_steps=total_steps, end_value=end_value, end_at=end_at)
    return Schedule(optimizer, value)


def warmup_cosine(
    optimizer: Optimizer, *, warmup_steps: int, total_steps: int, init_value: float, end_value: float
) -> Schedule:
    """A scheduler that warms each group up to its own rate, then decays it on a cosine (Appendix B.2).

    `total_steps` counts the warm-up. Call `restart()` where a new task begins. The sequential Atari
    agents of the paper use 1000 warm-up steps from 1e-8, the optimizer's rate as the peak, 1e-6 as
    the end, and a restart at each game:

    >>> optimizer = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=6.25e-5)
    >>> schedule = warmup_cosine(
    ...     optimizer, warmup_steps=1000, total_steps=1_250_000, init_value=1e-8, end_value=1e-6
    ... )
    >>> schedule.get_last_lr()
    [1e-08]
    """
    _require_steps("warmup_steps", warmup_steps, 0)
    _require_steps("total_steps", total_steps, warmup_steps + 1)
    _require_rate("init_value", init_value)
    _require_rate("end_value", end_value)
    value = partial(
        warmup_cosine_value,
        warmup_steps=warmup_steps,
        total_steps=total_steps,
        init_value=init_value,
        end_value=end_value,
    )
    return Schedule(optimizer, value)


class Schedule(LRScheduler):
    """Rates that follow `value(step, peak)`, where the peak is the rate a group came with.

    `value` is one function for all groups, or a list with one for each. What other schedulers or the
    user multiply a rate by stays multiplied, so schedules chain; alone, the rates are those of
    `value` to the last bit. Checkpoints hold the place on the curve, not the curve.
    """

    def __init__(self, optimizer: Optimizer, value: Value | Sequence[Value]):
        if not isinstance(optimizer, Optimizer):
            shown = "None" if optimizer is None else f"a {type(optimizer).__name__}"
            raise ValueError(
                f"a schedule follows a torch.optim.Optimizer, not {shown}; pass the optimizer itself"
            )
        groups = len(optimizer.param_groups)
        self._values = [value] * groups if callable(value) else list(value)
        if len(self._values) != groups:
            raise ValueError(
                f"{len(self._values)} schedules for the {groups} parameter groups of "
                f"{type(optimizer).__name__}; give one for each, or one for all"
            )
        super().__init__(optimizer)

    def get_lr(self) -> list[Rate]:
        return self._rates(self.last_epoch, since=self.last_epoch - 1)

    def restart(self) -> None:
        """Go back to step 0 now: the next update is made with the first rate of the schedule."""
        rates = self._rates(0, since=self.last_epoch)
        self.last_epoch = 0
        self._set_rates_(rates)

    def state_dict(self) -> dict[str, Any]:
        return {key: value for key, value in super().state_dict().items() if key != "_values"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, whether the optimizer's state is loaded before or after.

        An optimizer loaded before this object was made has lost its rate to step 0: it is given back.
        """
        self._check_groups(len(state_dict["base_lrs"]))
        untouched = [group["lr"] for group in self.optimizer.param_groups] == self._last_lr
        super().load_state_dict(state_dict)
        if untouched:
            self._set_rates_(self._last_lr)

    def _rates(self, step: int, *, since: int) -> list[Rate]:
        self._check_groups(len(self.base_lrs))
        rates = []
        for group, peak, value in zip(self.optimizer.param_groups, self.base_lrs, self._values, strict=True):
            before = peak if since < 0 else value(since, peak)
            rates.append(value(step, peak) * _ratio(group["lr"], before))
        return rates

    def _check_groups(self, expected: int) -> None:
        """Refuse an optimizer whose groups are not those that the schedule was made for."""
        if (now := len(self.optimizer.param_groups)) != expected:
            raise ValueError(
                f"a schedule of {expected} parameter groups cannot set the rates of the {now} that "
                f"{type(self.optimizer).__name__} has now; call add_param_group before the schedule is "
                "made, or set each group['lr'] to its peak and make a new schedule"
            )

    def _get_closed_form_lr(self) -> list[Rate]:  # SequentialLR asks for this where our turn begins
        self._check_groups(len(self.base_lrs))
        return [value(self.last_epoch, peak) for value, peak in zip(self._values, self.base_lrs, strict=True)]

    def _set_rates_(self, rates: Sequence[Rate]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].copy_(torch.as_tensor(rate))  # a captured graph holds this very tensor
            else:
                group["lr"] = rate
        self._last_lr = [
            rate.clone() if isinstance(rate := group["lr"], Tensor) else rate
            for group in self.optimizer.param_groups
        ]


def _ratio(now: Rate, before: Rate) -> Rate:
    """What others multiplied a rate by; 1 where the rate was 0 and has kept no trace of it."""
    if isinstance(before, Tensor):
        return torch.where(before == 0, 1.0, now / before)
    return now / before if before != 0 else 1.0


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _require_steps(name: str, steps: int, least: int) -> None:
    if not _is_number(steps):
        raise ValueError(f"{name} is {steps!r}, but it counts steps: a whole number, at least {least}")
    if not least <= steps < math.inf:
        raise ValueError(f"{name} is {steps}, but it must be at least {least}, and finite")


def _require_rate(name: str, rate: float) -> None:
    if not (_is_number(rate) and 0 <= rate < math.inf):
        raise ValueError(f"{name} is {rate!r}, but a learning rate is a number, finite and at least 0")
