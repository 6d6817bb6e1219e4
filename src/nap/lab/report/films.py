"""Films of agents in the report: what `nap play` wrote into the folders of runs, inside the page."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nap.lab.report.markup import Html, element
from nap.lab.report.page import FILMS

LARGEST = 8_000_000  # bytes of a film that is embedded
MOST = 24  # films in one section
WIDTH = 168  # pixels


@dataclass(frozen=True)
class Film:
    """An episode as a GIF."""

    file: Path
    words: str  # "Breakout, after training: score 12"


def films_of(folder: Path) -> list[Film]:
    """The films in a run's folder; none where its list cannot be read or names a file that is not there."""
    try:
        listed = json.loads((folder / FILMS).read_text("utf-8"))
        found = [
            Film(
                folder / Path(one["file"]).name,
                f"{one['game']}, {one['when']} training: score {one['score']:g}",
            )
            for one in listed
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [film for film in found if film.file.is_file()]


def films_html(runs: Iterable[tuple[str, Path]]) -> Html | None:
    """The films of these runs, each beside the others of its run; None where there are none."""
    films = [(name, film) for name, folder in runs for film in films_of(folder)]
    if not films:
        return None
    shown = [_film_html(name, film) for name, film in films[:MOST]]
    left = f" The first {MOST} of {len(films)}." if len(films) > MOST else ""
    caption = f"An episode of the network as the run began and as it ended, greedy (nap play).{left}"
    inside = element("div", *shown, class_="films")
    return element("figure", inside, element("figcaption", caption))


def _film_html(name: str, film: Film) -> Html:
    words = f"{name}: {film.words}"
    if film.file.stat().st_size > LARGEST:
        return element("p", f"{words}. Too large for this page: {film.file.name} in the run's folder.")
    data = base64.b64encode(film.file.read_bytes()).decode()
    image = element("img", src=f"data:image/gif;base64,{data}", alt=words, width=WIDTH)
    return element("figure", image, element("figcaption", words))
