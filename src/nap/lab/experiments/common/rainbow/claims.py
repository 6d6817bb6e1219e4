"""Scores for claims: learning curves of several agents in many games, on one scale.

A row's score is the mean of the episodes that ended since the row before it, and an agent's score the mean of
its rows: the area under the learning curve. Where no episode ended in a part of a run, the score is that of
the last to end before it, or else of the first after it. 0 % is random play and 100 % a human; a game without
human scores is scaled to the range of scores that any agent had in it. Games and seeds are aggregated by the
interquartile mean, so that no single game with a huge score decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nap.lab.claims.claim import Evidence, NotEnough, Region
from nap.lab.claims.effects import LEARNT, RAPID, decide
from nap.lab.claims.samples import Samples, Series, paired
from nap.lab.experiments.experiment import arm_names
from nap.lab.loops.rainbow.settings import FOUR
from nap.lab.metrics.aggregate import Aggregate, iqm, mean
from nap.lab.metrics.atari57 import ATARI57, human_normalised
from nap.lab.rows import Rows

RAINBOW, LAYER_NORM, NAP, SCHEDULED = arm_names(FOUR)
JOINT = {"norm": "joint_norm", "effective_rate": "joint_rate"}  # of a noisy layer's means and noise
Window = tuple[float, float]  # a part of a run or of a visit to a game: from, to, as fractions
SEVERAL = 2  # least number of games that counts as several
FIRST, FINAL, WHOLE = (0.0, 0.1), (0.9, 1.0), (0.0, 1.0)
BETTER, WORSE = Region(low=0), Region(high=0)


@dataclass(frozen=True)
class Scores:
    """Learning curves of several agents in the same games, on the seeds that all of them have."""

    curves: Mapping[tuple[str, str], Series]  # (agent, game) → per cent; NaN where no episode ended
    agents: list[str]
    games: list[str]

    @property
    def unit(self) -> str:
        """What the scores are per cent of."""
        known = [game in ATARI57 for game in self.games]
        human, seen = "% of a human's score", "% of the range of scores"
        return human if all(known) else f"{human} or of the range" if any(known) else seen

    def during(self, window: Window) -> np.ndarray:
        """The mean score in a part of the run: (seeds, agents, games)."""
        means = [[self._mean(agent, game, window) for game in self.games] for agent in self.agents]
        return np.stack([np.stack(of_agent, -1) for of_agent in means], 1)

    def _mean(self, agent: str, game: str, window: Window) -> np.ndarray:
        curve = self.curves[agent, game]
        time = np.array(curve.points) / curve.points[-1]
        inside = (window[0] < time) & (time <= window[1])
        if not inside.any():
            part = f"from {100 * window[0]:.0f} to {100 * window[1]:.0f} % of the run"
            raise NotEnough(f"{agent} in {game} has too few rows: none {part}")
        return np.array(
            [
                self._mean_of_seed(scores, inside, f"{agent} in {game}, seed {seed}")
                for seed, scores in zip(curve.seeds, curve.values, strict=True)
            ]
        )

    @staticmethod
    def _mean_of_seed(scores: np.ndarray, inside: np.ndarray, run: str) -> float:
        ended = np.flatnonzero(np.isfinite(scores))
        if not ended.size:
            raise NotEnough(f"{run}: no episode ended")
        if inside[ended].any():
            return float(scores[ended[inside[ended]]].mean())
        before = ended[ended < np.flatnonzero(inside)[0]]
        return float(scores[before[-1] if before.size else ended[0]])


def rows_by_game(samples: Samples) -> dict[str, Rows]:
    """The rows of each game in which some episode ended, without those of single layers.

    Games may differ in length, so the runs of a game are compared with one another.
    """
    games = sorted(samples.select(kind=None).unique("game"))
    by_game = {game: samples.select(kind=None, game=game) for game in games}
    played = {game: rows for game, rows in by_game.items() if rows.unique("score")}
    if not played:
        raise NotEnough("no rows have a game and a score: too few frames for an episode to end")
    return played


def scores(samples: Samples, *arms: str) -> Scores:
    """The scores of these arms in every game that there are rows of."""
    return scores_of(samples, {arm: {"arm": arm} for arm in arms})


def scores_of(samples: Samples, agents: Mapping[str, Mapping[str, Any]], along: str = "frames") -> Scores:
    """The scores of `agents`, name → what their rows have in common, in every game with rows."""
    games = rows_by_game(samples)
    curves: dict[tuple[str, str], Series] = {}
    for game, rows in games.items():
        of_game = Samples(rows)
        for agent, keys in agents.items():
            # `series` says what is missing. A row need not have a score, but it has a number of episodes.
            series = of_game.series("episodes", along=along, **keys, game=game)
            raw, _, _ = of_game.select(**keys, game=game).matrix("score", by=("seed", along))
            curves[agent, game] = Series(_per_cent(game, raw, rows), series.seeds, series.points)
    on_shared_seeds = paired(*curves.values())
    return Scores(dict(zip(curves, on_shared_seeds, strict=True)), list(agents), list(games))


def _per_cent(game: str, raw: np.ndarray, rows: Rows) -> np.ndarray:
    if game in ATARI57:
        return 100 * human_normalised(game, raw)
    seen = [row["score"] for row in rows if row.get("score") is not None]
    if not seen or max(seen) == min(seen):
        raise NotEnough(
            f"no agent ever changes its score in {game}, which has no human score to compare with"
        )
    return 100 * (raw - min(seen)) / (max(seen) - min(seen))


def advantage(
    quantity: str,
    levels: np.ndarray,
    region: Region,
    unit: str,
    aggregate: Aggregate = iqm,
    *,
    stratified: bool = True,
) -> Evidence:
    """The first agent's score over all games minus that of the best other: (seeds, agents, games).

    Args:
        stratified: each game has agents of its own; not so where one agent plays all of them.
    """

    def gap(drawn: np.ndarray) -> np.ndarray:
        over_games = aggregate(drawn.swapaxes(1, 2))
        return over_games[:, 0] - over_games[:, 1:].max(1)

    return decide(quantity, levels, region, unit=unit, statistic=gap, stratified=stratified)


def final_advantage(
    samples: Samples, ours: str, *others: str, aggregate: str = "IQM", region: Region
) -> Evidence:
    """The score of an arm at the end of training minus that of the best of the others."""
    found = scores(samples, ours, *others)
    other = others[0] if len(others) == 1 else "the best other agent"
    quantity = f"{aggregate} over games at the end of training, {ours} minus {other}"
    return advantage(quantity, found.during(FINAL), region, found.unit, mean if aggregate == "mean" else iqm)


def require_learning(level: float, label: str) -> float:
    """The score in per cent; `NotEnough` if there is next to nothing to keep, to lose or to exceed."""
    if level < 100 * LEARNT:
        raise NotEnough(f"{label} hardly learns: it scores {level:.1f} %, with random or worst play at 0 %")
    return level


def growth_factors(samples: Samples, metric: str, *names: str) -> np.ndarray:
    """The factor by which a metric changes over training, geometric mean over games: (seeds, arms)."""
    games = rows_by_game(samples)
    # A network is not measured before its first update, so a run's first rows may be without the metric.
    measured = {
        game: Samples(Rows(row for row in rows if row.get(metric) is not None))
        for game, rows in games.items()
    }
    runs = [
        measured[game].series(metric, along="frames", arm=arm, game=game) for arm in names for game in games
    ]
    ends = np.array([(run.first(), run.last()) for run in paired(*runs)])
    if (ends <= 0).any():
        raise NotEnough(f"the {metric.replace('_', ' ')} is zero in some runs, so it has no factor")
    logs = np.log(ends[:, 1] / ends[:, 0]).reshape(len(names), len(games), -1)
    return np.exp(logs.mean(1)).T


def per_game(found: Scores, evidence: Callable[[int], Evidence | None]) -> dict[str, Evidence]:
    """The evidence of each game, by its name, without the games that cannot show the effect."""
    cases = ((game, evidence(i)) for i, game in enumerate(found.games))
    return {game: case for game, case in cases if case is not None}


def sharp_rise(start: Window, end: Window) -> float:
    """The fraction of the whole gain that a sharp rise between two parts of training must have.

    It is half again as much as on a straight line.
    """
    return RAPID * (sum(end) - sum(start)) / (sum(FINAL) - sum(FIRST))


def gain(found: Scores, start: Window, end: Window) -> np.ndarray:
    """What the first agent gains between two parts of training: (seeds, games)."""
    return (found.during(end) - found.during(start))[:, 0]


def merge_noisy_layers(rows: Rows) -> Rows:
    """A row for each layer and point in time; a noisy layer is one, under the name of its means.

    >>> means = {"kind": "layer", "layer": "mu", "norm": 3.0, "joint_norm": 5.0}
    >>> rows = Rows([means, {"kind": "layer", "layer": "sigma", "norm": 4.0, "noise_of": "mu"}, {"score": 1}])
    >>> [(row["layer"], row["norm"]) for row in merge_noisy_layers(rows)]
    [('mu', 5.0)]
    """
    return Rows(
        row | {name: row[joint] for name, joint in JOINT.items() if joint in row}
        for row in rows.where(kind="layer")
        if "noise_of" not in row
    )
