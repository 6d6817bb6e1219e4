"""Figure 4: methods that keep a network plastic, each with and without NaP, on one network and stream.

Runs that keep the optimizer's state at a change of task and runs that reset it are judged apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nap.lab.claims.claim import Claim, Evidence, Region, apart
from nap.lab.claims.effects import CHANCE, NOTHING, RAPID, TENTH, at_least, decide, every, skill_of
from nap.lab.claims.samples import Samples, Series, stacked, together
from nap.lab.experiments.fig4 import layer_norm_with
from nap.lab.loops.population.settings import METHODS

BEST = ("L2 Init", "ReDo")
OTHERS = tuple(method for method in METHODS if method not in BEST)
WIDE = 0.25  # "a wide spread": a quarter of what the best method has above chance
CAPTION, TEXT = "Figure 4, caption", "Section 5.1"
APART = ("network", "stream", "optimizer_state")
RESET = {"optimizer_state": "reset"}  # runs before there was the choice lack the arms of LayerNorm alone
UNIFORM = len(METHODS) - 2  # "near-monotonic", "almost uniformly": all methods but ReDo and one more


def accuracy(samples: Samples, method: str, *, nap: bool, **where: Any) -> Series:
    return samples.series("accuracy", method=method, nap=nap, **where)


def levels(samples: Samples, *, nap: bool, methods: tuple[str, ...] = METHODS) -> np.ndarray:
    """Online accuracy in points, mean over all tasks: (seeds, methods)."""
    values, _ = stacked([accuracy(samples, method, nap=nap) for method in methods])
    return 100 * values.mean(2)


def gain(samples: Samples, method: str, needs: Region) -> Evidence:
    """What NaP adds to a method's mean online accuracy."""
    with_nap, base = together(*(accuracy(samples, method, nap=nap) for nap in (True, False)))
    points = 100 * (with_nap.values.mean(1) - base.values.mean(1))
    return decide("NaP's gain in mean online accuracy", points, needs, unit="accuracy points")


def over_layer_norm(samples: Samples, method: str) -> Evidence:
    """What projection adds to LayerNorm: NaP's mean online accuracy less that of LayerNorm alone."""
    with_nap, alone = together(
        accuracy(samples, method, nap=True), accuracy(samples, layer_norm_with(method), nap=False)
    )
    points = 100 * (with_nap.values.mean(1) - alone.values.mean(1))
    what = f"mean online accuracy, NaP less LayerNorm without projection, method “{method}”"
    return decide(what, points, Region(low=0), unit="accuracy points")


def redo_gain(samples: Samples) -> Evidence:
    """What NaP adds to ReDo, less what it adds to the other methods in the mean."""
    others = [method for method in METHODS if method != "ReDo"]
    gains = levels(samples, nap=True, methods=("ReDo", *others))
    gains = gains - levels(samples, nap=False, methods=("ReDo", *others))
    what = "NaP's gain in mean online accuracy, ReDo less the mean of the other methods"
    return decide(what, gains[:, 0] - gains[:, 1:].mean(1), Region(high=0), unit="accuracy points")


def spread(levels: np.ndarray) -> np.ndarray:
    """Best less worst method, of means over seeds: (draws, seeds, methods) → (draws,)."""
    return np.ptp(levels.mean(1), axis=-1).clip(min=NOTHING)


def spread_ratio(what: str, ours: np.ndarray, theirs: np.ndarray, needs: Region) -> Evidence:
    """How far methods lie apart in `ours` against `theirs`, both (seeds, methods)."""

    def log_ratio(both: np.ndarray) -> np.ndarray:
        return np.log(spread(both[:, :, 0])) - np.log(spread(both[:, :, 1]))

    return decide(what, np.stack([ours, theirs], 1), needs, unit="ratio", statistic=log_ratio, log=True)


def relative_spread(samples: Samples, needs: Region, *, nap: bool) -> Evidence:
    """The gap between the best method and the worst, against what the best has above chance."""
    points = levels(samples, nap=nap)
    skill_of(points.max(1) / 100, "the best method")

    def share(levels: np.ndarray) -> np.ndarray:
        return 100 * spread(levels) / (levels.mean(1).max(-1) - 100 * CHANCE)

    unit = "% of the best's accuracy above chance"
    return decide("best less worst method", points, needs, unit=unit, statistic=share)


def spread_shrinks(samples: Samples) -> Evidence:
    """The gap between methods with NaP against that without."""
    pairs = [accuracy(samples, method, nap=nap) for nap in (True, False) for method in METHODS]
    points = 100 * stacked(pairs)[0].mean(2)
    with_nap, base = np.split(points, 2, axis=1)
    needs = Region(high=1 / RAPID)
    return spread_ratio("best less worst method, with NaP against without", with_nap, base, needs)


def best_two(samples: Samples) -> Evidence:
    """The worse of the two that the paper names, less the best of the others."""
    points = levels(samples, nap=False, methods=BEST + OTHERS)

    def lead(levels: np.ndarray) -> np.ndarray:
        means = levels.mean(1)
        return means[:, : len(BEST)].min(1) - means[:, len(BEST) :].max(1)

    order = np.argsort(-points.mean(0))
    first, second = ((BEST + OTHERS)[i] for i in order[:2])
    what = f"the worse of the two, less the best other method (best here: {first}, {second})"
    return decide(what, points, Region(low=0), unit="accuracy points", statistic=lead)


def trend(samples: Samples, method: str) -> Evidence:
    """How a method's online accuracy changes over the tasks under NaP: at least not down by a tenth."""
    series = accuracy(samples, method, nap=True)
    needs = Region(low=-TENTH * skill_of(series.values, f"NaP + {method}"))
    what = "change of online accuracy over the run, by its straight line"
    return decide(what, 100 * series.trend(), needs, unit="accuracy points")


def level_or_trend(samples: Samples) -> Evidence:
    """Under NaP, do methods differ by how they change over the run, or by their level all along?"""
    series = together(*(accuracy(samples, method, nap=True) for method in METHODS))
    change, level = (
        np.stack(of, 1) for of in zip(*((s.trend(), s.values.mean(1)) for s in series), strict=True)
    )
    what = "difference between methods in change over the run, against that in level"
    return spread_ratio(what, change, level, Region(high=1.0))


def between_streams(samples: Samples) -> tuple[np.ndarray, np.ndarray]:
    """Random labels less permuted labels: accuracy of the plain network, and NaP's gain on it, in points."""
    cases = [(stream, nap) for stream in ("random labels", "permuted labels") for nap in (True, False)]
    found = together(*(accuracy(samples, "none", nap=nap, stream=stream) for stream, nap in cases))
    random_nap, random, permuted_nap, permuted = (100 * s.values.mean(1) for s in found)
    return random - permuted, random_nap - random - (permuted_nap - permuted)


def harder(samples: Samples) -> Evidence:
    what = "mean online accuracy, random labels less permuted"
    return decide(what, between_streams(samples)[0], Region(high=0), unit="accuracy points")


def more_pronounced(samples: Samples) -> Evidence:
    what = "NaP's gain, random labels less permuted"
    return decide(what, between_streams(samples)[1], Region(low=0), unit="accuracy points")


CLAIMS = apart(
    APART,
    Claim(
        "fig4.base-wide-spread",
        "Without NaP, methods differ widely in how well they work.",
        f"{CAPTION}; {TEXT}",
        lambda s: relative_spread(s, Region(low=100 * WIDE), nap=False),
    ),
    Claim(
        "fig4.base-best-methods",
        "Without NaP, L2 Init (regenerative regularisation) and ReDo work best.",
        TEXT,
        best_two,
    ),
    Claim(
        "fig4.nap-improves",
        "NaP improves the methods almost uniformly: all but ReDo and at most one more.",
        f"{TEXT}; {CAPTION}",
        lambda s: at_least(
            UNIFORM, {m: gain(s, m, Region(low=0)) for m in METHODS if m != "ReDo"}, of="methods"
        ),
    ),
    Claim(
        "fig4.redo-is-the-exception",
        "ReDo is the exception: NaP improves it less than the others.",
        TEXT,
        redo_gain,
    ),
    Claim(
        "fig4.nap-over-layernorm",
        "NaP learns better than LayerNorm without projection (ours: the figure has no such arm).",
        TEXT,
        lambda s: over_layer_norm(s, "none"),
        only=RESET,
    ),
    Claim(
        "fig4.nap-over-layernorm-with-shrink-and-perturb",
        "So it does where both shrink and perturb at a change of task (ours, too).",
        TEXT,
        lambda s: over_layer_norm(s, "shrink and perturb"),
        only=RESET,
    ),
    Claim(
        "fig4.nap-spread-shrinks",
        "With NaP, the gaps between methods are much smaller.",
        f"{TEXT}; {CAPTION}",
        spread_shrinks,
    ),
    Claim(
        "fig4.nap-mlp-indistinguishable",
        "With NaP, methods are nearly indistinguishable in the MLP.",
        TEXT,
        lambda s: relative_spread(s, Region(high=100 * TENTH), nap=True),
        only={"network": "mlp"},
    ),
    Claim(
        "fig4.nap-constant-or-rising",
        "With NaP, the online accuracy of every method is constant or rising.",
        TEXT,
        lambda s: every({method: trend(s, method) for method in METHODS}),
    ),
    Claim(
        "fig4.nap-level-not-trend",
        "With NaP, methods differ more in how well they learn a task than in how they change over tasks.",
        TEXT,
        level_or_trend,
    ),
    Claim(
        "fig4.random-labels-harder",
        "Random labels are harder than permuted labels.",
        "Appendix B.4",
        harder,
        apart=("network", "optimizer_state"),
    ),
    Claim(
        "fig4.random-labels-pronounced",
        "NaP's effect is more pronounced on random labels than on permuted labels.",
        "Appendix B.4",
        more_pronounced,
        apart=("network", "optimizer_state"),
    ),
)
