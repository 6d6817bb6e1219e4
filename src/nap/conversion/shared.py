"""Activation modules that are called in several places: one norm on their input would be for all of them."""

from __future__ import annotations

from nap.tracing.record import Flow, Meeting
from nap.tracing.values import Carry


def shared_by(flow: Flow, meeting: Meeting, carry: Carry, where: str) -> str:
    """Why the input of the module `where` takes no norm for `carry` alone; empty if it does.

    A module that is called again with results of the same weights is as shared as these are.
    """
    calls = flow.calls[where]
    if calls < 2 or where == carry.site or not where:
        return ""
    sources = flow.uses[carry.key].sources
    same = [
        other
        for other in flow.meetings
        if where in (*other.modules[-1:], *(c.slot for c in other.carry))
        and any(flow.uses[c.key].sources == sources for c in other.carry)
    ]
    if len(same) >= calls:
        return ""
    return (
        f"that is called {calls} times, not always with its product, so a norm there would be for others, too"
    )
