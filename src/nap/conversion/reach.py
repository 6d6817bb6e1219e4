"""Which parts of a model the examples reach: what they do not is neither normalised nor known."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from nap.conversion.decision import Decision
from nap.conversion.placement import Note, Problem
from nap.norms.products import replaced_biases
from nap.tracing.record import Flow
from nap.weights import is_bare_vector

UNREACHED = "no example reaches it"


def note_unreached(decision: Decision, flows: Sequence[Flow]) -> None:
    """Notes the modules and weights that no recorded forward used; with `strict` they are problems."""
    model = decision.model
    seen = set().union(*(flow.seen for flow in flows))
    replaced = replaced_biases(model)
    unused = {
        name
        for name, parameter in model.named_parameters()
        if name not in seen | replaced and not is_bare_vector(model, name, parameter)
    }
    for name in _outermost(model, unused, seen):
        if any(name == path or name.startswith(f"{path}.") for path in decision.options.exclude if path):
            continue
        reason = f"{UNREACHED}: its weights stay as they are"
        if not decision.options.strict or name in decision.options.allow:
            decision.accepted.update({name} & set(decision.options.allow))
            decision.notes.setdefault(name, Note(name, f"{reason}; a list of examples may reach more"))
        else:
            way_out = "give a list of examples that reach it, [(one,), (other,)], "
            way_out += f"exclude it, or accept it as it is with allow=[{name!r}]"
            decision.problems.setdefault(name, Problem(name, reason, way_out))


def _outermost(model: nn.Module, unused: set[str], seen: set[str]) -> list[str]:
    """The largest modules whose weights are all unused; weights by name where others beside them are used."""
    found: list[str] = []
    for path, module in model.named_modules():
        if any(path.startswith(f"{outer}.") for outer in found):
            continue
        names = [f"{path}.{leaf}".lstrip(".") for leaf, _ in module.named_parameters()]
        if path and not seen.intersection(names) and unused.intersection(names):
            found.append(path)
    inside = tuple(f"{path}." for path in found)
    return found + [name for name in sorted(unused) if not name.startswith(inside)]


def unreached(notes: Sequence[Note]) -> tuple[str, ...]:
    """The names of what no example reached."""
    return tuple(note.name for note in notes if note.reason.startswith(UNREACHED))
