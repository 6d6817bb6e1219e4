"""What is being decided: which producers want a norm, what gets one, what is noted and what is refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import nn

from nap.conversion.carriers import ProductKey
from nap.conversion.placement import Note, Options, Placement, Problem
from nap.tracing.record import Use
from nap.tracing.told import names_of


@dataclass
class Want:
    """What the meetings ask of one producer."""

    use: Use
    reasons: dict[str, None] = field(default_factory=dict)
    whole: bool = False
    part: set[int] = field(default_factory=set)
    heads: dict[str, set[frozenset[int]]] = field(default_factory=dict)
    gain: float = 1.0
    batch_norm: bool = False
    keys: set[tuple[int, tuple[str, int, int]]] = field(
        default_factory=set
    )  # of results that asked, by forward


@dataclass
class Decision:
    """What was decided so far."""

    model: nn.Module
    options: Options
    wants: dict[str, Want] = field(default_factory=dict)
    products: dict[ProductKey, Want] = field(
        default_factory=dict
    )  # inside of forwards: see nap.norms.products
    placements: dict[str, Placement] = field(default_factory=dict)
    notes: dict[str, Note] = field(default_factory=dict)
    problems: dict[str, Problem] = field(default_factory=dict)
    last: dict[tuple[int, tuple[str, int, int]], str] = field(
        default_factory=dict
    )  # results, by forward, that only enter this operation, which makes the output
    untracked: frozenset[str] = frozenset()  # products that were given a norm which then did not see them
    accepted: set[str] = field(default_factory=set)  # entries of `allow` that were of use
    summed: set[str] = field(default_factory=set)  # layers that are normalised in sums, where these enter
    by_itself: dict[str, str] = field(default_factory=dict)  # layers that are not; why, if they are in sums

    def excluded(self, site: str) -> bool:
        hit = any(name in ("", site) or site.startswith(f"{name}.") for name in self.options.exclude)
        if hit:
            self.notes[site] = Note(site, "excluded by the caller")
        return hit

    def is_told(self, site: str) -> bool:
        """Whether the caller says what this module is, since it cannot be looked into."""
        told = {*self.options.activations, *self.options.linear}
        return bool(told and names_of(self.model.get_submodule(site), site) & told)

    def refuse(self, name: str, reason: str, way_out: str) -> None:
        if name in self.options.allow:
            self.accepted.add(name)
            self.notes[name] = Note(name, f"accepted by the caller: {reason}")
        else:
            end = f"or accept it as it is with allow=[{name!r}]"
            self.problems.setdefault(name, Problem(name, reason, f"{way_out}, {end}"))

    def note(self, names: Iterable[str], reason: str, *, first: bool = False) -> None:
        """Notes of something that is left as it is why; `first`: unless another reason is known."""
        for name in names:
            if not (first and name in self.notes):
                self.notes[name] = Note(name, reason)

    def leave_one_feature(self, name: str, reason: str) -> None:
        """A gate or an output of one feature stays as it is."""
        why = f"it {reason} with one feature, and a norm over one feature always gives zero"
        self.notes[name] = Note(name, f"{why}: it stays as it is")
