"""Rainbow: scores over frames, a panel for each game, and statistics of the networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from nap.lab.experiments.common.rainbow.claims import merge_noisy_layers
from nap.lab.loops.rainbow.settings import LAYER_NORM, NAP, NAP_LINEAR, RAINBOW
from nap.lab.report import style
from nap.lab.report.panels import Figure, Measure, arms_of, panel
from nap.lab.report.style import LineStyle
from nap.lab.rows import Rows

STYLES = {
    RAINBOW.name: style.BASELINE,
    LAYER_NORM.name: style.NORM,
    NAP.name: style.NAP,
    NAP_LINEAR.name: LineStyle(style.ORANGE, width=2.2),
}
EXPECTED_ARMS, EXPECTED_BY = tuple(STYLES), "game"
SCORE = Measure("score", "Score", linear=True)
STATISTICS = (
    Measure("parameter_norm", "Parameter norm"),
    Measure("effective_rate", "Effective learning rate"),
    Measure("linearized_units", "Linearized units", fraction=True),
    Measure("feature_rank", "Feature rank"),
)
LAYER = (Measure("norm", "Norm"), Measure("effective_rate", "Effective rate"))
SCORE_CAPTION = "Score in points: mean of the episodes that ended since the last point."
STATISTICS_CAPTION = (
    "Effective rate: geometric mean over the weights that a norm follows. Units and rank: of the hidden "
    "layers of both streams, on 256 states from the replay."
)
LAYER_CAPTION = (
    "For each layer, the norm of its weights, and the effective rate where a norm follows it. The means and "
    "noise of a noisy layer count together."
)


def figures(rows: Rows, styles: Mapping[str, LineStyle] = STYLES) -> list[Figure]:
    """Scores of every game, then for each game statistics of the networks, as a whole and layer by layer."""
    layers, rows = rows, rows.where(kind=None)
    games = rows.unique("game")
    panels = [
        panel(rows.where(game=game), SCORE, arms_of(rows, styles), x="frames", title=display_name(game))
        for game in games
    ]
    made = [Figure("scores", panels, columns=_columns(games), caption=SCORE_CAPTION)]
    for number, game in enumerate(games):
        made.append(_statistics(rows.where(game=game), styles, f"inside-{number}", display_name(game)))
        made += _layers(layers.where(game=game), styles, f"layers-{number}", display_name(game))
    return made


def visits(rows: Rows, styles: Mapping[str, LineStyle]) -> list[Figure]:
    """Scores on the last visit to each game, fresh agents dotted; then statistics over the whole sequence."""
    layers, rows = rows, rows.where(kind=None)
    games = rows.unique("game")
    last = max(rows.unique("cycle"), default=1)
    panels = []
    for game in games:
        of_game = rows.where(game=game)
        continual = Rows(row for row in of_game if row.get("cycle") == last and not _fresh(row))
        fresh = Rows({"frames_in_game": row.get("frames")} | row for row in of_game if _fresh(row))
        arms = arms_of(rows, styles)
        one = panel(continual + fresh, SCORE, arms, x="frames_in_game", title=display_name(game))
        panels.append(replace(one, x_label="environment frames of this visit"))
    sequence = Rows(row for row in layers if not _fresh(row))
    caption = f"Dotted: a freshly initialised agent on that game alone. {SCORE_CAPTION}"
    title = "all games in sequence"
    return [
        Figure("visits", panels, columns=_columns(games), title=f"Visit number {last}", caption=caption),
        _statistics(sequence.where(kind=None), styles, "inside", title),
        *_layers(sequence, styles, "layers", title),
    ]


def display_name(game: str) -> str:
    """A game's name for people.

    >>> display_name("ms_pacman")
    'Ms Pacman'
    """
    return game.removeprefix("minatar/").replace("_", " ").replace("-", " ").title()


def _statistics(rows: Rows, styles: Mapping[str, LineStyle], name: str, title: str) -> Figure:
    panels = [panel(rows, measure, arms_of(rows, styles), x="frames") for measure in STATISTICS]
    title = f"Statistics of the networks: {title}"
    return Figure(name, panels, columns=4, title=title, caption=STATISTICS_CAPTION, folded=True)


def _layers(rows: Rows, styles: Mapping[str, LineStyle], name: str, title: str) -> list[Figure]:
    """Norm and effective rate of each layer, a panel each; empty without rows of layers."""
    layers = merge_noisy_layers(rows)
    panels = []
    for measure, layer in product(LAYER, sorted(layers.unique("layer"))):
        measured = Rows(row for row in layers.where(layer=layer) if row.get(measure.key) is not None)
        if measured:
            panel_title = f"{measure.label}, {layer.removesuffix('.weight')}"
            panels.append(panel(measured, measure, arms_of(measured, styles), x="frames", title=panel_title))
    if not panels:
        return []
    title = f"Layer by layer: {title}"
    return [Figure(name, panels, columns=4, title=title, caption=LAYER_CAPTION, folded=True)]


def _fresh(row: Mapping[str, Any]) -> bool:
    return str(row.get("arm", "")).startswith("fresh")


def _columns(games: list[str]) -> int:
    return 2 if len(games) < 3 else 3
