"""Rows of single layers: what claims and figures read of a noisy layer is means and noise together."""

from __future__ import annotations

from nap.lab.rows import Rows

TOGETHER = {"norm": "joint_norm", "effective_rate": "joint_rate"}  # of a noisy layer's means and noise


def whole_layers(rows: Rows) -> Rows:
    """A row for each layer and point in time; a noisy layer is one, under the name of its means.

    >>> means = {"kind": "layer", "layer": "mu", "norm": 3.0, "joint_norm": 5.0}
    >>> rows = Rows([means, {"kind": "layer", "layer": "sigma", "norm": 4.0, "noise_of": "mu"}, {"score": 1}])
    >>> [(row["layer"], row["norm"]) for row in whole_layers(rows)]
    [('mu', 5.0)]
    """
    return Rows(
        row | {name: row[joint] for name, joint in TOGETHER.items() if joint in row}
        for row in rows.where(kind="layer")
        if "noise_of" not in row
    )
