"""Rainbow agents with rare projections, without offsets and with weight decay (§1, §3.3)."""

from __future__ import annotations

from nap.lab.claims.claim import Claim, Evidence, Region
from nap.lab.claims.effects import GROWS, RAPID, TENTH, at_least, decide, ratio
from nap.lab.claims.samples import Samples
from nap.lab.experiments.ablations import LAYER_NORM_DECAY, NO_OFFSETS, RAINBOW_DECAY, RARELY
from nap.lab.experiments.common.rainbow.claims import (
    FINAL,
    LAYER_NORM,
    NAP,
    RAINBOW,
    SEVERAL,
    WHOLE,
    advantage,
    growth_factors,
    per_game,
    require_learning,
    scores,
)
from nap.lab.metrics.aggregate import iqm

METHOD, FOOTNOTE = "Section 3.3", "Section 3.3, footnote"


def alike(samples: Samples, ours: str, other: str) -> Evidence:
    """Mean scores over training that differ by less than a tenth of the other's."""
    found = scores(samples, ours, other)
    levels = found.during(WHOLE)
    tenth = TENTH * require_learning(float(iqm(levels[:, 1])), other)
    quantity = f"IQM over games, mean over training, “{ours}” minus “{other}”"
    return advantage(quantity, levels, Region(-tenth, tenth), found.unit)


def not_worse(samples: Samples, ours: str, other: str) -> Evidence:
    """Scores at the end of training that are not worse by a tenth of the other's."""
    found = scores(samples, ours, other)
    levels = found.during(FINAL)
    region = Region(low=-TENTH * require_learning(float(iqm(levels[:, 1])), other))
    return advantage(
        f"IQM over games at the end of training, “{ours}” minus “{other}”", levels, region, found.unit
    )


def improves_several(samples: Samples, ours: str, other: str) -> Evidence:
    """Games in which one agent ends better than the other by a tenth of the other's score."""
    found = scores(samples, ours, other)
    changed, plain = found.during(FINAL).swapaxes(0, 1)

    def evidence(game: int) -> Evidence:
        reference = max(float(plain[:, game].mean()), 0.0)
        quantity = f"score at the end of training, “{ours}” minus “{other}”"
        gap = changed[:, game] - plain[:, game]
        return decide(quantity, gap, Region(low=TENTH * reference), unit=found.unit)

    return at_least(SEVERAL, per_game(found, evidence))


def degrades(samples: Samples, ours: str, other: str) -> Evidence:
    """An agent that ends with less than two thirds of the other's score."""
    found = scores(samples, ours, other)
    levels = found.during(FINAL)
    reference = require_learning(float(iqm(levels[:, 1])), other)
    quantity = f"IQM over games at the end of training, “{ours}” minus “{other}”"
    return advantage(quantity, levels, Region(high=-(1 - 1 / RAPID) * reference), found.unit)


def slows_rate_decay(samples: Samples) -> Evidence:
    """How far the effective rate falls with weight decay, relative to how far it falls without."""
    decayed, plain = growth_factors(samples, "effective_rate", LAYER_NORM_DECAY, LAYER_NORM).T
    quantity = "change of the effective rate over training, LayerNorm with weight decay relative to without"
    return ratio(quantity, decayed, plain, GROWS)


CLAIMS = (
    Claim(
        "ablations.rare-projection-same",
        "Projecting every 1,000 updates gives nearly the same scores as projecting after each.",
        METHOD,
        lambda s: alike(s, RARELY, NAP),
    ),
    Claim(
        "ablations.offsets-little-needed",
        "Agents with NaP are not worse without trainable offsets.",
        FOOTNOTE,
        lambda s: not_worse(s, NO_OFFSETS, NAP),
    ),
    Claim(
        "ablations.no-offsets-improves",
        "In several games, removing offsets improves a Rainbow agent with NaP.",
        f"{FOOTNOTE}; Appendix on scale and offset",
        lambda s: improves_several(s, NO_OFFSETS, NAP),
    ),
    Claim(
        "ablations.weight-decay-hurts-layernorm",
        "Weight decay dramatically degrades a value-based agent with LayerNorm.",
        "Section 1",
        lambda s: degrades(s, LAYER_NORM_DECAY, LAYER_NORM),
    ),
    Claim(
        "ablations.weight-decay-hurts-rainbow",
        "Weight decay dramatically degrades the standard Rainbow.",
        "Section 1",
        lambda s: degrades(s, RAINBOW_DECAY, RAINBOW),
    ),
    Claim(
        "ablations.weight-decay-holds-rate-up",
        "With weight decay, the effective learning rate falls less than without.",
        "Section 1",
        slows_rate_decay,
    ),
)
