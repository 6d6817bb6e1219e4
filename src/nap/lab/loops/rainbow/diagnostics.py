"""Statistics of an agent's network: norms and effective rates by layer, unused units, feature rank."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import nap
from nap import diagnostics
from nap.lab.loops.common.optimizer import geometric_mean
from nap.lab.loops.rainbow.learner import Learner
from nap.weights import WEIGHT_ROLES, Role

FOLLOWED = (Role.SCALE_INVARIANT, Role.NORMALISED, Role.JOINT)  # by a norm, alone or in a sum


def features(learner: Learner, states: Tensor) -> Tensor:
    """The hidden units of both streams on these states, (B, 2 · hidden), with one draw of noise."""
    net, units = learner.online, []
    hooks = [
        relu.register_forward_hook(lambda module, args, output: units.append(output))
        for relu in (net.advantage_relu, net.value_relu)
    ]
    try:
        with torch.no_grad():
            net(states, net.noise(1, learner.generator))
    finally:
        for hook in hooks:
            hook.remove()
    return torch.cat(units, 1)


def numbers(learner: Learner, states: Tensor) -> dict[str, float]:
    """Statistics of the network for a row."""
    units = features(learner, states)
    layers = by_layer(learner)
    squares = [row["norm"] ** 2 for row in layers]
    row = {
        "dead_units": diagnostics.dead_units(units),
        "linearized_units": diagnostics.linearized_units(units),
        "feature_rank": diagnostics.feature_rank(units),
        "parameter_norm": diagnostics.parameter_norm(learner.online),
    }
    out = {name: float(value) for name, value in row.items()} | {"weight_norm": sum(squares) ** 0.5}
    joint = learner.joint_noise
    key = "joint_rate" if joint else "effective_rate"
    alone = (row for row in layers if "effective_rate" in row and not (joint and "noise_of" in row))
    followed = [row.get(key, row["effective_rate"]) for row in alone]
    if followed:
        out["effective_rate"] = geometric_mean(followed)
    return out


def by_layer(learner: Learner) -> list[dict[str, Any]]:
    """Norm of each weight, and the effective rate of those that a norm follows.

    Means and noise of a noisy layer have these together, too: Adam's rate is η/‖(μ, σ)‖ there.
    """
    table, parameters = nap.weight_groups(learner.online), dict(learner.online.named_parameters())
    names = [row.name for row in table.of(*WEIGHT_ROLES)]
    norms = torch.stack([parameters[name].detach().norm() for name in names]).tolist()
    followed = [row.name for row in table.of(*FOLLOWED)]
    rates: dict[str, float] = {}
    if followed:
        rates = nap.effective_learning_rates(learner.online, learner.optimizer, weights=followed)
    by_name = dict(zip(names, norms, strict=True))
    rows = []
    for name, norm in by_name.items():
        row: dict[str, Any] = {"layer": name, "norm": norm}
        if name in rates:
            row["effective_rate"] = rates[name]
        if table[name].part == "noise":
            row["noise_of"] = table[name].beside
        if table[name].part == "mean":
            row["joint_norm"] = math.hypot(norm, by_name[table[name].beside or name])
            if name in rates:
                row["joint_rate"] = rates[name] * norm / row["joint_norm"]
        rows.append(row)
    return rows
