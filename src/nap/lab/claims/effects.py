"""From arrays over seeds to evidence: the few kinds of effect that the claims are made of.

One rule for what counts, at every scale: a change of less than a tenth of what there was is called none.
So accuracy that "falls" loses more than a tenth of what it was above chance, accuracy that "is kept" loses
less, and a norm "grows" when it gains a tenth. Where the paper says "rapid" or "sharp" it must be half again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from nap.lab.claims.bootstrap import Interval, Statistic, interval, mean
from nap.lab.claims.claim import Evidence, NotEnough, Region, Verdict
from nap.lab.claims.samples import Samples, Series, at_shared_points, together

TENTH = 0.1  # smaller changes are called none; near what a reader can see in a figure
RAPID = 1.5  # "rapid", "sharp", "significantly": by half again, or down to two thirds
CHANCE = 0.1  # every data set of the lab has ten classes
LEARNT = 0.02  # accuracy above chance that there must be before it can be kept or lost
FEWEST_SEEDS = 3  # two seeds have one degree of freedom: t = 12.7
NOTHING = 1e-9  # a ratio below this counts as this, so that an exact zero has a logarithm
ONE_SIDED = 0.025  # of a 95 % interval
SIZES = ("parameter_norm", "weight_norm", "effective_rate")  # of weights: from initialisation on

GROWS, FALLS = Region(low=1 + TENTH), Region(high=1 / (1 + TENTH))
GROWS_RAPIDLY, FALLS_SHARPLY = Region(low=RAPID), Region(high=1 / RAPID)
CONSTANT = Region(1 / (1 + TENTH), 1 + TENTH)


def decide(
    what: str,
    samples: np.ndarray,
    needs: Region,
    *,
    unit: str,
    statistic: Statistic = mean,
    log: bool = False,
    stratified: bool = False,
) -> Evidence:
    """The evidence of `samples`, seeds first; with `log` the statistic is the logarithm of the effect.

    `stratified`: the last axis is games, and seeds are resampled within each game.

    >>> decide("gain", np.array([3.0, 4.0, 5.0]), Region(low=0), unit="accuracy points").sentence
    'Gain: 4 accuracy points (95 % interval 1.54 to 6.46, 3 seeds); the claim needs > 0. Holds.'
    """
    seeds = len(samples)
    back = np.exp if log else float
    if seeds < FEWEST_SEEDS:
        effect = float(back(statistic(samples[None])[0]))
        missing = f"{seeds} seed{'s' * (seeds > 1)} of at least {FEWEST_SEEDS}"
        return Evidence(Verdict.OPEN, what, unit, effect, needs=needs, seeds=seeds, missing=missing)
    found = interval(samples, statistic, generator=np.random.default_rng(0), stratified=stratified)
    effect, low, high = (float(back(value)) for value in found[:3])
    verdict = needs.verdict(low, high)
    missing = "the interval reaches past what the claim needs" if verdict is Verdict.OPEN else ""
    inside, outside = _p_values(found, needs, log=log)
    return Evidence(
        verdict, what, unit, effect, low, high, needs, seeds, missing, p_fails=outside, p_holds=inside
    )


def _p_values(found: Interval, needs: Region, *, log: bool) -> tuple[float, float]:
    """One-sided p-values of lying inside of what is needed, and outside."""
    low, high = needs.low, needs.high
    if log:
        low, high = (np.log(bound) if bound > 0 else -np.inf for bound in (low, high))
    above_low, above_high = found.beyond(low), found.beyond(high)
    return max(above_low, 1 - above_high), min(1 - above_low, above_high)


def ratio(what: str, numerator: np.ndarray, denominator: np.ndarray, needs: Region) -> Evidence:
    """The geometric mean over seeds of a ratio of positive numbers, such as norms."""
    if (denominator <= 0).any():
        raise NotEnough(f"{what}: what it is compared with is zero")
    logs = np.log((numerator / denominator).clip(min=NOTHING))
    return decide(what, logs, needs, unit="ratio", log=True)


def growth(samples: Samples, metric: str, needs: Region, *, peak: bool = False, **where: Any) -> Evidence:
    """By which factor a metric changes to the last tasks (or to its highest).

    Sizes of weights are compared with initialisation, where they were measured there. What a network learns,
    such as its Jacobian, begins with the first tasks: a network that was never trained has hardly any.
    """
    series = samples.series(metric, **where)
    end, word = (series.peak(), "highest") if peak else (series.last(), "last")
    initial = metric in SIZES and series.points[0] == 0
    since, start = ("initialisation", series.start()) if initial else ("first", series.trained().first())
    name = metric.replace("_", " ").replace("jacobian", "Jacobian")
    return ratio(f"{name}, {word} tasks against {since}", end, start, needs)


def skill_of(accuracy: np.ndarray, whose: str) -> float:
    """Mean accuracy above chance in points; `NotEnough` where there is next to none to keep or to lose."""
    skill = float(accuracy.mean()) - CHANCE
    if skill < LEARNT:
        raise NotEnough(
            f"{whose} hardly learns: accuracy {100 * float(accuracy.mean()):.0f} %, by chance 10 %"
        )
    return 100 * skill


def accuracy_falls(samples: Samples, **where: Any) -> Evidence:
    """Later tasks are learnt less well: by more than a tenth of the first tasks' accuracy above chance."""
    series = samples.series("accuracy", **where)
    needs = Region(high=-TENTH * skill_of(series.first(), "even the first tasks' network"))
    change = 100 * (series.last() - series.first())
    return decide("online accuracy, last tasks less first", change, needs, unit="accuracy points")


def accuracy_kept(samples: Samples, arm: str, reference: str) -> Evidence:
    """The last tasks of `arm` against the same tasks of `reference`: not worse by a tenth. Better is fine."""
    ours, fresh = together(samples.series("accuracy", arm=arm), samples.series("accuracy", arm=reference))
    needs = Region(low=-TENTH * skill_of(fresh.last(), f"arm {reference!r}"))
    gap = 100 * (ours.last() - fresh.last())
    return decide(
        "online accuracy of the last tasks, less a fresh network's", gap, needs, unit="accuracy points"
    )


def correlation(a: Series, b: Series) -> np.ndarray:
    """Per seed, Pearson's correlation over tasks; 0 where one of the two never changes."""
    x, y = (s.values - s.values.mean(1, keepdims=True) for s in at_shared_points(*together(a, b)))
    scale = np.sqrt((x**2).sum(1) * (y**2).sum(1))
    return np.divide((x * y).sum(1), scale, out=np.zeros(len(x)), where=scale > 0)


def holm(cases: Mapping[str, Evidence], verdict: Verdict) -> dict[str, Evidence]:
    """The cases by Holm's step-down procedure: of so many, some have a verdict by chance; these lose it.

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
            missing = f"significant alone, not among {len(cases)} cases (Holm's correction)"
            corrected[name] = replace(cases[name], verdict=Verdict.OPEN, missing=missing)
    return corrected


def at_least(least: int, cases: Mapping[str, Evidence], of: str = "games") -> Evidence:
    """One verdict on a claim about some cases: holds if so many do, fails if no longer so many can.

    The numbers are those of the last case that is needed, in order of how well they do.
    """
    if len(cases) < least:
        words = f"{least} {of.removesuffix('s') if least == 1 else of}"
        raise NotEnough(f"too few {of} are learnt well enough to show it: {len(cases)} of at least {words}")
    cases = holm(holm(cases, Verdict.HOLDS), Verdict.FAILS)
    rank = [Verdict.HOLDS, Verdict.OPEN, Verdict.FAILS]

    def place(name: str) -> tuple[int, float]:
        case = cases[name]
        assert case.effect is not None
        assert case.needs is not None
        slack = min(case.effect - case.needs.low, case.needs.high - case.effect)
        return rank.index(case.verdict), -slack

    name = sorted(cases, key=place)[least - 1]
    held = sum(case.verdict is Verdict.HOLDS for case in cases.values())
    what = f"{cases[name].what}: holds in {held} of {len(cases)} {of}, {least} needed; here “{name}”"
    return replace(cases[name], what=what, parts=cases)


def every(cases: Mapping[str, Evidence]) -> Evidence:
    """One verdict for a claim about several cases: holds if all do, fails if any does.

    That all hold needs no correction; that one fails does, since among many one may by chance (`holm`).
    The numbers are those of the case that is nearest to failing, or furthest gone.
    """
    cases = holm(cases, Verdict.FAILS)

    def slack(case: Evidence) -> float:
        if case.needs is None or case.low is None or case.high is None:
            return -np.inf
        return min(case.low - case.needs.low, case.needs.high - case.high)

    verdicts = [case.verdict for case in cases.values()]
    held = verdicts.count(Verdict.HOLDS)
    worst = Verdict.FAILS if Verdict.FAILS in verdicts else Verdict.OPEN
    among = {name: case for name, case in cases.items() if held == len(cases) or case.verdict is worst}
    name = min(among, key=lambda name: slack(among[name]))
    case = cases[name]
    return Evidence(
        case.verdict,
        f"{case.what}: holds for {held} of {len(cases)}, least for “{name}”",
        case.unit,
        case.effect,
        case.low,
        case.high,
        case.needs,
        case.seeds,
        case.missing,
        parts=dict(cases),
    )
