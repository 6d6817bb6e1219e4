"""Figure 4, robustness: online accuracy of every method, without and with NaP."""

from __future__ import annotations

from itertools import product
from typing import Any

from nap.lab.experiments.fig4 import layer_norm_with
from nap.lab.loops.population.settings import LAYER_NORM
from nap.lab.report import style
from nap.lab.report.panels import Figure, Measure, Panel, arms_of, panel, share_y_axis
from nap.lab.report.style import DASH_DOT, DASHED, DOTTED, LineStyle
from nap.lab.rows import Rows

METHOD_STYLES = {
    "none": LineStyle(style.BLACK, width=2.2),
    "L2": LineStyle(style.ORANGE),
    "L2 Init": LineStyle(style.SKY),
    "shrink and perturb": LineStyle(style.GREEN),
    "ReDo": LineStyle(style.GREY, DASHED),
    "leaky ReLU": LineStyle(style.VERMILION),
    "Langevin": LineStyle(style.PURPLE, DASH_DOT),
}
# LayerNorm without projection, not in the paper: alone, and with a method in that method's colour
LAYER_NORM_STYLES = {LAYER_NORM.name: LineStyle(style.BLUE, width=2.2)} | {
    layer_norm_with(method): LineStyle(known.colour, DOTTED, 2.2)
    for method, known in METHOD_STYLES.items()
    if method != "none"
}
STYLES = METHOD_STYLES | LAYER_NORM_STYLES | {"NaP + none": style.NAP}  # of arms, for `nap tune`
LABELS = {"none": "no other method", LAYER_NORM.name: "LayerNorm alone", "mlp": "MLP", "cnn": "CNN"}
NETWORKS = ("mlp", "cnn")
STREAMS = ("random labels", "permuted labels")
NAP_LABELS = {False: "without NaP", True: "with NaP"}
ACCURACY = Measure("accuracy", "Online accuracy", fraction=True)


def figures(rows: Rows) -> list[Figure]:
    """For each stream a grid of networks × {without, with NaP}; the lines are methods."""
    made = []
    for number, stream in enumerate(present(rows, "stream", STREAMS)):
        panels = []
        for network in present(rows, "network", NETWORKS):
            of_network = rows.where(stream=stream, network=network)
            title = LABELS.get(network, network)
            panels += with_and_without(of_network, ACCURACY, title, y_label="online accuracy")
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
    present_runs = {
        (row.get("stream"), row.get("network"), row.get("method"), row.get("nap")) for row in rows
    }
    streams = present(rows, "stream", STREAMS)
    names = [stream for stream in STREAMS if stream not in streams]
    for stream in streams:
        networks = rows.where(stream=stream).unique("network")
        names += [f"{LABELS[network]} on {stream}" for network in NETWORKS if network not in networks]
        for network, method in product(networks, METHOD_STYLES):
            absent = [
                label
                for nap, label in NAP_LABELS.items()
                if (stream, network, method, nap) not in present_runs
            ]
            name = f"{LABELS.get(network, network)} on {stream}: {LABELS.get(method, method)}"
            names += [name] if len(absent) == len(NAP_LABELS) else [f"{name} {label}" for label in absent]
    return names


def with_and_without(rows: Rows, measure: Measure, title: str, **more: Any) -> list[Panel]:
    """Panels without and with NaP, on one y axis."""
    arms = arms_of(rows, METHOD_STYLES | LAYER_NORM_STYLES, key="method", labels=LABELS)
    alone = {LABELS.get(name, name) for name in LAYER_NORM_STYLES}
    with_nap = {label: arm for label, arm in arms.items() if label not in alone}
    return share_y_axis(
        [
            panel(
                rows.where(nap=nap),
                measure,
                with_nap if nap else arms,
                title=f"{title} {label}",
                axis_of=rows,
                **more,
            )
            for nap, label in NAP_LABELS.items()
        ]
    )


def present(rows: Rows, key: str, known: tuple[str, ...]) -> list[str]:
    """The values that have rows, those of the paper first."""
    return sorted(rows.unique(key), key=lambda name: known.index(name) if name in known else len(known))
