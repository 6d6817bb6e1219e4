"""Films of agents in the report: what `nap play` wrote into the folders of runs."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nap.lab import files
from nap.lab.report.markup import Html, element
from nap.lab.report.page import FILMS

MAX_BYTES = 8_000_000  # of a film that is embedded
MAX_FILMS = 24  # in one section
WIDTH = 168  # pixels


@dataclass(frozen=True)
class Film:
    """An episode as a GIF."""

    file: Path
    caption: str  # "Breakout, after training: score 12"


def films_of(folder: Path) -> list[Film]:
    """The films in a run's folder; none where its list cannot be read or names a file that is not there."""
    try:
        listed = files.parse_json(files.content(folder / FILMS))
        films = [
            Film(
                folder / Path(one["file"]).name,
                f"{one['game']}, {one['when']} training: score {one['score']:g}",
            )
            for one in listed
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [film for film in films if film.file.is_file()]


def films_html(runs: Iterable[tuple[str, Path]]) -> Html | None:
    """The films of these runs, each beside the others of its run; None where there are none."""
    films = [(name, film) for name, folder in runs for film in films_of(folder)]
    if not films:
        return None
    shown = [_film_html(name, film) for name, film in films[:MAX_FILMS]]
    rest = f" The first {MAX_FILMS} of {len(films)}." if len(films) > MAX_FILMS else ""
    caption = f"One greedy episode before training and one after it (nap play).{rest}"
    inside = element("div", *shown, class_="films")
    return element("figure", inside, element("figcaption", caption))


def _film_html(name: str, film: Film) -> Html:
    caption = f"{name}: {film.caption}"
    if film.file.stat().st_size > MAX_BYTES:
        return element("p", f"{caption}. Too large for this page: {film.file.name} in the run's folder.")
    data = base64.b64encode(film.file.read_bytes()).decode()
    image = element("img", src=f"data:image/gif;base64,{data}", alt=caption, width=WIDTH)
    return element("figure", image, element("figcaption", caption))
