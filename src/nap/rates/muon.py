"""From AdamW to Muon: rates at which each matrix goes on by the relative steps that it took.

AdamW moves the entries of a weight by some 0.2 of its rate (their root mean square; Liu et al., 2025,
arXiv 2502.16982, found 0.2 to 0.4). Muon adds a nearly orthogonal matrix: all min(m, n) singular values of an
m×n one are near 1, so its norm is √min(m, n) and the RMS of its entries 1/√max(m, n). With the rate times
0.2·√max(m, n), torch's adjust_lr_fn="match_rms_adamw", both move a weight equally far at equal rates. How far
AdamW moves a weight in a run at hand depends on its batches and betas; `UpdateRatios` measures it.

On the sphere there is another way: under `Projector(model, update="relative")` the rate is the relative step
for any optimizer, and nothing is to be translated.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from nap.projection.sphere import norms_of
from nap.rates.learning_rate import matrix_like
from nap.weights import Role

MATCHED = 0.2  # RMS of Muon's step at rate 1 with adjust_lr_fn="match_rms_adamw"
_NOT_HIDDEN = (Role.OUTPUT, Role.EMBEDDING)


class MuonRecipe(NamedTuple):
    """Parameter groups for torch.optim.Muon, and for AdamW with all other parameters."""

    muon: list[dict[str, Any]]
    adamw: list[dict[str, Any]]


def muon_groups(
    model: nn.Module,
    lr: float,
    *,
    weight_decay: float = 0.0,
    rms: float = MATCHED,
    measured: Mapping[str, float] | None = None,
    weights: Collection[str] | None = None,
) -> MuonRecipe:
    """Groups in which Muon moves hidden matrices as far as AdamW did at `lr`, and AdamW trains the rest.

    Hidden are the matrices of `nap.weight_groups` that are neither output layers nor tables. Weight decay
    shrinks weights as fast as before. A schedule multiplies all rates, as it did. Muon's singular values are
    near 1 and not 1, so expect steps that are a tenth or two shorter than asked.

    Args:
        lr: of AdamW, at the peak of its schedule.
        weight_decay: of AdamW.
        rms: RMS of AdamW's updates in units of `lr`.
        measured: relative steps ‖ΔW‖/‖W‖ of AdamW at `lr`, by name, such as `UpdateRatios.mean`; instead of
            `rms`, for weights whose norms are now as they were then.
        weights: names of the matrices for Muon, in a model that was never traced.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))
    >>> recipe = muon_groups(model, 1e-3, weight_decay=0.1, weights=["0.weight"])
    >>> [(g["param_names"], g["lr"], g["weight_decay"]) for g in torch.optim.AdamW(recipe.adamw).param_groups]
    [(['0.bias', '1.weight', '1.bias', '3.weight', '3.bias'], 0.001, 0.1)]
    >>> [(len(g["params"]), g["lr"], g["adjust_lr_fn"]) for g in recipe.muon]
    [(1, 0.001, 'match_rms_adamw')]
    """
    for name, value in (("lr", lr), ("rms", rms)):
        if not (isinstance(value, float | int) and 0 < value < math.inf):
            raise ValueError(f"{name} is {value!r}, but it is a number, finite and above 0")
    if not (isinstance(weight_decay, float | int) and 0 <= weight_decay < math.inf):
        raise ValueError(f"weight_decay is {weight_decay!r}, but it is a number, finite and at least 0")
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rows = matrix_like(model, weights)
    chosen = [n for n, row in rows.items() if n in parameters and _fits(parameters[n], row.role, weights)]
    if not chosen:
        raise ValueError(
            f"this {type(model).__name__} has no hidden matrix for Muon; name some with weights=[...]"
        )
    if weights is None and (untraced := [name for name in chosen if rows[name].role is Role.WEIGHT]):
        raise ValueError(
            f"{', '.join(untraced)}: never traced, so it cannot be told which is an output layer or a table, "
            "which AdamW keeps; call nap.normalize_(model, example) first, or name Muon's with weights=[...]"
        )
    rates = dict.fromkeys(chosen, lr * rms / MATCHED)
    if measured is not None:
        rates = {name: _rate_of(name, parameters[name], measured) for name in chosen}
    groups: list[dict[str, Any]] = []
    for rate in dict.fromkeys(rates.values()):
        named = [(name, parameters[name]) for name in chosen if rates[name] == rate]
        decay = weight_decay * lr / rate
        groups.append({"params": named, "lr": rate, "weight_decay": decay, "adjust_lr_fn": "match_rms_adamw"})
    rest = [(name, parameter) for name, parameter in parameters.items() if name not in rates]
    return MuonRecipe(groups, [{"params": rest, "lr": lr, "weight_decay": weight_decay}] if rest else [])


def _fits(parameter: Tensor, role: Role, weights: Collection[str] | None) -> bool:
    """Whether Muon takes this parameter: a hidden matrix, or one that the caller named."""
    return parameter.ndim == 2 and (weights is not None or role not in _NOT_HIDDEN)


def _rate_of(name: str, weight: Tensor, measured: Mapping[str, float]) -> float:
    """The learning rate at which Muon's relative step is `step`."""
    if not (step := measured.get(name, 0.0)) > 0:
        raise ValueError(
            f"measured has no step of {name} (there: {step!r}); measure a run of AdamW on this model with "
            "nap.rates.relative.UpdateRatios, or leave measured out"
        )
    return step * norms_of(weight).item() / math.sqrt(weight.numel()) / MATCHED
