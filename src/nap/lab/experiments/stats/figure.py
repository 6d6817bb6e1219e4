"""Statistics of the networks of Figure 4, without and with NaP."""

from __future__ import annotations

from nap.lab.experiments.fig4.figure import LABELS, NETWORKS, STREAMS, present, with_and_without
from nap.lab.report.panels import Figure, Measure
from nap.lab.rows import Rows

STATISTICS = (
    Measure("linearized_units", "Linearized units", fraction=True),
    Measure("feature_rank", "Feature rank"),
    Measure("parameter_norm", "Parameter norm"),
    Measure("gradient_norm", "Gradient norm"),
)


def figures(rows: Rows) -> list[Figure]:
    """For each network and stream four statistics, each without and with NaP on the same axes."""
    made: list[Figure] = []
    for stream in present(rows, "stream", STREAMS):
        for network in present(rows.where(stream=stream), "network", NETWORKS):
            here = rows.where(stream=stream, network=network)
            made.append(
                Figure(
                    f"stats-{len(made)}",
                    [one for measure in STATISTICS for one in with_and_without(here, measure, measure.label)],
                    columns=4,
                    title=f"{LABELS.get(network, network)}, {stream}",
                    caption="Linearized: units of the last hidden layer that are off, or on, for a whole "
                    "probe batch. Rank: of that layer's features. Norms: of all parameters, and of their "
                    "gradient.",
                    folded=bool(made),
                )
            )
    return made


def missing(rows: Rows) -> list[str]:
    """Statistics that no row has."""
    return [one.label for one in STATISTICS if all(value is None for value in rows.values(one.key))]
