"""Figure 4: methods that keep a network plastic, each with and without NaP, on one network and stream.

Runs that keep the optimizer's state at a change of task and runs that reset it get separate verdicts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nap.lab.claims.claim import Claim, Evidence, Region, grouped
from nap.lab.claims.effects import (
    CHANCE,
    EPSILON,
    RAPID,
    TENTH,
    above_chance,
    all_of,
    at_least,
    decide,
    difference,
)
from nap.lab.claims.samples import Samples, Series, paired, stacked
from nap.lab.experiments.fig4 import layer_norm_with
from nap.lab.loops.population.settings import METHODS

BEST = ("L2 Init", "ReDo")
OTHERS = tuple(method for method in METHODS if method not in BEST)
WIDE = 0.25  # "a wide spread": a quarter of what the best method has above chance
CAPTION, TEXT = "Figure 4, caption", "Section 5.1"
GROUP_BY = ("network", "stream", "optimizer_state")
RESET = {"optimizer_state": "reset"}  # runs before there was the choice lack the arms of LayerNorm alone
UNIFORM = len(METHODS) - 2  # "near-monotonic", "almost uniformly": all methods but ReDo and one more


def accuracy(samples: Samples, method: str, *, nap: bool, **where: Any) -> Series:
    """Online accuracy of a method over the tasks."""
    return samples.series("accuracy", method=method, nap=nap, **where)


def levels(samples: Samples, *, nap: bool, methods: tuple[str, ...] = METHODS) -> np.ndarray:
    """Online accuracy in points, mean over all tasks: (seeds, methods)."""
    return 100 * stacked([accuracy(samples, method, nap=nap) for method in methods]).mean(2)


def nap_gain(samples: Samples, method: str, region: Region) -> Evidence:
    """What NaP adds to a method's mean online accuracy."""
    with_nap, base = paired(*(accuracy(samples, method, nap=nap) for nap in (True, False)))
    return difference("NaP's gain in mean online accuracy", with_nap.mean(), base.mean(), region)


def over_layer_norm(samples: Samples, method: str) -> Evidence:
    """What projection adds to LayerNorm: NaP's mean online accuracy minus that of LayerNorm alone."""
    with_nap, alone = paired(
        accuracy(samples, method, nap=True), accuracy(samples, layer_norm_with(method), nap=False)
    )
    quantity = f"mean online accuracy, NaP minus LayerNorm without projection, method “{method}”"
    return difference(quantity, with_nap.mean(), alone.mean(), Region(low=0))


def redo_gain(samples: Samples) -> Evidence:
    """What NaP adds to ReDo, minus what it adds to the other methods on average."""
    methods = ("ReDo", *(method for method in METHODS if method != "ReDo"))
    gains = levels(samples, nap=True, methods=methods) - levels(samples, nap=False, methods=methods)
    quantity = "NaP's gain in mean online accuracy, ReDo minus the mean of the other methods"
    return decide(quantity, gains[:, 0] - gains[:, 1:].mean(1), Region(high=0), unit="accuracy points")


def method_range(levels: np.ndarray) -> np.ndarray:
    """Best minus worst method, of means over seeds: (draws, seeds, methods) → (draws,)."""
    return np.ptp(levels.mean(1), axis=-1).clip(min=EPSILON)


def range_ratio(quantity: str, ours: np.ndarray, theirs: np.ndarray, region: Region) -> Evidence:
    """The range of methods in `ours` relative to that in `theirs`, both (seeds, methods)."""

    def log_ratio(both: np.ndarray) -> np.ndarray:
        return np.log(method_range(both[:, :, 0])) - np.log(method_range(both[:, :, 1]))

    return decide(quantity, np.stack([ours, theirs], 1), region, unit="ratio", statistic=log_ratio, log=True)


def relative_range(samples: Samples, region: Region, *, nap: bool) -> Evidence:
    """The gap between the best method and the worst, relative to what the best has above chance."""
    points = levels(samples, nap=nap)
    above_chance(points.max(1) / 100, "the best method")

    def share(levels: np.ndarray) -> np.ndarray:
        return 100 * method_range(levels) / (levels.mean(1).max(-1) - 100 * CHANCE)

    unit = "% of the best's accuracy above chance"
    return decide("best minus worst method", points, region, unit=unit, statistic=share)


def range_shrinks(samples: Samples) -> Evidence:
    """The gap between methods with NaP relative to that without."""
    pairs = [accuracy(samples, method, nap=nap) for nap in (True, False) for method in METHODS]
    with_nap, base = np.split(100 * stacked(pairs).mean(2), 2, axis=1)
    quantity = "best minus worst method, with NaP relative to without"
    return range_ratio(quantity, with_nap, base, Region(high=1 / RAPID))


def best_two(samples: Samples) -> Evidence:
    """The worse of the two methods that the paper names, minus the best of the others."""
    points = levels(samples, nap=False, methods=BEST + OTHERS)

    def lead(levels: np.ndarray) -> np.ndarray:
        means = levels.mean(1)
        return means[:, : len(BEST)].min(1) - means[:, len(BEST) :].max(1)

    order = np.argsort(-points.mean(0))
    first, second = ((BEST + OTHERS)[i] for i in order[:2])
    quantity = f"the worse of the two, minus the best other method (best here: {first}, {second})"
    return decide(quantity, points, Region(low=0), unit="accuracy points", statistic=lead)


def trend(samples: Samples, method: str) -> Evidence:
    """The change of a method's online accuracy over the tasks under NaP: not down by a tenth."""
    series = accuracy(samples, method, nap=True)
    region = Region(low=-TENTH * above_chance(series.values, f"NaP + {method}"))
    quantity = "change of online accuracy over the run, by linear regression"
    return decide(quantity, 100 * series.trend(), region, unit="accuracy points")


def level_or_trend(samples: Samples) -> Evidence:
    """Under NaP, the range of methods in their change over the run, relative to that in their mean."""
    series = paired(*(accuracy(samples, method, nap=True) for method in METHODS))
    change, level = (
        np.stack(values, 1) for values in zip(*((s.trend(), s.mean()) for s in series), strict=True)
    )
    quantity = "range of methods in change over the run, relative to that in mean accuracy"
    return range_ratio(quantity, change, level, Region(high=1.0))


def between_streams(samples: Samples) -> tuple[np.ndarray, np.ndarray]:
    """Random minus permuted labels, in points: accuracy of the plain network, and NaP's gain on it."""
    cases = [(stream, nap) for stream in ("random labels", "permuted labels") for nap in (True, False)]
    series = paired(*(accuracy(samples, "none", nap=nap, stream=stream) for stream, nap in cases))
    random_nap, random, permuted_nap, permuted = (100 * s.mean() for s in series)
    return random - permuted, random_nap - random - (permuted_nap - permuted)


def harder(samples: Samples) -> Evidence:
    """Accuracy of the plain network on random labels minus that on permuted ones."""
    quantity = "mean online accuracy, random labels minus permuted"
    return decide(quantity, between_streams(samples)[0], Region(high=0), unit="accuracy points")


def larger_gain(samples: Samples) -> Evidence:
    """NaP's gain on random labels minus that on permuted ones."""
    quantity = "NaP's gain, random labels minus permuted"
    return decide(quantity, between_streams(samples)[1], Region(low=0), unit="accuracy points")


CLAIMS = grouped(
    GROUP_BY,
    Claim(
        "fig4.base-wide-spread",
        "Without NaP, methods differ widely in how well they work.",
        f"{CAPTION}; {TEXT}",
        lambda s: relative_range(s, Region(low=100 * WIDE), nap=False),
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
            UNIFORM, {m: nap_gain(s, m, Region(low=0)) for m in METHODS if m != "ReDo"}, of="methods"
        ),
    ),
    Claim(
        "fig4.redo-is-the-exception",
        "ReDo is the exception: NaP improves it less than the other methods.",
        TEXT,
        redo_gain,
    ),
    Claim(
        "fig4.nap-over-layernorm",
        "NaP learns better than LayerNorm without projection (ours: the figure has no such arm).",
        TEXT,
        lambda s: over_layer_norm(s, "none"),
        applies_to=RESET,
    ),
    Claim(
        "fig4.nap-over-layernorm-with-shrink-and-perturb",
        "With shrink and perturb, NaP learns better than LayerNorm without projection (ours, too).",
        TEXT,
        lambda s: over_layer_norm(s, "shrink and perturb"),
        applies_to=RESET,
    ),
    Claim(
        "fig4.nap-spread-shrinks",
        "With NaP, the gaps between methods are much smaller.",
        f"{TEXT}; {CAPTION}",
        range_shrinks,
    ),
    Claim(
        "fig4.nap-mlp-indistinguishable",
        "With NaP, methods are nearly indistinguishable in the MLP.",
        TEXT,
        lambda s: relative_range(s, Region(high=100 * TENTH), nap=True),
        applies_to={"network": "mlp"},
    ),
    Claim(
        "fig4.nap-constant-or-rising",
        "With NaP, the online accuracy of every method is constant or rising.",
        TEXT,
        lambda s: all_of({method: trend(s, method) for method in METHODS}),
    ),
    Claim(
        "fig4.nap-level-not-trend",
        "With NaP, methods differ more in their mean accuracy than in how it changes over tasks.",
        TEXT,
        level_or_trend,
    ),
    Claim(
        "fig4.random-labels-harder",
        "Random labels are harder than permuted labels.",
        "Appendix B.4",
        harder,
        group_by=("network", "optimizer_state"),
    ),
    Claim(
        "fig4.random-labels-pronounced",
        "NaP's effect is more pronounced on random labels than on permuted labels.",
        "Appendix B.4",
        larger_gain,
        group_by=("network", "optimizer_state"),
    ),
)
