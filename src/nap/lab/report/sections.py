"""The parts of the page: for each experiment its words, its figures and what they should have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nap.lab.report import case_study, revival, robustness, statistics, twins, walk
from nap.lab.report.panels import Figure
from nap.lab.rows import Rows


@dataclass(frozen=True)
class Section:
    """An experiment on the page. `reads` names the experiment whose runs it is drawn from."""

    name: str
    title: str
    shows: str
    reads: str
    figures: Callable[[Rows], list[Figure]]
    missing: Callable[[Rows], list[str]]


SECTIONS = (
    Section(
        "fig1",
        "Figure 1 · Case study: random labels, again and again",
        "Without a norm, weights and gradients grow; with LayerNorm the weights still grow, the gradients "
        "shrink and later tasks are learnt less well; holding the weights' norm keeps the network as good as "
        "a fresh one.",
        "fig1",
        case_study.figures,
        case_study.missing,
    ),
    Section(
        "fig2",
        "Figure 2 · Coupled networks",
        "A projected network can follow its unconstrained twin: almost with one global learning-rate "
        "schedule, exactly with one for each layer.",
        "fig2",
        twins.figures,
        twins.missing,
    ),
    Section(
        "fig4",
        "Figure 4 · Robustness to non-stationarity",
        "Without NaP the methods for keeping plasticity differ widely; with NaP nearly all improve and "
        "the gaps between them shrink.",
        "fig4",
        robustness.figures,
        robustness.missing,
    ),
    Section(
        "stats",
        "Appendix · Statistics of the networks of figure 4",
        "What happens inside those networks: units that became linear, the rank of the features, and the "
        "norms of parameters and gradients.",
        "fig4",
        statistics.figures,
        statistics.missing,
    ),
    Section(
        "revival",
        "Appendix · ReLU revival",
        "When the task changes suddenly, units die; in networks with a norm they come back.",
        "revival",
        revival.figures,
        revival.missing,
    ),
    Section(
        "walk",
        "Appendix · Random-walk model of dead units",
        "Under random gradients a norm slows the dying of units for gradient descent, and for RMSProp-like "
        "steps ends their steady accumulation; centring adds little.",
        "walk",
        walk.figures,
        walk.missing,
    ),
)
