"""Following an optimizer: hooks around its steps, which steps were real updates, and moves outside of them.

An optimizer that steps in two halves (SAM), or lets another one take its steps, is never seen in `step`. But
weights that move have a new version at the next backward pass; `MoveGuard` looks at that of one weight.
"""

from __future__ import annotations

import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from nap.projection.misuse import MisuseWarning
from nap.projection.refusals import refuse
from nap.projection.small import SmallWeights
from nap.projection.watch import ModelWatch

_PATIENCE = 4  # backward passes in a row that found a weight moved, with no step in between


class MoveGuard:
    """Watches one weight of an optimizer, and warns once if it keeps moving between the optimizer's steps.

    A weight may move for other reasons (a checkpoint is loaded, an average swapped in and out), and a SAM
    whose inner optimizer is followed moves it once for each step. So one such pass is no sign.

    Args:
        strict: what is done to a step depends on all of it: an error instead of a warning, also where the
            weight moves between the backward passes of one step, as in LBFGS.
    """

    def __init__(self, name: str, find: Callable[[], Tensor], optimizer: Any, *, strict: bool = False):
        self.name, self._find, self._optimizer, self._strict = name, find, optimizer, strict
        self._inside = False  # of a step; one that raised never ends
        self._found = 0  # backward passes since the last step that found it moved
        self._warned = False
        self._handle: Any = None
        self._watched: Tensor | None = None
        self._look()

    def stepped(self, *, by_hand: bool = False, same: bool = False) -> None:
        """Note that the optimizer took a step, or that weights were projected by hand."""
        if not (by_hand and self._strict):
            self._found, self._inside = 0, False
        if same and self._watched is not None:  # no need to find it again
            self._version = self._watched._version
        else:
            self._look()

    def began(self) -> None:
        """Note that the optimizer begins a step."""
        self._found, self._inside = 0, True
        self._look()

    def _look(self) -> None:
        """Note the weight's version; it may be another tensor than before, after `.to()` for example."""
        weight = self._find()
        if weight is not self._watched or (self._handle is None and weight.requires_grad):
            self.remove()
            self._watched = weight
            if weight.requires_grad and weight.is_leaf:
                self._handle = weight.register_post_accumulate_grad_hook(self._after_backward)
        self._version = weight._version

    def _after_backward(self, weight: Tensor) -> None:
        if weight._version == self._version:
            return
        self._version = weight._version
        self._found += 1
        if self._strict and self._inside and self._found == 2:
            raise ValueError(
                f"{self.name} moved between backward passes of one {type(self._optimizer).__name__}.step: "
                "its updates cannot be seen one by one, so none can be limited; take an optimizer that moves "
                "the weights once in a step, or Projector(model, update='free', brake=1)"
            )
        if self._found >= _PATIENCE and not self._warned:
            if self._strict:
                raise ValueError(self._message())
            self._warned = True
            warnings.warn(self._message(), MisuseWarning, stacklevel=2)

    def _message(self) -> str:
        kind = type(self._optimizer).__name__
        inner = next((n for n in _INNER if _is_optimizer(getattr(self._optimizer, n, None))), None)
        way = f"attach(optimizer.{inner}), " if inner else ""
        way += "take Projector(model, update='free', brake=1) and " if self._strict else ""
        return (
            f"{self.name} moved before each of {self._found} backward passes, and {kind}.step was not "
            "called in between, so the weights are not projected: another optimizer moves them, or this one "
            f"by other methods than step, as SAM does; {way}attach the one that moves them, or call "
            "projector.project_() after each update"
        )

    def remove(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        self._watched = None


_INNER = ("base_optimizer", "optimizer", "inner_optimizer", "_optimizer")


def _is_optimizer(thing: Any) -> bool:
    return isinstance(thing, torch.optim.Optimizer) or hasattr(thing, "_optimizer_step_post_hooks")


@dataclass(frozen=True)
class Followed:
    """The parameters of a plan that an optimizer holds; `small` if they are small weights on a CPU."""

    names: list[str]
    watch: ModelWatch
    small: SmallWeights | None = None


Follow = Callable[[Followed, bool | Tensor, Any], bool]  # returns whether no parameter was replaced


@dataclass(frozen=True)
class StepStart:
    """Callbacks for the beginning of a step, needed where updates are limited."""

    note: Callable[[list[str], Mapping[int, Any]], Any]  # of names, at rates by id of the parameter
    check: Callable[[Any, Mapping[int, Any]], None]  # refuses an optimizer whose updates cannot be seen
    relative: Callable[[], Mapping[int, Tensor]]  # how long relative steps at rate 1 are, by id


Find = Callable[[Any], Followed]


def was_real(optimizer: Any) -> bool | Tensor:
    """Whether the step that just ended changed the weights; asked from a hook after the step.

    Where `GradScaler` finds an inf, most optimizers are not stepped at all. A fused one goes through
    its step and skips on the device, so there the answer is a tensor, and no one has to wait for it.
    """
    found_inf = getattr(optimizer, "found_inf", None)
    return True if found_inf is None else found_inf == 0


def followed(optimizer: Any) -> list[Any]:
    """The torch optimizers whose steps are this object's: inside of wrappers, and of containers.

    A container that is itself a torch optimizer, as torchtitan's is, is followed as a whole.
    """
    if hasattr(optimizer, "_optimizer_step_post_hooks"):
        return [optimizer]
    if optimizer is None:
        way = "attach once it is there; nap.integrations has callbacks for trainers that make it late"
        refuse([], "the optimizer is None, so it has not been made yet", way)
    if parts := _parts(optimizer):
        return [one for part in parts for one in followed(part)]
    if hasattr(optimizer, "optimizer"):
        return followed(optimizer.optimizer)
    raise ValueError(
        f"{type(optimizer).__name__} is not a torch.optim.Optimizer and does not wrap one in .optimizer or "
        ".optimizers; "
        "call projector.project_() after each update instead"
    )


def inner_optimizers(*optimizers: Any) -> list[Any]:
    """The torch optimizers that hold rates and moments: those of `followed`, and those inside of them.

    >>> one, other = torch.optim.SGD([torch.zeros(1)], 0.1), torch.optim.Adam([torch.zeros(1)])
    >>> container = type("Container", (), {"optimizers": [one, other]})()
    >>> inner_optimizers(container) == [one, other]
    True
    """
    whole = [one for optimizer in optimizers for one in followed(optimizer)]
    return [part for one in whole for part in (inner_optimizers(*_parts(one)) or [one])]


def _parts(container: Any) -> list[Any]:
    parts = getattr(container, "optimizers", ())
    if callable(parts) or not parts:
        return []
    return list(parts.values() if isinstance(parts, Mapping) else parts)


def unwrapped(optimizer: Any) -> Any:
    """The one torch optimizer inside of wrappers such as accelerate's AcceleratedOptimizer."""
    one, *others = followed(optimizer)
    if others:
        raise ValueError(
            f"{type(optimizer).__name__} holds {1 + len(others)} optimizers; attach to one of its .optimizers"
        )
    return one


def by_count(names: Iterable[str], counts: Mapping[str, int | Tensor]) -> list[list[str]]:
    """The names grouped by count; device counts are compared by identity.

    >>> by_count("abc", {"a": 1, "b": 2, "c": 1})
    [['a', 'c'], ['b']]
    """
    groups: dict[Any, list[str]] = defaultdict(list)
    for name in names:
        count = counts[name]
        groups[(id(count),) if isinstance(count, Tensor) else count].append(name)  # to compare would wait
    return list(groups.values())


class AfterStep:
    """A hook on one optimizer: after each step it calls follow(followed, real, start).

    `find` says what of the plan the optimizer holds, and is asked again when it holds other parameters.
    `start` is what `before` noted when the step began; None without it.
    """

    def __init__(self, optimizer: Any, find: Find, follow: Follow, before: StepStart | None = None):
        self.optimizer, self._find, self._follow, self.before = optimizer, find, follow, before
        self._followed, self._held = find(optimizer), _held(optimizer)
        # of steps that are under way: a step may call the one that it extends, and one that raised stays
        self._starts: deque[Any] = deque(maxlen=2)
        # a compiled step would be compiled anew at every count; so the hooks run as they are, beside it
        self._act = torch.compiler.disable(self._follow_step)
        self._note = torch.compiler.disable(self._begin_step)
        self._handles: list[Any] = []
        self.guard: MoveGuard | None = None

    def __call__(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            self._act(optimizer)
        else:
            self._follow_step(optimizer)  # the way around the compiler would take as long as the projection

    def _begin(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._note(optimizer)

    def _begin_step(self, optimizer: Any) -> None:
        self._look_at(optimizer)
        assert self.before is not None
        self._starts.append(self.before.note(self._followed.names, rates_in(optimizer)))
        if self.guard is not None:
            self.guard.began()

    def _follow_step(self, optimizer: Any) -> None:
        self._look_at(optimizer)
        if self.before is not None and not self._starts:
            way = "call optimizer.step as it is, or take Projector(model, update='free', brake=1)"
            why = f"a step of {type(optimizer).__name__} ended whose beginning was not seen"
            refuse([], f"{why}, so how far it moved the weights is not known", way)
        start = self._starts.pop() if self.before is not None else None
        same = self._follow(self._followed, was_real(optimizer), start)
        if self.guard is not None:
            self.guard.stepped(same=same)
        self._followed.watch.count()

    def _look_at(self, optimizer: Any) -> None:
        if (held := _held(optimizer)) != self._held:
            self._followed, self._held = self._find(optimizer), held

    def look_again(self) -> None:
        """Find the optimizer's parameters again, after a change of plan."""
        self._followed = self._find(self.optimizer)

    def check_model(self) -> None:
        """Warn if the model has other parameters than the optimizer holds."""
        self._followed.watch.check()

    def projected_by_hand(self) -> None:
        """Tell the guard that all changes until now were projected."""
        if self.guard is not None:
            self.guard.stepped(by_hand=True)

    def attach(self, weight_of: Callable[[str], Tensor]) -> None:
        """Register the hooks, and guard the first trained weight."""
        self._handles = [self.optimizer.register_step_post_hook(self)]
        if self.before is not None:
            self._handles.append(self.optimizer.register_step_pre_hook(self._begin))
        if trained := [name for name in self._followed.names if weight_of(name).requires_grad]:
            strict = self.before is not None
            self.guard = MoveGuard(trained[0], lambda: weight_of(trained[0]), self.optimizer, strict=strict)

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        if self.guard is not None:
            self.guard.remove()

    @property
    def alive(self) -> bool:
        """Whether its hooks are still registered; unpickling an optimizer drops them."""
        return self._handles[0].id in self.optimizer._optimizer_step_post_hooks


def _held(optimizer: Any) -> list[int]:
    return [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]


def rates_in(optimizer: Any) -> dict[int, Any]:
    """The current learning rate of each parameter, by id."""
    groups = [group for one in (optimizer, *inner_optimizers(optimizer)) for group in one.param_groups]
    return {id(parameter): group.get("lr") for group in groups for parameter in group["params"]}


def relative_lengths(optimizer: Any) -> dict[int, Tensor]:
    """The length of a step at rate 1, by id, of weights whose steps a `Projector` makes relative."""
    hooks = getattr(optimizer, "_optimizer_step_post_hooks", {}).values()
    notes = [hook.before for hook in hooks if isinstance(hook, AfterStep) and hook.before is not None]
    held = set(_held(optimizer))
    return {key: length for note in notes for key, length in note.relative().items() if key in held}


def hooks_on(
    optimizers: Iterable[Any], find: Find, follow: Follow, before: StepStart | None = None
) -> list[AfterStep]:
    """A hook for each of these optimizers, not attached yet; `find` says what one holds."""
    hooks: list[AfterStep] = []
    for optimizer in chain.from_iterable(map(followed, optimizers)):
        kind, present = type(optimizer).__name__, optimizer._optimizer_step_post_hooks.values()
        if any(isinstance(h, AfterStep) for h in present) or any(h.optimizer is optimizer for h in hooks):
            raise ValueError(f"this {kind} has a Projector already; call detach() on that one first")
        if before is not None:
            before.check(optimizer, rates_in(optimizer))
        hooks.append(AfterStep(optimizer, find, follow, before))
    return hooks
