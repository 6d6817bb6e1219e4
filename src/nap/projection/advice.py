"""What a plan says of weights that are pinned although they start small: what it costs, and the ways out."""

from __future__ import annotations

from collections.abc import Iterable

from nap.projection.names import shortened
from nap.projection.policies import SMALL_BRANCH, SMALL_OUTPUT, Sizes, Which, has_gain, learns_tokens, which
from nap.weights import Weight, WeightTable

_COST: dict[Which, str] = {
    "output": "so small a projected output layer cost a language model of width 64 0.1 nats",
    "embeddings": "beside branches that grow, what is looked up fades",
    "branches": "so small projected branches cost a language model of width 64 0.03 nats",
}
_SMALL: dict[Which, float] = {"output": SMALL_OUTPUT, "embeddings": 0.0, "branches": SMALL_BRANCH}


def advice(rows: Iterable[Weight], sizes: Sizes, table: WeightTable) -> tuple[str, ...]:
    """A line for each policy under which weights that start small are pinned; `rows` are the projected."""
    small: dict[Which, list[str]] = {}
    for row in rows:
        kind = which(row)
        if kind is not None and not has_gain(row, table) and sizes.size(row.name) < _limit(kind, table):
            small.setdefault(kind, []).append(row.name)
    return tuple(_line(kind, names, sizes) for kind, names in small.items())


def _limit(kind: Which, table: WeightTable) -> float:
    """An output layer over tokens has many rows to tell apart, and is small sooner."""
    return SMALL_BRANCH if kind == "output" and learns_tokens(table) else _SMALL[kind]


def _line(kind: Which, names: list[str], sizes: Sizes) -> str:
    found = sorted(sizes.size(name) for name in names)
    share = " to ".join(dict.fromkeys(f"{size:.2g}" for size in (found[0], found[-1])))
    it, stays = ("it", "stays") if len(names) == 1 else ("them", "stay")
    ways = f"let {it} grow with {kind}='grow' or {kind}='free'"
    return (
        f"{', '.join(shortened(names))}: pinned at {share} of the fan-in radius, and {stays} so small "
        f"({_COST[kind]}); {ways}, or give {it} a gain with nap.normalize_(model, args, gains='small')"
    )
