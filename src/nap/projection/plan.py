"""What a `Projector` does to each parameter, why, and what it costs: a value to print and save."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal

from torch import Tensor, nn

from nap.projection.names import shortened
from nap.projection.policies import (
    SMALL_BRANCH,
    SMALL_OUTPUT,
    Policies,
    Sizes,
    Which,
    fan_in_radius,
    has_gain,
    learns_tokens,
    treat,
    which,
)
from nap.projection.sphere import norms_of
from nap.weights import WEIGHT_ROLES, Role, Weight, WeightTable

Action = Literal["project", "grow", "joint", "decay", "free"]
VERBS: dict[Action, str] = {
    "project": "projected",
    "grow": "grows",
    "joint": "joint norm",
    "decay": "pulled",
    "free": "left free",
}
Excluded = str | nn.Parameter | nn.Module
NamePair = tuple[str | None, str | None]

_WHY = {
    Role.SCALE_INVARIANT: "the function stays the same",
    Role.NORMALISED: "the function stays the same, but for the eps of its norm",
    Role.JOINT: "fixes its share of the sum that gets normalised",
    Role.CHAIN: "fixes the scale of a linear chain",
    Role.OUTPUT: "pins the scale of the output",
    Role.EMBEDDING: "fixes the scale of the table",
    Role.UNNORMALISED: "fixes the scale of what enters the nonlinearity",
    Role.WEIGHT: "not traced; Algorithm 1 takes every weight",
    Role.UNUSED: "the example forward never used it; treated like any other weight",
}
_BY_ROW = "the function stays the same only where BatchNorm follows"


@dataclass(frozen=True)
class ProjectionRow:
    """What happens to one parameter, and why."""

    name: str
    role: Role
    action: Action
    reason: str
    radius: float | None = None  # ‖W‖ of the whole tensor: as first measured, or up to where it may grow
    norms: int = 0  # how many norms are kept apart: 1, or one for each row or expert

    def cells(self) -> tuple[str, ...]:
        """The cells of the printed table: name, role, action, norm and reason."""
        norm = "" if self.radius is None else f"{self.radius:.4g}"
        norm = f"up to {norm}" if self.action == "grow" else norm
        apart = f" ({self.norms} norms)" if self.norms > 1 else ""
        return self.name, self.role, VERBS[self.action], norm + apart, self.reason

    def at(self, radius: Tensor | None) -> ProjectionRow:
        """This row with its radius, if it has one."""
        return (
            self
            if radius is None
            else replace(self, radius=radius.cpu().double().norm().item(), norms=radius.numel())
        )


@dataclass(frozen=True)
class ProjectionPlan:
    """Every parameter of a model with what a `Projector` does to it; `print` it to read it.

    Its columns: `role` is what the parameter does to the function (`nap.weight_groups`). `step 2` is what
    happens after an update: "projected" puts the norm back, "grows" lets it be up to its radius, "joint
    norm" and "pulled" are the rules for scale and offset. `norm kept at` is the radius ρ of the whole
    tensor, with the number of norms if rows or experts have one each. `reason` says why. Notes below the
    table say what a choice costs.
    """

    rows: tuple[ProjectionRow, ...]
    advice: tuple[str, ...] = ()  # what it costs, and the way out

    def names(self, *actions: Action) -> list[str]:
        """The parameters that get one of these treatments, or all, in the model's order."""
        return [row.name for row in self.rows if not actions or row.action in actions]

    def at(self, radii: Mapping[str, Tensor]) -> ProjectionPlan:
        """This plan with the radii of those that have one."""
        return replace(self, rows=tuple(row.at(radii.get(row.name)) for row in self.rows))

    def __str__(self) -> str:
        columns = ("parameter", "role", "step 2", "norm kept at", "reason")
        cells_of = [row.cells() for row in self.rows]
        wide = [max(len(cell) for cell in column) for column in zip(columns, *cells_of, strict=True)]
        lines = [
            "  ".join(f"{cell:{width}}" for cell, width in zip(cells, wide, strict=True)).rstrip()
            for cells in (columns, *cells_of)
        ]
        return "\n".join([*lines, *(f"note: {line}" for line in self.advice)])

    def summary(self) -> str:
        """How many parameters get each treatment."""
        counts = Counter(row.action for row in self.rows)
        return ", ".join(f"{counts[action]} {done}" for action, done in VERBS.items() if counts[action])

    def param_groups(
        self, named: Iterable[tuple[str, nn.Parameter]], weight_decay: float, options: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Groups for an optimizer, with decay on the matrices that are not projected."""
        kept, groups = set(self.names("project")), defaultdict[float, list[nn.Parameter]](list)
        for name, parameter in named:
            decayed = name not in kept and parameter.ndim >= 2
            if parameter.requires_grad:
                groups[weight_decay if decayed else 0.0].append(parameter)
        return [{"params": ps, "weight_decay": decay, **options} for decay, ps in groups.items()]

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(row) for row in self.rows]


def decide(
    table: WeightTable,
    sizes: Sizes,
    ndims: Mapping[str, int],
    left_out: Collection[str],
    *,
    per: str,
    policies: Policies,
    affine: Action,
) -> ProjectionPlan:
    """What happens to every parameter of a model: free where left out, else by the policy for its role."""

    def treated(row: Weight) -> tuple[Action, str]:
        if row.name in left_out:
            return "free", "excluded"
        if row.role is Role.AFFINE:
            reasons = {"joint": "scale and offset together to norm √d", "decay": "pulled towards (1, 0)"}
            return affine, reasons.get(affine, "affine='free'")
        if not is_weight(row, ndims[row.name]):
            return "free", "learnable gain of its layer" if row.role is Role.GAIN else "not a weight"
        action, why = treat(row, sizes, policies, table)
        by_row = per == "row" and row.role in (Role.SCALE_INVARIANT, Role.NORMALISED)
        return action, why or (_BY_ROW if by_row else _WHY[row.role])

    rows = [ProjectionRow(name, row.role, *treated(row)) for name, row in table.items()]
    pinned = [table[row.name] for row in rows if row.action == "project"]
    return ProjectionPlan(tuple(rows), advice(pinned, sizes, table))


def is_weight(row: Weight, ndim: int) -> bool:
    """Whether step 2 treats this parameter as a weight."""
    return row.role in WEIGHT_ROLES and (row.role is not Role.UNUSED or ndim >= 2)


def measured(
    table: WeightTable, parameters: Mapping[str, Tensor], left_out: Collection[str], per: str
) -> Sizes:
    """The norms of all weights, and those of entries of 1/√fan_in."""
    rows = [
        row for name, row in table.items() if name not in left_out and is_weight(row, parameters[name].ndim)
    ]
    norms = {row.name: norms_to_keep(row, parameters[row.name], per) for row in rows}
    return Sizes(norms, {row.name: fan_in_radius(row, parameters[row.name], norms[row.name]) for row in rows})


def names_in(model: nn.Module, exclude: Excluded | Iterable[Excluded]) -> set[str]:
    """The parameters that `exclude` means; tied ones by any of their names."""
    entries = [exclude] if isinstance(exclude, Excluded) else list(exclude)
    modules = dict(model.named_modules(remove_duplicate=False))
    by_name = dict(model.named_parameters(remove_duplicate=False))
    names = {id(p): name for name, p in model.named_parameters()}
    left_out = set()
    for entry in entries:
        thing = by_name.get(entry, modules.get(entry)) if isinstance(entry, str) else entry
        inside = thing.parameters() if isinstance(thing, nn.Module) else [thing]
        found = {names[id(p)] for p in inside if id(p) in names}
        if not found:
            shown, hint = f"this {type(entry).__name__}", "name a parameter or module of it"
            if isinstance(entry, str):
                nearest = get_close_matches(entry, [*by_name, *modules], n=1, cutoff=0.0)[0]
                shown, hint = repr(entry), f"did you mean {nearest!r}?"
            raise ValueError(f"exclude: {shown} matches no parameter of {type(model).__name__}; {hint}")
        left_out |= found
    return left_out


def norms_to_keep(row: Weight, parameter: Tensor, per: str) -> Tensor:
    """The norms of a weight to keep: one for the whole tensor, or one for each expert or row."""
    out_axis = row.out_axis if per == "row" and parameter.ndim > 1 else None  # a vector is one row
    return norms_of(parameter, stacked=row.stacked, out_axis=out_axis, groups=row.groups)


def pairs_of(rows: Iterable[Weight]) -> list[NamePair]:
    """Names of scale and offset, paired by the module that owns them."""
    owners: dict[str, dict[str | None, str]] = {}
    for row in rows:
        owners.setdefault(row.name.rpartition(".")[0], {})[row.part] = row.name
    return [(parts.get("scale"), parts.get("offset")) for parts in owners.values()]


_COST: dict[Which, str] = {
    "output": "so small a projected output layer cost a language model of width 64 0.1 nats",
    "embeddings": "beside branches that grow, what is looked up fades",
    "branches": "so small projected branches cost a language model of width 64 0.03 nats",
}
_SMALL: dict[Which, float] = {"output": SMALL_OUTPUT, "embeddings": 0.0, "branches": SMALL_BRANCH}


def advice(rows: Iterable[Weight], sizes: Sizes, table: WeightTable) -> tuple[str, ...]:
    """Advice on projected weights that start small, one line for each policy."""
    small: dict[Which, list[str]] = {}
    for row in rows:
        kind = which(row)
        if kind is not None and not has_gain(row, table) and sizes.size(row.name) < _limit(kind, table):
            small.setdefault(kind, []).append(row.name)
    return tuple(_line(kind, names, sizes) for kind, names in small.items())


def _limit(kind: Which, table: WeightTable) -> float:
    """The size below which a weight is small; higher for an output layer over tokens, with its many rows."""
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
