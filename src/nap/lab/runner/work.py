"""The interface between the runner and anything that it can run, checkpoint and resume."""

from __future__ import annotations

from typing import Any, Protocol


class Work(Protocol):
    """A long computation in short units, whose state can be saved after each unit.

    All its randomness is a pure function of (seed, purpose, task, epoch), so `state_dict` needs no
    generator states, and a run resumed from any checkpoint computes the same numbers.
    """

    @property
    def total(self) -> int:
        """Number of units."""

    @property
    def done(self) -> int:
        """Units done so far."""

    @property
    def unit(self) -> str:
        """Plural name of the units, for example "epochs"."""

    @property
    def steps_per_unit(self) -> int:
        """Model updates in one unit, summed over members; used for the rate that is shown."""

    def step(self) -> list[dict[str, Any]]:
        """Do one unit, which takes seconds, and return its rows. Raises `NotFinite` before a bad update."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes: tensors, numbers, strings, lists, tuples, dicts, None."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `state_dict`, exactly.

        A work that cannot do so sets an attribute `not_restored` to what it had to start again, in words.
        """


def not_restored(work: Work) -> str:
    """What `load_state_dict` could not restore; "" if it restored everything."""
    return str(getattr(work, "not_restored", ""))


class Wrapped:
    """Delegates to another work; subclasses override what differs."""

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
    """Raised by `load_state_dict` if the run began with other data; says which, and what to do."""


NOT_FINITE = "not finite"  # begins the exit reason of such a run in its manifest


class NotFinite(ArithmeticError):
    """A loss or gradient is NaN or infinite; the message names step, member and tensor."""
