"""What the run machinery knows of a piece of work: it goes forward in units and can be laid down."""

from __future__ import annotations

from typing import Any, Protocol


class Work(Protocol):
    """Something long that advances in short units.

    All its randomness is a pure function of (seed, purpose, task, epoch), so `state_dict` needs no
    generator states, and a run resumed from any checkpoint computes the same numbers.
    """

    @property
    def total(self) -> int:
        """Units of progress in all."""

    @property
    def done(self) -> int:
        """Units done so far."""

    @property
    def unit(self) -> str:
        """What the units are called, for example "epochs"."""

    @property
    def steps_per_unit(self) -> int:
        """Model updates in one unit, all members together: for the rate that is shown."""

    def step(self) -> list[dict[str, Any]]:
        """Do one unit, seconds at most; the rows it finished. Raises `NotFinite` before a bad update."""

    def state_dict(self) -> dict[str, Any]:
        """All that changes while working: tensors, numbers, strings, lists, tuples, dicts, None."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a state that `state_dict` gave, exactly.

        A work that cannot has an attribute `not_restored`: in words, what it had to begin anew.
        """


def not_restored(work: Work) -> str:
    """What a work could not go on with when it took up a state; "" where it went on exactly."""
    return str(getattr(work, "not_restored", ""))


class Wrapped:
    """A work that passes everything on to another one; who wraps it changes what is to be different."""

    def __init__(self, work: Work):
        self._work = work

    @property
    def total(self) -> int:
        return self._work.total

    @property
    def done(self) -> int:
        return self._work.done

    @property
    def unit(self) -> str:
        return self._work.unit

    @property
    def steps_per_unit(self) -> int:
        return self._work.steps_per_unit

    @property
    def not_restored(self) -> str:
        return not_restored(self._work)

    def step(self) -> list[dict[str, Any]]:
        return self._work.step()

    def state_dict(self) -> dict[str, Any]:
        return self._work.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._work.load_state_dict(state)


class OtherInputs(ValueError):
    """`load_state_dict` refuses: the run began with other data; the message says which, and the way out."""


NOT_FINITE = "not finite"  # how a manifest calls such an end


class NotFinite(ArithmeticError):
    """A loss or gradient is NaN or infinite: the message names step, member and tensor."""
