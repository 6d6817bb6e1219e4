"""One piece of work that several processes do: process 0 carries it out, the others do as it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from nap.lab.runner.crew import Crew, CrewLost
from nap.lab.runner.work import Work, Wrapped


class Led(Wrapped):
    """A work in the hands of process 0: whoever calls it here has it called on every process."""

    def __init__(self, work: Work, crew: Crew):
        super().__init__(work)
        self._crew = crew

    def step(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._on_all("step")
        return rows

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._on_all("state_dict")
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._on_all("load_state_dict", state)

    def _on_all(self, name: str, *given: Any) -> Any:
        self._crew.shared((name, *given))
        return self._crew.together(partial(getattr(self._work, name), *given))


@contextmanager
def led(work: Work, crew: Crew) -> Iterator[Work]:
    """The work as process 0 calls it, until the end of the block."""
    with ended(crew):
        yield work if crew.size == 1 else Led(work, crew)


@contextmanager
def ended(crew: Crew) -> Iterator[None]:
    """At the end, whatever the reason, the processes that follow are told that it is the end."""
    try:
        yield
    finally:
        if crew.in_step:
            crew.shared(None)


def follow(work: Work, crew: Crew) -> None:
    """Do what process 0 does with its work, until it ends there."""
    while (command := crew.shared()) is not None:
        name, *given = command
        attempt(crew, partial(getattr(work, name), *given))


def attempt(crew: Crew, do: Callable[[], Any]) -> Any:
    """As `together`, but an error gives None: process 0 has it too, or was told, and says what is next."""
    try:
        return crew.together(do)
    except CrewLost:
        raise
    except Exception:
        return None
