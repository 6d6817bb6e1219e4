"""Figure 3: the schedule that growing parameters imply for Rainbow, none at all, and an explicit one."""

from __future__ import annotations

import numpy as np

from nap.lab.claims.claim import Claim, Evidence, Region
from nap.lab.claims.effects import (
    CONSTANT,
    FALLS,
    GROWS_RAPIDLY,
    LEARNT,
    RAPID,
    TENTH,
    at_least,
    decide,
    ratio,
)
from nap.lab.claims.samples import Samples
from nap.lab.experiments.common.rainbow.claims import (
    BETTER,
    FINAL,
    FIRST,
    LAYER_NORM,
    NAP,
    SCHEDULED,
    SEVERAL,
    WORSE,
    ahead,
    arms,
    factors,
    gain,
    lead,
    learnt,
    per_game,
    scores,
    sharp,
)
from nap.lab.metrics.aggregate import iqm

CAPTION, TEXT, APPENDIX = "Figure 3, caption", "Section 4.2", "Appendix C.1"
BEFORE_END, AFTER_END = (0.35, 0.45), (0.55, 0.65)  # the schedule ends halfway through training


def growth(samples: Samples, metric: str, arm: str, needs: Region) -> Evidence:
    """By which factor a metric changes from the first tenth of training to the last, in a typical game."""
    found = factors(samples, metric, arm)[:, 0]
    what = f"{metric.replace('_', ' ')}, end of training against start, {arm}"
    return ratio(what, found, np.ones_like(found), needs)


def below_implicit(samples: Samples) -> Evidence:
    """How far the explicit schedule takes the effective rate down, against how far growing parameters do."""
    explicit, implicit = factors(samples, "effective_rate", SCHEDULED, LAYER_NORM).T
    what = "effective rate, end of training against start, NaP + schedule against LayerNorm"
    return ratio(what, explicit, implicit, Region(high=1))


def closes_gap(samples: Samples) -> Evidence:
    """NaP with the schedule against LayerNorm: not worse by a tenth of what LayerNorm scores."""
    found = scores(samples, arms(SCHEDULED, LAYER_NORM))
    levels = found.at(FINAL)
    needs = Region(low=-TENTH * learnt(float(iqm(levels[:, 1])), LAYER_NORM))
    what = "IQM over games at the end of training, NaP + schedule less LayerNorm"
    return lead(what, levels, needs, found.unit)


def stalls(samples: Samples) -> Evidence:
    """Games in which NaP at a constant rate gains less than a tenth of what LayerNorm gains there."""
    found = scores(samples, arms(NAP, LAYER_NORM))
    ours, free = (found.at(FINAL) - found.at(FIRST)).swapaxes(0, 1)

    def decided(game: int) -> Evidence | None:
        reference = float(free[:, game].mean())
        if reference < 100 * LEARNT:
            return None
        what = "gain over training, NaP without schedule"
        return decide(what, ours[:, game], Region(high=TENTH * reference), unit=found.unit)

    return at_least(1, per_game(found, decided))


def outperforms(samples: Samples) -> Evidence:
    """Games in which NaP with the schedule has half again as much as LayerNorm at the end of training."""
    found = scores(samples, arms(SCHEDULED, LAYER_NORM))
    ours, free = found.at(FINAL).swapaxes(0, 1)

    def decided(game: int) -> Evidence:
        reference = max(float(free[:, game].mean()), 100 * LEARNT)
        what = "score at the end of training, NaP + schedule less LayerNorm"
        gap = ours[:, game] - free[:, game]
        return decide(what, gap, Region(low=(RAPID - 1) * reference), unit=found.unit)

    return at_least(SEVERAL, per_game(found, decided))


def late_jump(samples: Samples) -> Evidence:
    """Games in which scores rise sharply where the schedule ends: within a tenth of training of it."""
    found = scores(samples, arms(SCHEDULED))
    near, whole = gain(found, BEFORE_END, AFTER_END), gain(found, FIRST, FINAL)
    share = sharp(BEFORE_END, AFTER_END)

    def decided(game: int) -> Evidence | None:
        if whole[:, game].mean() < 100 * LEARNT:
            return None
        what = f"gain around the end of the schedule, less {100 * share:.0f} % of the whole gain"
        return decide(what, (near - share * whole)[:, game], BETTER, unit=found.unit)

    return at_least(SEVERAL, per_game(found, decided))


CLAIMS = (
    Claim(
        "fig3.layernorm-parameter-norm",
        "With LayerNorm, the parameter norm of a Rainbow agent grows significantly.",
        TEXT,
        lambda s: growth(s, "parameter_norm", LAYER_NORM, GROWS_RAPIDLY),
    ),
    Claim(
        "fig3.layernorm-effective-rate",
        "So the effective learning rate falls, though none is scheduled.",
        TEXT,
        lambda s: growth(s, "effective_rate", LAYER_NORM, FALLS),
    ),
    Claim(
        "fig3.nap-effective-rate",
        "With NaP and no schedule, the effective learning rate stays.",
        TEXT,
        lambda s: growth(s, "effective_rate", NAP, CONSTANT),
    ),
    Claim(
        "fig3.constant-rate-worse",
        "That constant rate makes NaP worse than LayerNorm with free parameters.",
        TEXT,
        lambda s: ahead(s, NAP, LAYER_NORM, needs=WORSE),
    ),
    Claim(
        "fig3.constant-rate-may-stall",
        "Without a schedule, NaP may fail to improve at all: in one game or more, though LayerNorm does.",
        CAPTION,
        stalls,
    ),
    Claim(
        "fig3.schedule-improves",
        "A linear schedule makes NaP better than a constant rate does.",
        TEXT,
        lambda s: ahead(s, SCHEDULED, NAP, needs=BETTER),
    ),
    Claim(
        "fig3.schedule-closes-gap",
        "The schedule closes the gap: NaP with it is not worse than LayerNorm.",
        TEXT,
        closes_gap,
    ),
    Claim(
        "fig3.schedule-outperforms",
        "In several games, NaP with the schedule significantly outperforms LayerNorm's implicit schedule.",
        CAPTION,
        outperforms,
    ),
    Claim(
        "fig3.schedule-late-jump",
        "In several games, scores rise sharply near the end of the schedule.",
        CAPTION,
        late_jump,
    ),
    Claim(
        "fig3.schedule-below-implicit",
        "The schedule takes the effective rate further down than growing parameters do.",
        APPENDIX,
        below_implicit,
    ),
)
