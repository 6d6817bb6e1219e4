"""The kinds of effect that claims are made of: from arrays over seeds to evidence.

The thresholds are the same at every scale. A change of less than a tenth counts as none:
accuracy "falls" if it loses more than a tenth of what it was above chance, it "is kept" if it loses less, and
a norm "grows" if it gains a tenth. "Rapid" and "sharp" mean up by half, or down to two thirds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from nap.lab.claims.bootstrap import Interval, Statistic, interval, mean
from nap.lab.claims.claim import Evidence, NotEnough, Region, Verdict
from nap.lab.claims.samples import Samples, Series, at_shared_points, paired

TENTH = 0.1  # smaller changes count as none; near what a reader can see in a figure
RAPID = 1.5  # "rapid", "sharp", "significantly": up by half, or down to two thirds
CHANCE = 0.1  # every data set of the lab has ten classes
LEARNT = 0.02  # least accuracy above chance for a statement about keeping or losing it
MIN_SEEDS = 3  # two seeds have one degree of freedom: t = 12.7
EPSILON = 1e-9  # lower bound of ratios, so that an exact zero has a logarithm
ONE_SIDED = 0.025  # of a 95 % interval
INITIAL_METRICS = ("parameter_norm", "weight_norm", "effective_rate")  # compared with initialisation

GROWS, FALLS = Region(low=1 + TENTH), Region(high=1 / (1 + TENTH))
GROWS_RAPIDLY, FALLS_SHARPLY = Region(low=RAPID), Region(high=1 / RAPID)
CONSTANT = Region(1 / (1 + TENTH), 1 + TENTH)


def decide(
    quantity: str,
    samples: np.ndarray,
    region: Region,
    *,
    unit: str,
    statistic: Statistic = mean,
    log: bool = False,
    stratified: bool = False,
) -> Evidence:
    """The evidence that `statistic` of the samples (seeds first) lies in `region`.

    Args:
        log: the statistic is the logarithm of the effect.
        stratified: the last axis is games, and seeds are resampled within each game.

    >>> decide("gain", np.array([3.0, 4.0, 5.0]), Region(low=0), unit="accuracy points").sentence
    'Gain: 4 accuracy points (95 % interval 1.54 to 6.46, 3 seeds); the claim requires > 0. Holds.'
    """
    seeds = len(samples)
    inverse = np.exp if log else float
    if seeds < MIN_SEEDS:
        effect = float(inverse(statistic(samples[None])[0]))
        reason = f"{seeds} seed{'s' * (seeds > 1)} of at least {MIN_SEEDS}"
        return Evidence(Verdict.OPEN, quantity, unit, effect, region=region, seeds=seeds, reason=reason)
    estimate = interval(samples, statistic, generator=np.random.default_rng(0), stratified=stratified)
    effect, low, high = (float(inverse(value)) for value in estimate[:3])
    verdict = region.verdict(low, high)
    reason = "the interval crosses the limit" if verdict is Verdict.OPEN else ""
    p_holds, p_fails = _p_values(estimate, region, log=log)
    return Evidence(
        verdict, quantity, unit, effect, low, high, region, seeds, reason, p_fails=p_fails, p_holds=p_holds
    )


def _p_values(estimate: Interval, region: Region, *, log: bool) -> tuple[float, float]:
    """One-sided p-values: that chance puts the effect so far inside of the region, or so far outside."""
    low, high = region.low, region.high
    if log:
        low, high = (np.log(bound) if bound > 0 else -np.inf for bound in (low, high))
    above_low, above_high = estimate.p_above(low), estimate.p_above(high)
    return max(above_low, 1 - above_high), min(1 - above_low, above_high)


def ratio(quantity: str, numerator: np.ndarray, denominator: np.ndarray, region: Region) -> Evidence:
    """The geometric mean over seeds of a ratio of positive numbers, such as norms."""
    if (denominator <= 0).any():
        raise NotEnough(f"{quantity}: the denominator is zero")
    logs = np.log((numerator / denominator).clip(min=EPSILON))
    return decide(quantity, logs, region, unit="ratio", log=True)


def difference(
    quantity: str, ours: np.ndarray, theirs: np.ndarray, region: Region, unit: str = "accuracy points"
) -> Evidence:
    """The mean over seeds of a difference of fractions, in points: 100 × (ours − theirs)."""
    return decide(quantity, 100 * (ours - theirs), region, unit=unit)


def growth(samples: Samples, metric: str, region: Region, *, peak: bool = False, **where: Any) -> Evidence:
    """The factor by which a metric changes up to the last tasks, or to its peak.

    Norms and rates of weights are compared with initialisation, if they were measured there. What a network
    learns, such as its Jacobian, is compared with the first tasks: before training it has hardly any.
    """
    series = samples.series(metric, **where)
    end, end_name = (series.peak(), "highest") if peak else (series.last(), "last")
    from_start = metric in INITIAL_METRICS and series.points[0] == 0
    start = series.start() if from_start else series.trained().first()
    name = metric.replace("_", " ").replace("jacobian", "Jacobian")
    reference = "initialisation" if from_start else "first"
    return ratio(f"{name}, {end_name} tasks relative to {reference}", end, start, region)


def above_chance(accuracy: np.ndarray, label: str, chance: float = CHANCE) -> float:
    """Mean accuracy above chance in points; `NotEnough` if there is next to none to keep or to lose."""
    mean = float(accuracy.mean())
    if mean - chance < LEARNT:
        raise NotEnough(f"{label} hardly learns: accuracy {100 * mean:.1f} %, by chance {100 * chance:.3g} %")
    return 100 * (mean - chance)


def accuracy_falls(samples: Samples, **where: Any) -> Evidence:
    """Later tasks are learnt less well: by more than a tenth of the first tasks' accuracy above chance."""
    series = samples.series("accuracy", **where)
    region = Region(high=-TENTH * above_chance(series.first(), "even the first tasks' network"))
    return difference("online accuracy, last tasks minus first", series.last(), series.first(), region)


def accuracy_kept(samples: Samples, arm: str, reference: str) -> Evidence:
    """The last tasks of `arm` are not worse than those of `reference` by a tenth. Better is fine."""
    ours, fresh = paired(*(samples.series("accuracy", arm=name) for name in (arm, reference)))
    region = Region(low=-TENTH * above_chance(fresh.last(), f"arm {reference!r}"))
    return difference(
        "online accuracy of the last tasks, minus a fresh network's", ours.last(), fresh.last(), region
    )


def correlation(a: Series, b: Series) -> np.ndarray:
    """Per seed, Pearson's correlation over tasks; 0 where one of the two is constant."""
    x, y = (s.values - s.values.mean(1, keepdims=True) for s in at_shared_points(*paired(a, b)))
    scale = np.sqrt((x**2).sum(1) * (y**2).sum(1))
    return np.divide((x * y).sum(1), scale, out=np.zeros(len(x)), where=scale > 0)


def holm(cases: Mapping[str, Evidence], verdict: Verdict) -> dict[str, Evidence]:
    """The cases after Holm's step-down correction: those with `verdict` by chance become open.

    >>> sure, lucky = (
    ...     Evidence(Verdict.FAILS, "gain", effect=-1.0, low=-2.0, high=-0.1, p_fails=p) for p in (1e-6, 0.02)
    ... )
    >>> [str(case.verdict) for case in holm({"a": sure, "b": lucky, "c": lucky}, Verdict.FAILS).values()]
    ['fails', 'open', 'open']
    """

    def p_value(name: str) -> float:
        return cases[name].p_fails if verdict is Verdict.FAILS else cases[name].p_holds

    corrected = dict(cases)
    rejecting = True
    named = [name for name, case in cases.items() if case.verdict is verdict]
    for rank, name in enumerate(sorted(named, key=p_value)):
        rejecting = rejecting and p_value(name) <= ONE_SIDED / (len(cases) - rank)
        if not rejecting:
            reason = f"significant alone, not among {len(cases)} cases (Holm's correction)"
            corrected[name] = replace(cases[name], verdict=Verdict.OPEN, reason=reason)
    return corrected


def at_least(least: int, cases: Mapping[str, Evidence], of: str = "games") -> Evidence:
    """One verdict on a claim about some of the cases: holds if `least` of them hold, fails if too few can.

    The numbers are those of the last case that counts, the cases in order of how well they do.
    """
    if len(cases) < least:
        words = f"{least} {of.removesuffix('s') if least == 1 else of}"
        raise NotEnough(f"too few {of} are learnt well enough to show it: {len(cases)} of at least {words}")
    cases = holm(holm(cases, Verdict.HOLDS), Verdict.FAILS)
    rank = [Verdict.HOLDS, Verdict.OPEN, Verdict.FAILS]

    def place(name: str) -> tuple[int, float]:
        case = cases[name]
        assert case.effect is not None
        assert case.region is not None
        slack = min(case.effect - case.region.low, case.region.high - case.effect)
        return rank.index(case.verdict), -slack

    name = sorted(cases, key=place)[least - 1]
    count = sum(case.verdict is Verdict.HOLDS for case in cases.values())
    quantity = (
        f"{cases[name].quantity}: holds in {count} of {len(cases)} {of}, {least} required; here “{name}”"
    )
    return replace(cases[name], quantity=quantity, cases=cases)


def all_of(cases: Mapping[str, Evidence]) -> Evidence:
    """One verdict on a claim about all cases: holds if all hold, fails if any fails.

    That all hold needs no correction; that one fails does, since among many one may by chance (`holm`).
    The numbers are those of the case that is nearest to failing, or that fails most clearly.
    """
    cases = holm(cases, Verdict.FAILS)

    def slack(case: Evidence) -> float:
        if case.region is None or case.low is None or case.high is None:
            return -np.inf
        return min(case.low - case.region.low, case.region.high - case.high)

    verdicts = [case.verdict for case in cases.values()]
    count = verdicts.count(Verdict.HOLDS)
    worst = Verdict.FAILS if Verdict.FAILS in verdicts else Verdict.OPEN
    among = {name: case for name, case in cases.items() if count == len(cases) or case.verdict is worst}
    name = min(among, key=lambda name: slack(among[name]))
    quantity = f"{among[name].quantity}: holds for {count} of {len(cases)}, least for “{name}”"
    return replace(among[name], quantity=quantity, cases=dict(cases), subject="", p_fails=1.0, p_holds=1.0)
