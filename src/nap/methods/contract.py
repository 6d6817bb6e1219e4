"""The one contract of all mitigation methods, and what a method may see of a training run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nap.methods.draws import Generators
from nap.validation import check_range as check_range
from nap.weights import Role, weight_groups

_AVERAGES = {
    "momentum_buffer",
    "exp_avg",
    "exp_avg_sq",
    "max_exp_avg_sq",
    "exp_inf",
    "square_avg",
    "grad_avg",
    "acc_delta",
}


def moments_of(optimizer: torch.optim.Optimizer, name: str, parameter: Tensor) -> list[Tensor]:
    """The optimizer's running averages for one parameter, each of its shape; step counts are not among them.

    >>> layer = torch.nn.Linear(2, 1)
    >>> adam = torch.optim.Adam(layer.parameters())
    >>> layer(torch.ones(1, 2)).sum().backward(); adam.step()
    >>> [tuple(m.shape) for m in moments_of(adam, "weight", layer.weight)]
    [(1, 2), (1, 2)]
    """
    averages = []
    for key, value in optimizer.state.get(parameter, {}).items():
        if not isinstance(value, Tensor) or value.ndim == 0:
            continue
        if key not in _AVERAGES or value.shape != parameter.shape:
            raise ValueError(
                f"{type(optimizer).__name__} keeps {key!r} of shape {tuple(value.shape)} for {name}, and "
                "it is not known how to reset it for single units; use SGD, RMSprop or one of Adam's family"
            )
        averages.append(value)
    return averages


@dataclass(frozen=True)
class Training:
    """The tensors of a run, by name, that a method may read and change in place.

    `Training.of(model, optimizer)` makes one for an ordinary loop. For a population trained at once,
    build it from stacked tensors, with `stacked=True`: then each tensor has a leading member axis.
    """

    model: nn.Module
    parameters: Mapping[str, Tensor]  # those that the optimizer trains, frozen ones not among them
    initial: Mapping[str, Tensor]  # their values at the start
    learning_rate: Callable[[str], float | Tensor]  # at present, of one parameter
    moments: Callable[[str], Sequence[Tensor]]  # the optimizer's running averages for one parameter
    generator: Generators  # one, or one per member of a population: see `nap.methods.draws`
    stacked: bool = False
    shared_batch: bool = False  # a population's members all see the same inputs

    @classmethod
    def of(cls, model: nn.Module, optimizer: torch.optim.Optimizer, *, generator: Generators) -> Training:
        """The run of `model` under `optimizer`, starting now: the present values count as initial.

        Make it after `nap.normalize_` and the first projection. To resume, restore `initial` from a
        checkpoint: `dataclasses.replace(training, initial=saved)`. Frozen parameters (`requires_grad`
        is False) are not part of it, so no method changes them; build a new one after freezing others.
        """
        group_of = {p: group for group in optimizer.param_groups for p in group["params"]}
        parameters = {name: p for name, p in model.named_parameters() if p in group_of and p.requires_grad}
        if not parameters:
            raise ValueError(
                f"the optimizer trains no parameter of {type(model).__name__}; "
                "build it on model.parameters(), and leave some of them unfrozen"
            )
        return cls(
            model=model,
            parameters=parameters,
            initial={name: p.detach().clone() for name, p in parameters.items()},
            learning_rate=lambda name: group_of[parameters[name]]["lr"],
            moments=lambda name: moments_of(optimizer, name, parameters[name]),
            generator=generator,
        )


class Method:
    """The interface of mitigation methods. Every call does nothing here, so this is also "no method".

    A method's mathematics are functions over tensors beside its class; the class says when they
    apply. Those that draw random numbers take them from `training.generator`.

    Under NaP a method may move weights off their radius (noise, shrinking, resets). The next
    projection puts them back, after the next optimizer step; until then scale-invariant weights
    compute the same function anyway. Call `projector.project_()` after the method to be exact.
    """

    host_side: ClassVar[bool] = False  # `after_step_` counts or probes in Python: keep it out of CUDA graphs

    def prepare_(self, model: nn.Module, inputs: Any = (), *, generator: Generators | None = None) -> None:
        """Changes the architecture, or studies it on example `inputs`, before the optimizer is built."""

    def penalty(
        self, parameters: Mapping[str, Tensor], initial: Mapping[str, Tensor], *, stacked: bool = False
    ) -> Tensor:
        """What is added to the loss: a 0-d tensor, or one value per member of a stacked population."""
        some = next(iter(parameters.values()))
        return some.new_zeros(len(some) if stacked else ())

    def before_step_(self, training: Training) -> None:
        """Acts between `loss.backward()` and `optimizer.step()`."""

    def after_step_(self, training: Training, inputs: Any = None) -> None:
        """Acts after `optimizer.step()`; `inputs` are those of the step's batch."""

    def at_task_change_(self, training: Training) -> None:
        """Acts when the task changes."""

    def state_dict(self) -> dict[str, Any]:
        """The counters and running averages that a resumed run needs."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, but was given {sorted(state)}")


@dataclass
class Elementwise(Method):
    """A method that treats each parameter by itself.

    `roles` limits it to parameters with these roles (`nap.weight_groups`); None means all of them.
    """

    roles: Collection[Role] | None = field(default=None, kw_only=True)

    def prepare_(self, model: nn.Module, inputs: Any = (), *, generator: Generators | None = None) -> None:
        rows = weight_groups(model).values()
        self._names = {row.name for row in rows if self.roles is None or row.role in self.roles}
        if not self._names:
            raise ValueError(
                f"no parameter of {type(model).__name__} has one of the roles {sorted(self.roles or ())}; "
                "print(nap.weight_groups(model)) to see those it has"
            )

    def mine(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parameters that this method acts on."""
        if self.roles is None:
            return dict(parameters)
        if not hasattr(self, "_names"):
            raise ValueError(f"{type(self).__name__} has roles to look up; call prepare_(model) first")
        return {name: p for name, p in parameters.items() if name in self._names}
