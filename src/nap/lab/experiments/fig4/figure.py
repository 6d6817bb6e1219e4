"""Figure 4, robustness: online accuracy of every method, without and with NaP."""

from __future__ import annotations

from itertools import product
from typing import Any

from nap.lab.experiments.fig4 import layer_norm_with
from nap.lab.loops.population.settings import LAYER_NORM
from nap.lab.report.panels import Figure, Measure, Panel, arms_of, panel, share_limits
from nap.lab.report.style import (
    BLACK,
    BLUE,
    DASH_DOT,
    DASHED,
    DOTTED,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Look,
)
from nap.lab.rows import Rows

LOOKS = {
    "none": Look(BLACK, width=2.2),
    "L2": Look(ORANGE),
    "L2 Init": Look(SKY),
    "shrink and perturb": Look(GREEN),
    "ReDo": Look(BLUE, DASHED),
    "leaky ReLU": Look(VERMILION),
    "Langevin": Look(PURPLE, DASH_DOT),
}
# not methods of the paper, and never with NaP: LayerNorm alone, and beside a method in that one's colour
LAYER_NORM_LOOKS = {LAYER_NORM.name: Look(BLUE, width=2.2)} | {
    layer_norm_with(method): Look(look.colour, DOTTED, 2.2)
    for method, look in LOOKS.items()
    if method != "none"
}
WORDS = {"none": "no other method", LAYER_NORM.name: "LayerNorm alone", "mlp": "MLP", "cnn": "CNN"}
NETWORKS = ("mlp", "cnn")
STREAMS = ("random labels", "permuted labels")
NAP_WORDS = {False: "without NaP", True: "with NaP"}
ACCURACY = Measure("accuracy", "Online accuracy", fraction=True)


def figures(rows: Rows) -> list[Figure]:
    """For each stream a grid of networks × {without, with NaP}; the lines are methods."""
    made = []
    for number, stream in enumerate(present(rows, "stream", STREAMS)):
        panels = []
        for network in present(rows, "network", NETWORKS):
            here = rows.where(stream=stream, network=network)
            panels += with_and_without(here, ACCURACY, WORDS.get(network, network), y_label="online accuracy")
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


def missing(rows: Rows) -> list[str]:
    """Streams, networks and methods of the paper's figure that have no rows."""
    have = {(row.get("stream"), row.get("network"), row.get("method"), row.get("nap")) for row in rows}
    streams = present(rows, "stream", STREAMS)
    names = [stream for stream in STREAMS if stream not in streams]
    for stream in streams:
        there = rows.where(stream=stream).unique("network")
        names += [f"{WORDS[network]} on {stream}" for network in NETWORKS if network not in there]
        for network, method in product(there, LOOKS):
            lacks = [words for nap, words in NAP_WORDS.items() if (stream, network, method, nap) not in have]
            what = f"{WORDS.get(network, network)} on {stream}: {WORDS.get(method, method)}"
            names += [what] if len(lacks) == len(NAP_WORDS) else [f"{what} {words}" for words in lacks]
    return names


def with_and_without(rows: Rows, measure: Measure, title: str, **more: Any) -> list[Panel]:
    """Panels without and with NaP, on one y axis."""
    arms = arms_of(rows, LOOKS | LAYER_NORM_LOOKS, key="method", words=WORDS)
    alone = {WORDS.get(name, name) for name in LAYER_NORM_LOOKS}
    with_nap = {words: arm for words, arm in arms.items() if words not in alone}
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


def present(rows: Rows, key: str, known: tuple[str, ...]) -> list[str]:
    """The values that have rows, those of the paper first."""
    return sorted(rows.unique(key), key=lambda name: known.index(name) if name in known else len(known))
