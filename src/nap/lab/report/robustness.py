"""Figure 4, robustness: every method without and with NaP, network by network, stream by stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nap.lab.report.limits import share_limits
from nap.lab.report.panels import Figure, Measure, panel
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
NETWORK_WORDS = {"mlp": "MLP", "cnn": "CNN"}
STREAMS = ("random labels", "permuted labels")
NAP_WORDS = {False: "without NaP", True: "with NaP"}
ACCURACY = Measure("accuracy", "Online accuracy", fraction=True)


def figures(rows: Rows) -> list[Figure]:
    """For each stream a grid of networks × {without, with NaP}; the lines are methods."""
    made = []
    for number, stream in enumerate(streams(rows)):
        panels = []
        for network in networks(rows):
            here = rows.where(stream=stream, network=network)
            panels += share_limits(
                [
                    panel(
                        here.where(nap=nap),
                        ACCURACY,
                        methods(here),
                        title=f"{network_words(network)} {words}",
                        y_label="online accuracy",
                    )
                    for nap, words in NAP_WORDS.items()
                ]
            )
        made.append(
            Figure(
                f"fig4-{number}",
                panels,
                columns=2,
                title=stream.capitalize(),
                caption=f"Stream of {stream}: accuracy on each batch before it is learnt, mean over a task.",
            )
        )
    return made


def missing(rows: Rows) -> list[str]:
    """Which of stream, network, method with or without NaP have no rows though their neighbours have."""
    have = {(row.get("stream"), row.get("network"), row.get("method"), row.get("nap")) for row in rows}
    return [
        f"{network_words(network)}, {stream}: {method} {words}"
        for stream in rows.unique("stream")
        for network in ("mlp", "cnn")
        for method in METHODS
        for nap, words in NAP_WORDS.items()
        if (stream, network, method, nap) not in have
    ]


def streams(rows: Rows) -> list[str]:
    """The streams that have rows, random labels first as in the paper."""
    present = rows.unique("stream")
    return [name for name in STREAMS if name in present] + [name for name in present if name not in STREAMS]


def networks(rows: Rows) -> list[str]:
    """The networks that have rows, MLP first as in the paper."""
    present = rows.unique("network")
    return [name for name in NETWORK_WORDS if name in present] + [
        n for n in present if n not in NETWORK_WORDS
    ]


def network_words(network: str) -> str:
    """The name of a network as people write it."""
    return NETWORK_WORDS.get(network, network)


def methods(rows: Rows) -> Mapping[str, tuple[Look, dict[str, Any]]]:
    """The methods that have rows, each with its look, for `panel`."""
    return {name: (look, {"method": name}) for name, look in looks(METHODS, rows.unique("method")).items()}
