"""What each parameter is: its role decides how step 2 of NaP may treat it.

Projection keeps the function only for scale-invariant weights. So every parameter of a model gets
a role, and `Projector` states its policy by role, never by the spelling of a name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Literal

from torch import nn

PLAN_ATTRIBUTE = "_nap_plan"


class Role(StrEnum):
    """What a parameter does to the function that the model computes."""

    SCALE_INVARIANT = "scale-invariant"  # c·W computes the same function, to the last bits
    NORMALISED = "normalised"  # the same, but for the eps of a norm that the model came with
    JOINT = "joint"  # normalised only inside a sum: its share of the sum depends on its norm
    CHAIN = "chain"  # feeds another weight linearly, and no norm cancels its scale exactly
    OUTPUT = "output"  # reaches the output with no norm after it
    UNNORMALISED = "un-normalised"  # enters a nonlinearity as it is: excluded, accepted or a router
    EMBEDDING = "embedding"  # a look-up table that no norm of its own follows
    AFFINE = "affine"  # scale or offset of a norm
    GAIN = "gain"  # the number that step 1 put in front of a layer that started small
    BIAS = "bias"  # any other vector or number
    WEIGHT = "weight"  # a matrix whose use was never traced: only nap.normalize_ or nap.plan can tell
    UNUSED = "unused"  # the example forward never touched it


WEIGHT_ROLES = frozenset(set(Role) - {Role.AFFINE, Role.GAIN, Role.BIAS})

Place = Literal["tokens", "branch"]


@dataclass(frozen=True)
class Weight:
    """One parameter and what is known of it."""

    name: str  # the first of its names in `named_parameters()`
    role: Role
    reason: str = ""
    out_axis: int = 0  # the axis of output features: rows of a Linear, 1 for (in, out) layouts
    stacked: int = 0  # leading axes that list independent weights, such as experts
    groups: int = 1  # of a transposed convolution: its first axis lists the inputs of each
    part: Literal["scale", "offset", "mean", "noise"] | None = None  # of a norm, or of a noisy layer
    beside: str | None = None  # of a noisy layer: the weight that shares its scale, the noise's or the mean's
    homogeneous: bool | None = None  # for AFFINE: only ReLU-like activations follow; None: not traced
    place: Place | None = None  # a table whose rows the input chooses; the last matrix of a residual branch


class WeightTable(Mapping[str, Weight]):
    """Parameters by name; `print` it to read it, `of(role, ...)` to select from it."""

    def __init__(self, rows: Mapping[str, Weight]):
        self._rows = dict(rows)

    def __getitem__(self, name: str) -> Weight:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def of(self, *roles: Role) -> list[Weight]:
        """The rows with one of these roles, in the model's order."""
        return [row for row in self._rows.values() if row.role in roles]

    def __str__(self) -> str:
        wide = max([len(name) for name in self._rows] + [9])
        return "\n".join(
            [f"{'parameter':{wide}}  {'role':15}  reason"]
            + [f"{w.name:{wide}}  {w.role:15}  {w.reason}".rstrip() for w in self._rows.values()]
        )

    __repr__ = __str__

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(row) for row in self._rows.values()]

    @classmethod
    def from_json(cls, rows: list[dict[str, Any]]) -> WeightTable:
        return cls({row["name"]: Weight(**{**row, "role": Role(row["role"])}) for row in rows})


_LAYERS = (nn.Linear, nn.Bilinear, nn.Embedding, nn.EmbeddingBag, nn.modules.conv._ConvNd)
_NORMS = (
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    nn.modules.batchnorm._NormBase,
)


def weight_groups(model: nn.Module) -> WeightTable:
    """Every parameter of `model` with its role.

    A model that went through `nap.normalize_` (or contains one that did) is read from the plan that
    was applied. Elsewhere only structure is known: norms give affine parameters, and each other
    matrix is a `weight` whose role would take an example forward to find.

    >>> import torch
    >>> print(weight_groups(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3))))
    parameter  role             reason
    0.weight   weight           not traced
    0.bias     bias
    1.weight   affine           scale of LayerNorm
    1.bias     affine           offset of LayerNorm
    """
    if not isinstance(model, nn.Module):
        shown = "None" if model is None else f"a {type(model).__name__}"
        raise ValueError(f"weight_groups takes a torch.nn.Module, not {shown}; pass the model itself")
    traced = _traced_rows(model)
    rows = {}
    for name, parameter in model.named_parameters():
        rows[name] = traced.get(name) or _structural_row(model, name, parameter)
    return WeightTable(rows)


def is_bare_vector(model: nn.Module, name: str, parameter: nn.Parameter) -> bool:
    """Whether a parameter is at most a vector of no layer: log_std of shape (1, n) is no weight."""
    owner = model.get_submodule(name.rpartition(".")[0])
    return sum(size > 1 for size in parameter.shape) < 2 and not isinstance(owner, _LAYERS)


def _traced_rows(model: nn.Module) -> dict[str, Weight]:
    rows: dict[str, Weight] = {}
    for prefix, module in model.named_modules():
        plan = getattr(module, PLAN_ATTRIBUTE, None)
        if plan is None:
            continue
        modules = dict(module.named_modules())
        gone = [p for p in plan.placements if not p.is_applied(modules)]
        products = {f"{p.module}.{w}".lstrip(".") for p in gone for w in p.weights if "product" in p.action}
        lost = tuple(f"{p.module}." for p in gone if "product" not in p.action)
        for row in plan.weights.values():
            name = f"{prefix}.{row.name}" if prefix else row.name
            if row.name.startswith(lost) or row.name in products:
                row = Weight(row.name, Role.WEIGHT, "its norm is gone: exchanged after nap.normalize_")
            beside = f"{prefix}.{row.beside}" if prefix and row.beside else row.beside
            rows.setdefault(name, replace(row, name=name, beside=beside))
    return rows


def _structural_row(model: nn.Module, name: str, parameter: nn.Parameter) -> Weight:
    owner, _, leaf = name.rpartition(".")
    module = model.get_submodule(owner)
    if isinstance(module, _NORMS):
        part: Literal["scale", "offset"] = "offset" if leaf == "bias" else "scale"
        return Weight(name, Role.AFFINE, f"{part} of {type(module).__name__}", part=part)
    if parameter.ndim < 2 or is_bare_vector(model, name, parameter):
        return Weight(name, Role.BIAS)
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        return Weight(name, Role.WEIGHT, "not traced", out_axis=1, groups=module.groups)
    return Weight(name, Role.WEIGHT, "not traced")
