"""Pages about Rainbow: a panel for each game, visits beside fresh agents, the suite's four numbers."""

from __future__ import annotations

import numpy as np

from nap.lab.experiments.common.rainbow import figure as fig3
from nap.lab.experiments.fig5_sequential import figure as fig5_sequential
from nap.lab.experiments.fig5_suite.figure import final_scores, table
from nap.lab.metrics.atari57 import ATARI57
from nap.lab.report.page import missing_arms
from nap.lab.rows import Rows

FOUR = ("Rainbow", "LayerNorm", "NaP", "NaP + schedule")


def suite(arms: tuple[str, ...] = FOUR, seeds: int = 3) -> Rows:
    """Agents whose scores go from random play to so much of a human's: .2, .4, .6, .8."""
    return Rows(
        {"experiment": "fig5-suite", "arm": arm, "game": game, "seed": seed, "frames": 100 * (t + 1)}
        | {"score": low + level * (t + 1) / 20 * (high - low), "parameter_norm": 1.0 + t}
        for level, arm in zip((0.2, 0.4, 0.6, 0.8), arms, strict=False)
        for game in ("pong", "boxing")
        for low, high in [ATARI57[game]]
        for seed in range(seeds)
        for t in range(20)
    ) + Rows(
        [{"kind": "layer", "arm": "NaP", "game": "pong", "seed": 0, "frames": 100, "layer": "x", "norm": 1.0}]
    )


def test_final_scores_are_those_of_the_last_tenth() -> None:
    found = final_scores(suite().where(arm="NaP", kind=None))
    assert set(found) == {"pong", "boxing"}
    np.testing.assert_allclose(found["pong"], 0.6 * (19 + 20) / 40)


def test_the_suite_s_table_has_four_numbers_for_each_agent() -> None:
    page = table(suite())
    assert page is not None
    for text in (
        "mean",
        "median",
        "IQM",
        "optimality gap",
        "NaP + schedule",
        "over 2 games",
        "78.0 % [78.0, 78.0]",
    ):
        assert text in page, text
    assert table(Rows([{"arm": "NaP", "game": "catch", "seed": 0, "frames": 1, "score": 2.0}])) is None


def test_a_panel_for_each_game_and_the_inside_folded() -> None:
    scores, *inside = fig3.figures(suite())
    assert [panel.title for panel in scores.panels] == ["Pong", "Boxing"]
    assert list(scores.legend) == list(FOUR)
    assert all(figure.folded for figure in inside)
    (layers,) = [figure for figure in inside if figure.name.startswith("layers")]
    assert [panel.title for panel in layers.panels] == ["Norm, x"]  # no norm follows it: it has no rate
    assert list(layers.legend) == ["NaP"]
    assert missing_arms(fig3, suite(FOUR[:3])) == ["pong: NaP + schedule", "boxing: NaP + schedule"]


def test_the_second_visit_is_shown_beside_fresh_agents() -> None:
    rows = Rows(
        {
            "arm": arm,
            "game": game,
            "seed": seed,
            "cycle": cycle,
            "visit": visit,
            "score": float(10 * cycle + t),
        }
        | {"frames": 1000 * visit + t, "frames_in_game": t}
        for arm in ("NaP", "fresh Rainbow")
        for visit, (game, cycle) in enumerate([("pong", 1), ("boxing", 1), ("pong", 2), ("boxing", 2)])
        if arm == "NaP" or cycle == 1
        for seed in range(3)
        for t in (1, 2, 3)
    )
    visits, inside = fig5_sequential.figures(rows)
    lines = {line.label: line.curve.y.tolist() for line in visits.panels[0].lines}
    assert lines == {"NaP": [21.0, 22.0, 23.0], "fresh Rainbow": [11.0, 12.0, 13.0]}
    assert [line.label for line in inside.panels[0].lines] == []
