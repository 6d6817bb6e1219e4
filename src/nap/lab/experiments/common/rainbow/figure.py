"""Rainbow: scores over frames, a panel for each game, and what goes on inside the networks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from nap.lab.experiments.common.rainbow.claims import merge_noisy_layers
from nap.lab.loops.rainbow.settings import LAYER_NORM, NAP, NAP_LINEAR, RAINBOW
from nap.lab.report.panels import Figure, Measure, arms_of, lacking, panel
from nap.lab.report.style import BLUE, GREEN, ORANGE, VERMILION, Look
from nap.lab.rows import Rows

LOOKS = {
    RAINBOW.name: Look(VERMILION),
    LAYER_NORM.name: Look(BLUE),
    NAP.name: Look(GREEN, width=2.2),
    NAP_LINEAR.name: Look(ORANGE, width=2.2),
}
SCORE = Measure("score", "Score", linear=True)
INSIDE = (
    Measure("parameter_norm", "Parameter norm"),
    Measure("effective_rate", "Effective learning rate"),
    Measure("linearized_units", "Linearized units", fraction=True),
    Measure("feature_rank", "Feature rank"),
)
SCORES = "Score: points of the episodes that ended since the last point, mean."
LAYER = (Measure("norm", "Norm"), Measure("effective_rate", "Effective rate"))
LAYERS = (
    "For each layer the norm of its weights, and the effective rate where a norm follows it. A noisy layer's "
    "means and noise count together."
)
STATISTICS = (
    "Effective rate: geometric mean over the weights that a norm follows. Units and rank: of the hidden "
    "layers of both streams, on 256 states from the replay."
)


def scores(rows: Rows, looks: Mapping[str, Look]) -> list[Figure]:
    """Scores of every game, then for each game what goes on inside, as a whole and layer by layer."""
    of_layers, rows = rows, rows.where(kind=None)
    games = rows.unique("game")
    panels = [
        panel(rows.where(game=game), SCORE, arms_of(rows, looks), x="frames", title=words(game))
        for game in games
    ]
    made = [Figure("scores", panels, columns=_columns(games), caption=SCORES)]
    for number, game in enumerate(games):
        made.append(_inside(rows.where(game=game), looks, f"inside-{number}", words(game)))
        made += _layers(of_layers.where(game=game), looks, f"layers-{number}", words(game))
    return made


def visits(rows: Rows, looks: Mapping[str, Look]) -> list[Figure]:
    """Scores on the last visit to each game, fresh agents dotted; all visits, one after another, below."""
    of_layers, rows = rows, rows.where(kind=None)
    games = rows.unique("game")
    last = max(rows.unique("cycle"), default=1)
    panels = []
    for game in games:
        here = rows.where(game=game)
        continual = Rows(row for row in here if row.get("cycle") == last and not _fresh(row))
        shown = continual + Rows(
            {**row, "frames_in_game": row.get("frames_in_game", row.get("frames"))}
            for row in here
            if _fresh(row)
        )
        one = panel(shown, SCORE, arms_of(rows, looks), x="frames_in_game", title=words(game))
        panels.append(replace(one, x_label="frames of this visit"))
    whole = Rows(row for row in of_layers if not _fresh(row))
    caption = f"Dotted: a freshly initialised agent on that game alone. {SCORES}"
    made = [Figure("visits", panels, columns=_columns(games), title=f"Visit number {last}", caption=caption)]
    title = "all games in sequence"
    made.append(_inside(whole.where(kind=None), looks, "inside", title))
    return [*made, *_layers(whole, looks, "layers", title)]


def lacking_by_game(rows: Rows, arms: Iterable[str]) -> list[str]:
    """Arms without rows, by game."""
    return lacking(Rows(row | {"game": words(str(row.get("game")))} for row in rows), arms, by="game")


def words(game: str) -> str:
    """A game's name for people.

    >>> words("ms_pacman")
    'Ms Pacman'
    """
    return game.removeprefix("minatar/").replace("_", " ").replace("-", " ").title()


def _inside(rows: Rows, looks: Mapping[str, Look], name: str, title: str) -> Figure:
    panels = [panel(rows, measure, arms_of(rows, looks), x="frames") for measure in INSIDE]
    title = f"Inside the networks: {title}"
    return Figure(name, panels, columns=4, title=title, caption=STATISTICS, folded=True)


def _layers(rows: Rows, looks: Mapping[str, Look], name: str, title: str) -> list[Figure]:
    """Norm and effective rate of each layer, a panel each; nothing where no row is of a layer."""
    whole = merge_noisy_layers(rows)
    panels = []
    for measure, layer in product(LAYER, sorted(whole.unique("layer"))):
        of = Rows(row for row in whole.where(layer=layer) if row.get(measure.key) is not None)
        if of:
            title_of = f"{measure.words}, {layer.removesuffix('.weight')}"
            panels.append(panel(of, measure, arms_of(of, looks), x="frames", title=title_of))
    if not panels:
        return []
    return [Figure(name, panels, columns=4, title=f"Layer by layer: {title}", caption=LAYERS, folded=True)]


def _fresh(row: Mapping[str, Any]) -> bool:
    return str(row.get("arm", "")).startswith("fresh")


def _columns(games: list[str]) -> int:
    return 2 if len(games) < 3 else 3
