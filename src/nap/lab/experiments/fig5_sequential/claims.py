"""Figure 5, left: one agent plays a list of games twice; how well does it learn on its second visit?

The paper shows learning curves of the second visit, so the mean score of the whole visit is compared.
"""

from __future__ import annotations

from collections.abc import Callable

from nap.lab.claims.claim import Claim, Evidence, NotEnough, Region
from nap.lab.claims.effects import LEARNT, RAPID, TENTH, all_of, decide
from nap.lab.claims.samples import Samples
from nap.lab.experiments import fig5_sequential
from nap.lab.experiments.common.rainbow.claims import (
    BETTER,
    LAYER_NORM,
    NAP,
    RAINBOW,
    WHOLE,
    Scores,
    advantage,
    per_game,
    require_learning,
    scores_of,
)
from nap.lab.metrics.aggregate import iqm
from nap.lab.rows import Rows

FRESH = fig5_sequential.FRESH.name
CAPTION, TEXT = "Figure 5, caption", "Section 5.3"
CYCLES = {RAINBOW: 2, LAYER_NORM: 2, NAP: 2, FRESH: 1}  # a fresh agent sees a game once


def visits(samples: Samples, *names: str) -> Scores:
    """Learning curves of the second visit to every game, or of a fresh agent's only one."""
    agents = {name: {"arm": name, "cycle": CYCLES[name]} for name in names}
    # A fresh agent's run is one visit, so its rows need not say how much of it is in the game: all of it.
    rows = Rows({"frames_in_game": row.get("frames")} | row for row in samples.select(kind=None))
    return scores_of(Samples(rows), agents, along="frames_in_game")


def compared(samples: Samples, ours: str, other: str, region: Callable[[float], Region]) -> Evidence:
    """The mean score of a visit minus another agent's; the region depends on that agent's score."""
    found = visits(samples, ours, other)
    levels = found.during(WHOLE)
    quantity = f"IQM over games, mean of the second visit, {ours} minus {other}"
    return advantage(quantity, levels, region(float(iqm(levels[:, 1]))), found.unit, stratified=False)


def as_good_as_fresh(samples: Samples) -> Evidence:
    """NaP is not worse than a fresh agent by a tenth of its score. Better is fine."""
    return compared(samples, NAP, FRESH, lambda score: Region(low=-TENTH * require_learning(score, FRESH)))


def significantly(samples: Samples, other: str) -> Evidence:
    """NaP scores half again as much as another agent; more than it, if that one is no better than random."""
    return compared(samples, NAP, other, lambda score: Region(low=(RAPID - 1) * max(score, 0.0)))


def poor(samples: Samples) -> Evidence:
    """Rainbow has less than two thirds of a fresh agent's score in every game that a fresh one learns."""
    found = visits(samples, RAINBOW, FRESH)
    ours, fresh = found.during(WHOLE).swapaxes(0, 1)

    def evidence(game: int) -> Evidence | None:
        reference = float(fresh[:, game].mean())
        if reference < 100 * LEARNT:
            return None
        quantity = "mean score of the second visit, Rainbow minus fresh Rainbow"
        gap = ours[:, game] - fresh[:, game]
        return decide(quantity, gap, Region(high=-(1 - 1 / RAPID) * reference), unit=found.unit)

    cases = per_game(found, evidence)
    if not cases:
        raise NotEnough("a fresh Rainbow learns none of the games")
    return all_of(cases)


CLAIMS = (
    Claim(
        "fig5-sequential.nap-as-good-as-fresh",
        "On its second visit to the games, NaP scores as well as a freshly initialised agent.",
        f"{CAPTION}; {TEXT}",
        as_good_as_fresh,
    ),
    Claim(
        "fig5-sequential.nap-beats-fresh",
        "On its second visit, NaP outperforms a freshly initialised Rainbow.",
        "Section 1",
        lambda s: compared(s, NAP, FRESH, lambda score: BETTER),
    ),
    Claim(
        "fig5-sequential.nap-beats-continual",
        "On its second visit, NaP significantly outperforms Rainbow with and without LayerNorm.",
        TEXT,
        lambda s: all_of({other: significantly(s, other) for other in (RAINBOW, LAYER_NORM)}),
    ),
    Claim(
        "fig5-sequential.rainbow-poor",
        "On its second visit, the standard Rainbow does poorly in every game.",
        CAPTION,
        poor,
    ),
)
