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
    arms,
    factors,
    lead,
    learnt,
    per_game,
    scores,
)
from nap.lab.metrics.aggregate import iqm

METHOD, FOOTNOTE = "Section 3.3", "Section 3.3, footnote"


def alike(samples: Samples, ours: str, other: str) -> Evidence:
    """Mean scores of all of training that differ by less than a tenth of the other's."""
    found = scores(samples, arms(ours, other))
    levels = found.at(WHOLE)
    room = TENTH * learnt(float(iqm(levels[:, 1])), other)
    what = f"IQM over games, mean of all of training, “{ours}” less “{other}”"
    return lead(what, levels, Region(-room, room), found.unit)


def not_worse(samples: Samples, ours: str, other: str) -> Evidence:
    """Scores at the end of training that are not worse by a tenth of the other's."""
    found = scores(samples, arms(ours, other))
    levels = found.at(FINAL)
    needs = Region(low=-TENTH * learnt(float(iqm(levels[:, 1])), other))
    return lead(f"IQM over games at the end of training, “{ours}” less “{other}”", levels, needs, found.unit)


def improves_several(samples: Samples, ours: str, other: str) -> Evidence:
    """Games in which one agent ends better than the other by a tenth of that one's score."""
    found = scores(samples, arms(ours, other))
    changed, plain = found.at(FINAL).swapaxes(0, 1)

    def decided(game: int) -> Evidence:
        reference = max(float(plain[:, game].mean()), 0.0)
        what = f"score at the end of training, “{ours}” less “{other}”"
        gap = changed[:, game] - plain[:, game]
        return decide(what, gap, Region(low=TENTH * reference), unit=found.unit)

    return at_least(SEVERAL, per_game(found, decided))


def degrades(samples: Samples, ours: str, other: str) -> Evidence:
    """An agent that ends with less than two thirds of the other's score."""
    found = scores(samples, arms(ours, other))
    levels = found.at(FINAL)
    reference = learnt(float(iqm(levels[:, 1])), other)
    what = f"IQM over games at the end of training, “{ours}” less “{other}”"
    return lead(what, levels, Region(high=-(1 - 1 / RAPID) * reference), found.unit)


def holds_rate_up(samples: Samples) -> Evidence:
    """How far the effective rate falls with weight decay, against how far it falls without."""
    decayed, plain = factors(samples, "effective_rate", LAYER_NORM_DECAY, LAYER_NORM).T
    what = "effective rate, end of training against start, LayerNorm with weight decay against without"
    return ratio(what, decayed, plain, GROWS)


CLAIMS = (
    Claim(
        "ablations.rare-projection-same",
        "Projecting every 1,000 updates gives nearly the same agent as projecting after each.",
        METHOD,
        lambda s: alike(s, RARELY, NAP),
    ),
    Claim(
        "ablations.offsets-little-needed",
        "Removing trainable offsets often has little effect: agents with NaP are not worse without.",
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
        "For it keeps the effective learning rate from falling as far as it does without.",
        "Section 1",
        holds_rate_up,
    ),
)
