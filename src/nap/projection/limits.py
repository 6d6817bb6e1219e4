"""Limits on an optimizer's updates, beside the projection of what they lead to; the equations are in `steps`.

A limit needs to know how the weights were before the step: a copy of them for relative steps, which lives as
long as the step, and their norms for a brake. So it needs an optimizer whose steps begin and end in `step`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from torch import Tensor

from nap.projection.apply import DirectionCheck, Tensors, is_skipped, project_all_
from nap.projection.noisy import Two, places
from nap.projection.refusals import refuse
from nap.projection.steps import Rate, brake_, norms_together, relative_

_WAY = "Projector(model, update='free', brake=1)"


@dataclass(frozen=True)
class WeightsBefore:
    """Copies or norms of the weights before a step, and the learning rates."""

    weights: Tensors = field(default_factory=dict)
    norms: Tensors = field(default_factory=dict)
    rates: Mapping[Any, Rate] = field(default_factory=dict)


@dataclass(frozen=True)
class Limits:
    """Whether steps are relative, and how much of a norm's move away from its radius is taken back."""

    update: Literal["free", "relative"] = "free"
    brake: float = 1.0

    def __post_init__(self) -> None:
        if self.update not in ("free", "relative"):
            raise ValueError(f"update={self.update!r} is not a choice; take one of ['free', 'relative']")
        if (
            isinstance(self.brake, bool)
            or not isinstance(self.brake, int | float)
            or not 0 <= self.brake <= 1
        ):
            raise ValueError(
                f"brake={self.brake!r} is the share of a norm's move away from its radius that is taken "
                "back; take a number from 0 to 1"
            )

    @property
    def relative(self) -> bool:
        return self.update == "relative"

    @property
    def any(self) -> bool:
        return self.relative or self.brake < 1

    def chosen(self) -> dict[str, Any]:
        """The settings that are not the default; older states have no such entries."""
        return {key: value for key, value in asdict(self).items() if value != getattr(Limits, key)}

    def __str__(self) -> str:
        return ", relative steps" * self.relative + f", brake {self.brake:g}" * (self.brake < 1)

    def before(
        self, tensors: Tensors, radii: Tensors, rates: Mapping[Any, Rate], pairs: Collection[Two]
    ) -> WeightsBefore:
        """Copy or measure these weights when a step begins."""
        copies = {name: weight.detach().clone() for name, weight in tensors.items()} if self.relative else {}
        if self.brake == 1:
            return WeightsBefore(copies, rates=rates)
        names, weights = list(tensors), list(tensors.values())
        norms = norms_together(weights, [radii[name] for name in names], places(names, pairs))
        return WeightsBefore(copies, dict(zip(names, norms, strict=True)), rates)

    def act_(
        self,
        tensors: Tensors,
        radii: Tensors,
        pairs: Collection[Two],
        growing: Collection[str],
        when: Tensor | None,
        start: WeightsBefore | None,
        check: DirectionCheck,
    ) -> None:
        """After a step: its length, then projection or the brake. Without a start projection alone."""
        names, weights, limits = list(radii), [tensors[name] for name in radii], list(radii.values())
        together = places(names, pairs)
        if start is not None and self.relative:
            before, rates = (_of(names, found) for found in (start.weights, start.rates))
            relative_(weights, before, limits, rates, together=together)
        if start is None or self.brake == 1:
            project_all_(tensors, radii, pairs, growing, when, check)
            return
        before, grows = _of(names, start.norms), [name in growing for name in names]
        norms = brake_(weights, before, limits, grows, self.brake, together=together, when=when)
        if not is_skipped(when) and check.is_due(
            [n for n, grow in zip(norms, grows, strict=True) if not grow]
        ):
            check.warn({name: tensors[name] for name in names if name not in growing}, radii)

    def check_every(self, every: int) -> None:
        """Refuse `every` above 1 where each update is limited."""
        if every > 1 and self.any:
            raise ValueError(
                f"every={every} projects rarely, and update='relative' or a brake below 1 limit each update; "
                "take every=1, or update='free' with brake=1"
            )

    def check_optimizer(self, optimizer: Any, rates: Mapping[int, Any]) -> None:
        """Refuse an optimizer with several moves in a step, and learning rates outside of [0, 1)."""
        kind = type(optimizer).__name__
        if any(cls.__name__ == "LBFGS" for cls in type(optimizer).__mro__):
            why = f"{kind} moves the weights several times within a step, so there is no one update to limit"
            refuse([], why, f"take an optimizer of single steps, or {_WAY}")
        for rate in rates.values() if self.relative else ():
            if isinstance(rate, bool) or not isinstance(rate, int | float | Tensor):
                why = f"{kind} has lr={rate!r}, and update='relative' needs a number: how long a step is"
                refuse([], why, "give each parameter group an lr, or take update='free'")
            if not 0 <= float(rate) < 1:
                why = f"{kind} has lr={float(rate):g}, which under update='relative' is a share of the weight"
                refuse([], why, "take an lr below 1, such as 0.01, or update='free'")

    def check_by_hand(self, attached: bool) -> None:
        """Refuse `project_()` without an attached optimizer where updates are limited."""
        if self.any and not attached:
            why = "project_() sees no updates, and update='relative' or a brake below 1 limit them"
            refuse([], why, f"attach(optimizer) first, or take {_WAY}")

    def check_state(self, saved: Any) -> None:
        """Refuse a state with another `update` or `brake`: its learning rates mean other steps."""
        there = saved.get("settings") if isinstance(saved, Mapping) else None
        if not isinstance(there, Mapping):
            return
        for option, now in asdict(self).items():
            if (was := there.get(option, getattr(Limits, option))) != now:
                raise ValueError(
                    f"this state was made with {option}={was!r}, and this Projector has {option}={now!r}: "
                    "the same learning rates would mean other steps. Projector(model, "
                    f"{option}={was!r}) goes on as before; to change over on purpose, set "
                    f"state['settings'][{option!r}] = {now!r} and choose new rates"
                )


def _of(names: Sequence[Any], found: Mapping[Any, Any]) -> list[Any]:
    if unseen := [name for name in names if name not in found]:
        why = "was frozen when the step began and is trained now, so how far it was moved is not known"
        refuse(unseen, why, "unfreeze it (requires_grad) before optimizer.step is called")
    return [found[name] for name in names]
