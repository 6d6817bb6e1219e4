"""From where on a measure is alarming, and why there: the one table that all checks read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Threshold:
    """A limit, what it is compared with, and where it comes from."""

    limit: float
    of: str
    why: str


THRESHOLDS: dict[str, Threshold] = {
    "dead units": Threshold(
        0.5,
        "share of a layer's units that are 0 on every input",
        "at most 0.20 in the healthy networks of the tests; 0.5 to 1 where learning had stopped (Figure 1)",
    ),
    "linearized units": Threshold(
        0.6,
        "share of a layer's units that are 0 on every input, or on none",
        "0.89 in an MLP that had stopped learning (Figure 4); a fresh convolution on digits has 0.47",
    ),
    "samples": Threshold(
        32,
        "inputs of the batch",
        "on fewer, units look dead or linear by chance: all of n inputs on one side has odds of 2 in 2ⁿ",
    ),
    "rank": Threshold(
        2,
        "feature rank of what the last layer reads, where 16 or more were possible",
        "2 of 512 in an MLP that had stopped learning (Figure 4); a task of two classes needs no more",
    ),
    "rank fell": Threshold(
        8,
        "first feature rank over the present one",
        "at most 3.2 in the healthy networks of the tests, where a fit sorts inputs by class",
    ),
    "growth": Threshold(
        8,
        "norm of a weight over its first, or over that of a fresh layer if that is larger",
        "LayerNorm alone still learnt at a growth of 4.4 and no longer at 8.6 (docs/log/2026-11-14)",
    ),
    "growth under a norm": Threshold(
        4,
        "the same, where norms follow and nothing projects",
        "the effective rate of Adam has fallen to a quarter of what was set",
    ),
    "relative step": Threshold(
        0.1,
        "lr / RMS(W) of a projected weight, for each update",
        "ten updates in one direction turn it all the way, and its norm cannot grow to slow it down",
    ),
    "no step": Threshold(
        1e-6,
        "the largest relative step of any weight",
        "a million updates to turn a weight once; float32 rounds steps below 6e-8 away",
    ),
    "no gradient": Threshold(
        1e-12, "root mean square of a weight's gradient", "below the eps of any optimizer in use"
    ),
    "moments too large": Threshold(
        5,
        "√v̂ of Adam over the gradient (root mean squares), while the loss is not low",
        "an update is a fifth of what was set; at most 2.4 in the healthy networks while there is loss",
    ),
    "moments too small": Threshold(
        0.1,
        "√v̂ of Adam over the gradient",
        "the next update is ten times what was set; at least 0.2 in the healthy networks of the tests",
    ),
    "loss not low": Threshold(
        0.3,
        "loss over the first loss",
        "a solved task has small gradients behind large moments, and no fault",
    ),
    "saturated": Threshold(
        0.6,
        "share of a bounded activation's outputs within 1 % of its bounds",
        "there tanh passes less than 4 % of the gradient; a healthy policy has 0.16 after 500 updates",
    ),
    "scales and offsets": Threshold(
        3,
        "root mean square of (σ − 1, μ) of a norm",
        "from 2.4 on half of the units died in the tests; at most 0.8 in healthy ones after 3,000 updates",
    ),
    "projection": Threshold(
        0.01, "|‖W‖/ρ − 1| after an update", "projection leaves 1e-6 in float32 and 4e-3 in bfloat16"
    ),
    "schedule": Threshold(
        0.01, "learning rate over the largest of the schedule", "cosines end at 0 to a tenth of their peak"
    ),
}


def limit(name: str) -> float:
    """The limit of this name."""
    return THRESHOLDS[name].limit
