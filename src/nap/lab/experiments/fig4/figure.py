"""Figure 4, robustness: every method without and with NaP; and, of the same runs, what goes on inside."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from nap.lab.report.limits import share_limits
from nap.lab.report.panels import Figure, Measure, Panel, panel
from nap.lab.report.style import (
    BLACK,
    BLUE,
    DASH_DOT,
    DASHED,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Look,
    looks,
)
from nap.lab.rows import Rows

METHODS = {
    "none": Look(BLACK, width=2.2),
    "L2": Look(ORANGE),
    "regenerative": Look(SKY),
    "shrink and perturb": Look(GREEN),
    "ReDo": Look(BLUE, DASHED),
    "leaky ReLU": Look(VERMILION),
    "Langevin": Look(PURPLE, DASH_DOT),
}
LAYER_NORM = {"LayerNorm": Look(BLUE, width=2.2)}  # not a method, and without NaP alone
WORDS = {"none": "no other method", "LayerNorm": "LayerNorm alone", "mlp": "MLP", "cnn": "CNN"}
NETWORKS = ("mlp", "cnn")
STREAMS = ("random labels", "permuted labels")
NAP_WORDS = {False: "without NaP", True: "with NaP"}
ACCURACY = Measure("accuracy", "Online accuracy", fraction=True)
STATISTICS = (
    Measure("linearized_units", "Linearized units", fraction=True),
    Measure("feature_rank", "Feature rank"),
    Measure("parameter_norm", "Parameter norm"),
    Measure("gradient_norm", "Gradient norm"),
)


def figures(rows: Rows) -> list[Figure]:
    """For each stream a grid of networks × {without, with NaP}; the lines are methods."""
    made = []
    for number, stream in enumerate(_present(rows, "stream", STREAMS)):
        panels = []
        for network in _present(rows, "network", NETWORKS):
            here = rows.where(stream=stream, network=network)
            panels += _pair(here, ACCURACY, WORDS.get(network, network), y_label="online accuracy")
        made.append(
            Figure(
                f"fig4-{number}",
                panels,
                columns=2,
                title=stream.capitalize(),
                caption="Accuracy on each batch before it is learnt, mean over a task.",
            )
        )
    return made


def statistics(rows: Rows) -> list[Figure]:
    """For each network and stream four statistics, each without and with NaP on the same axes."""
    made: list[Figure] = []
    for stream in _present(rows, "stream", STREAMS):
        for network in _present(rows.where(stream=stream), "network", NETWORKS):
            here = rows.where(stream=stream, network=network)
            made.append(
                Figure(
                    f"stats-{len(made)}",
                    [one for measure in STATISTICS for one in _pair(here, measure, measure.words)],
                    columns=4,
                    title=f"{WORDS.get(network, network)}, {stream}",
                    caption="Linearized: units of the last hidden layer that are off, or on, for a whole "
                    "probe batch. Rank: of that layer's features. Norms: of all parameters, and of their "
                    "gradient.",
                    folded=bool(made),
                )
            )
    return made


def missing(rows: Rows) -> list[str]:
    """Streams, networks and methods of the paper's figure that have no rows."""
    have = {(row.get("stream"), row.get("network"), row.get("method"), row.get("nap")) for row in rows}
    streams = _present(rows, "stream", STREAMS)
    names = [stream for stream in STREAMS if stream not in streams]
    for stream in streams:
        there = rows.where(stream=stream).unique("network")
        names += [f"{WORDS[network]} on {stream}" for network in NETWORKS if network not in there]
        for network, method in product(there, METHODS):
            lacks = [words for nap, words in NAP_WORDS.items() if (stream, network, method, nap) not in have]
            what = f"{WORDS.get(network, network)} on {stream}: {WORDS.get(method, method)}"
            names += [what] if len(lacks) == len(NAP_WORDS) else [f"{what} {words}" for words in lacks]
    return names


def missing_statistics(rows: Rows) -> list[str]:
    """Statistics that no row has."""
    return [one.words for one in STATISTICS if all(value is None for value in rows.values(one.key))]


def _pair(rows: Rows, measure: Measure, title: str, **more: Any) -> list[Panel]:
    """Panels without and with NaP, on one y axis."""
    methods = looks(METHODS | LAYER_NORM, rows.unique("method"))
    arms: Mapping[str, Any] = {WORDS.get(m, m): (look, {"method": m}) for m, look in methods.items()}
    with_nap = {words: arm for words, arm in arms.items() if words != WORDS["LayerNorm"]}
    return share_limits(
        [
            panel(
                rows.where(nap=nap),
                measure,
                with_nap if nap else arms,
                title=f"{title} {words}",
                axis_of=rows,
                **more,
            )
            for nap, words in NAP_WORDS.items()
        ]
    )


def _present(rows: Rows, key: str, known: tuple[str, ...]) -> list[str]:
    """The values that have rows, those of the paper first."""
    return sorted(rows.unique(key), key=lambda name: known.index(name) if name in known else len(known))
