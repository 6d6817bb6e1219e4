"""Statistics of figure 4's networks: linearized units, feature rank, parameter and gradient norm."""

from __future__ import annotations

from nap.lab.report.limits import share_limits
from nap.lab.report.panels import Figure, Measure, panel, spans_decades
from nap.lab.report.robustness import NAP_WORDS, methods, network_words, networks, streams
from nap.lab.rows import Rows

MEASURES = (
    Measure("linearized_units", "Linearized units", fraction=True),
    Measure("feature_rank", "Feature rank"),
    Measure("parameter_norm", "Parameter norm"),
    Measure("gradient_norm", "Gradient norm"),
)


def figures(rows: Rows) -> list[Figure]:
    """For each network and stream: four statistics, without NaP above and with NaP below on the same axes."""
    made: list[Figure] = []
    for stream in streams(rows):
        for network in networks(rows.where(stream=stream)):
            here = rows.where(stream=stream, network=network)
            pairs = [
                share_limits(
                    [
                        panel(
                            here.where(nap=nap),
                            measure,
                            methods(here),
                            title=f"{measure.words}, {words}",
                            log=spans_decades(here, measure),
                        )
                        for nap, words in NAP_WORDS.items()
                    ]
                )
                for measure in MEASURES
            ]
            made.append(
                Figure(
                    f"stats-{len(made)}",
                    [pair[nap] for nap in (0, 1) for pair in pairs],
                    columns=4,
                    title=f"{network_words(network)}, {stream}",
                    caption="Penultimate layer on a probe batch; norms of parameters and gradients.",
                    folded=bool(made),
                )
            )
    return made


def missing(rows: Rows) -> list[str]:
    """Statistics that no row has."""
    return [measure.key for measure in MEASURES if not any(v is not None for v in rows.values(measure.key))]
