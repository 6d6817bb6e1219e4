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
    advantage,
    final_advantage,
    gain,
    growth_factors,
    per_game,
    require_learning,
    scores,
    sharp_rise,
)
from nap.lab.metrics.aggregate import iqm

CAPTION, TEXT, APPENDIX = "Figure 3, caption", "Section 4.2", "Appendix C.1"
BEFORE_END, AFTER_END = (0.35, 0.45), (0.55, 0.65)  # the schedule ends halfway through training


def growth(samples: Samples, metric: str, arm: str, region: Region) -> Evidence:
    """The factor by which a metric changes from the first tenth of training to the last, over games."""
    factors = growth_factors(samples, metric, arm)[:, 0]
    quantity = f"{metric.replace('_', ' ')}, end of training relative to start, {arm}"
    return ratio(quantity, factors, np.ones_like(factors), region)


def below_implicit(samples: Samples) -> Evidence:
    """How far the explicit schedule takes the effective rate down, relative to growing parameters."""
    explicit, implicit = growth_factors(samples, "effective_rate", SCHEDULED, LAYER_NORM).T
    quantity = "change of the effective rate over training, NaP + schedule relative to LayerNorm"
    return ratio(quantity, explicit, implicit, Region(high=1))


def closes_gap(samples: Samples) -> Evidence:
    """NaP with the schedule is not worse than LayerNorm by a tenth of LayerNorm's score."""
    found = scores(samples, SCHEDULED, LAYER_NORM)
    levels = found.during(FINAL)
    region = Region(low=-TENTH * require_learning(float(iqm(levels[:, 1])), LAYER_NORM))
    quantity = "IQM over games at the end of training, NaP + schedule minus LayerNorm"
    return advantage(quantity, levels, region, found.unit)


def stalls(samples: Samples) -> Evidence:
    """Games in which NaP at a constant rate gains less than a tenth of what LayerNorm gains there."""
    found = scores(samples, NAP, LAYER_NORM)
    ours, free = (found.during(FINAL) - found.during(FIRST)).swapaxes(0, 1)

    def evidence(game: int) -> Evidence | None:
        reference = float(free[:, game].mean())
        if reference < 100 * LEARNT:
            return None
        quantity = "gain over training, NaP without schedule"
        return decide(quantity, ours[:, game], Region(high=TENTH * reference), unit=found.unit)

    return at_least(1, per_game(found, evidence))


def outperforms(samples: Samples) -> Evidence:
    """Games in which NaP with the schedule has half again as much as LayerNorm at the end of training."""
    found = scores(samples, SCHEDULED, LAYER_NORM)
    ours, free = found.during(FINAL).swapaxes(0, 1)

    def evidence(game: int) -> Evidence:
        reference = max(float(free[:, game].mean()), 100 * LEARNT)
        quantity = "score at the end of training, NaP + schedule minus LayerNorm"
        gap = ours[:, game] - free[:, game]
        return decide(quantity, gap, Region(low=(RAPID - 1) * reference), unit=found.unit)

    return at_least(SEVERAL, per_game(found, evidence))


def late_jump(samples: Samples) -> Evidence:
    """Games in which scores rise sharply within a tenth of training of the end of the schedule."""
    found = scores(samples, SCHEDULED)
    near, whole = gain(found, BEFORE_END, AFTER_END), gain(found, FIRST, FINAL)
    share = sharp_rise(BEFORE_END, AFTER_END)

    def evidence(game: int) -> Evidence | None:
        if whole[:, game].mean() < 100 * LEARNT:
            return None
        quantity = f"gain around the end of the schedule, minus {100 * share:.0f} % of the whole gain"
        return decide(quantity, (near - share * whole)[:, game], BETTER, unit=found.unit)

    return at_least(SEVERAL, per_game(found, evidence))


CLAIMS = (
    Claim(
        "fig3.layernorm-parameter-norm",
        "With LayerNorm, the parameter norm of a Rainbow agent grows significantly.",
        TEXT,
        lambda s: growth(s, "parameter_norm", LAYER_NORM, GROWS_RAPIDLY),
    ),
    Claim(
        "fig3.layernorm-effective-rate",
        "With LayerNorm, the effective learning rate falls although no schedule is set.",
        TEXT,
        lambda s: growth(s, "effective_rate", LAYER_NORM, FALLS),
    ),
    Claim(
        "fig3.nap-effective-rate",
        "With NaP and no schedule, the effective learning rate stays constant.",
        TEXT,
        lambda s: growth(s, "effective_rate", NAP, CONSTANT),
    ),
    Claim(
        "fig3.constant-rate-worse",
        "At a constant rate, NaP scores less than LayerNorm with free parameters.",
        TEXT,
        lambda s: final_advantage(s, NAP, LAYER_NORM, region=WORSE),
    ),
    Claim(
        "fig3.constant-rate-may-stall",
        "Without a schedule, NaP may fail to improve: in at least one game in which LayerNorm does improve.",
        CAPTION,
        stalls,
    ),
    Claim(
        "fig3.schedule-improves",
        "NaP scores more with a linear schedule than at a constant rate.",
        TEXT,
        lambda s: final_advantage(s, SCHEDULED, NAP, region=BETTER),
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
