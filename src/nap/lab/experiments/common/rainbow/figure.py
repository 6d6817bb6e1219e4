"""Rainbow: scores over frames, a panel for each game, and what goes on inside the networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nap.lab.report.panels import Figure, Measure, panel
from nap.lab.report.style import BLACK, BLUE, DOTTED, GREEN, ORANGE, PURPLE, SKY, VERMILION, Look, looks
from nap.lab.rows import Rows

ARMS = {
    "Rainbow": Look(VERMILION),
    "LayerNorm": Look(BLUE),
    "NaP": Look(GREEN, width=2.2),
    "NaP + schedule": Look(ORANGE, width=2.2),
    "fresh Rainbow": Look(BLACK, DOTTED),
    "NaP, ends at 0.25": Look(SKY),
    "NaP, ends at 0.5": Look(BLUE),
    "NaP, ends at 0.75": Look(PURPLE),
    "NaP, ends at 1": Look(BLACK),
    "NaP, projected rarely": Look(SKY),
    "NaP, no offsets": Look(PURPLE),
    "LayerNorm, weight decay": Look(SKY, DOTTED),
    "Rainbow, weight decay": Look(VERMILION, DOTTED),
}
FOUR = ("Rainbow", "LayerNorm", "NaP", "NaP + schedule")
SCORE = Measure("score", "Score", linear=True)
INSIDE = (
    Measure("parameter_norm", "Parameter norm"),
    Measure("effective_rate", "Effective learning rate"),
    Measure("linearized_units", "Linearized units", fraction=True),
    Measure("feature_rank", "Feature rank"),
)
SCORES = "Score: points of the episodes that ended since the last point, mean."
STATISTICS = (
    "Effective rate: geometric mean over the weights that a norm follows. Units and rank: of the hidden "
    "layers of both streams, on 256 states from the replay."
)


def figures(rows: Rows) -> list[Figure]:
    """Scores of every game, then for each game what goes on inside."""
    rows = rows.where(kind=None)
    games = rows.unique("game")
    scores = [
        panel(rows.where(game=game), SCORE, _arms(rows), x="frames", title=words(game)) for game in games
    ]
    made = [Figure("scores", scores, columns=_columns(games), caption=SCORES)]
    for number, game in enumerate(games):
        made.append(_inside(rows.where(game=game), f"inside-{number}", words(game)))
    return made


def sequence(rows: Rows) -> list[Figure]:
    """Scores on the last visit to each game, fresh agents dotted; all visits, one after another, below."""
    rows = rows.where(kind=None)
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
        one = panel(shown, SCORE, _arms(rows), x="frames_in_game", title=words(game))
        panels.append(replace(one, x_label="frames of this visit"))
    whole = Rows(row for row in rows if not _fresh(row))
    caption = f"Dotted: a freshly initialised agent on that game alone. {SCORES}"
    made = [Figure("visits", panels, columns=_columns(games), title=f"Visit number {last}", caption=caption)]
    return [*made, _inside(whole, "inside", "all games in sequence")]


def missing(rows: Rows) -> list[str]:
    """Arms of the paper without rows, by game."""
    return _lacking(rows, FOUR)


def missing_ends(rows: Rows) -> list[str]:
    """Ends of the schedule without rows, by game."""
    return _lacking(rows, tuple(name for name in ARMS if name.startswith("NaP, ends")))


def missing_ablations(rows: Rows) -> list[str]:
    """Arms of the ablations without rows, by game."""
    arms = ("NaP", "LayerNorm", "Rainbow", *(name for name in ARMS if ", " in name and "ends" not in name))
    return _lacking(rows, arms)


def missing_visits(rows: Rows) -> list[str]:
    """Arms of the sequence without rows, by game."""
    return _lacking(rows, ("Rainbow", "LayerNorm", "NaP", "fresh Rainbow"))


def words(game: str) -> str:
    """A game's name for people.

    >>> words("ms_pacman")
    'Ms Pacman'
    """
    return game.removeprefix("minatar/").replace("_", " ").replace("-", " ").title()


def _inside(rows: Rows, name: str, title: str) -> Figure:
    panels = [panel(rows, measure, _arms(rows), x="frames") for measure in INSIDE]
    title = f"Inside the networks: {title}"
    return Figure(name, panels, columns=4, title=title, caption=STATISTICS, folded=True)


def _arms(rows: Rows) -> Mapping[str, Any]:
    return {name: (look, {"arm": name}) for name, look in looks(ARMS, rows.unique("arm")).items()}


def _fresh(row: Mapping[str, Any]) -> bool:
    return str(row.get("arm", "")).startswith("fresh")


def _columns(games: list[str]) -> int:
    return 2 if len(games) < 3 else 3


def _lacking(rows: Rows, arms: tuple[str, ...]) -> list[str]:
    return [
        f"{words(game)}: {arm}"
        for game in rows.unique("game")
        for arm in arms
        if arm not in rows.where(game=game).unique("arm")
    ]
