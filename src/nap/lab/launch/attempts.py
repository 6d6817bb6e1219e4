"""What follows when a worker has ended: decided from its folder first, then from how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nap.lab.launch.engine import End
from nap.lab.launch.found import Found

Step = Literal["finished", "again", "elsewhere", "failed", "refused"]
FAILED, BAD_USAGE, IN_USE = 1, 2, 3  # exit codes of `nap run` that are told apart
NO_DATA = 4  # a worker's own: `nap run` ends with 2 then


@dataclass(frozen=True)
class Next:
    """What to do with a run, and how many attempts at it in a row were in vain."""

    step: Step
    vain: int


def after(end: End, found: Found, *, moved: bool, vain: int, retries: int) -> Next:
    """What to do next with a run.

    Args:
        end: how its worker ended.
        found: what its folder says now; where that says "finished", nothing else matters.
        moved: whether there is a new checkpoint since the worker began. An attempt without one was in
            vain, whether it failed or was killed; `retries` of them in a row are forgiven.
        vain: attempts in vain before this one.

    >>> after(End(-9), Found("begun", "killed"), moved=True, vain=2, retries=2)
    Next(step='again', vain=0)
    >>> after(End(-9), Found("begun", "killed"), moved=False, vain=2, retries=2)
    Next(step='failed', vain=3)
    """
    if found.state == "finished":
        return Next("finished", 0)
    if found.state == "in use" or end.code == IN_USE:
        return Next("elsewhere", vain)
    if end.code in (BAD_USAGE, NO_DATA):
        return Next("refused", vain)
    vain = 0 if moved else vain + 1
    return Next("failed" if vain > retries or found.hopeless else "again", vain)
