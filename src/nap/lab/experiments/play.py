"""`nap play RUN`: films of an agent before and after its training, from the folder of its run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nap.lab import aliases
from nap.lab.files import write_json
from nap.lab.loops.rainbow.film import episode, picture, small
from nap.lab.loops.rainbow.settings import AgentConfig, AgentRun, Changes
from nap.lab.loops.rainbow.variants import Variant
from nap.lab.report import films
from nap.lab.runner.checkpoint import load_latest

SECONDS = 0.06  # that a frame is shown


def play(folder: Path, *, game: str = "", steps: int = 500, seed: int = 0) -> list[tuple[Path, float]]:
    """Write before.gif and after.gif into the run's folder; each with the score of what it shows.

    A list of them goes beside, from which the report embeds them. Of several agents that are one run, the
    first plays.

    Args:
        game: of a sequence, the one to play; the first unless named.
        steps: at most, if the episode does not end before.
    """
    if steps < 1:
        raise ValueError(f"--steps {steps}: it must be at least 1")
    what = agent_of(folder)
    if game and game not in what.games:
        raise ValueError(f"this agent has played {', '.join(dict.fromkeys(what.games))}, not {game!r}")
    state, notes = load_latest(folder)
    if state is None:
        raise ValueError(f"no checkpoint in {folder}: the run has not got far enough")
    for note in notes:
        print(note)
    learners = [one["learner"] for one in state["work"].get("agents", [state["work"]])]
    run = small(what)
    made, listed = [], []
    for name in ("before", "after"):
        if name == "after":
            with torch.no_grad():
                for key, parameter in run.learner.online.named_parameters():
                    parameter.copy_(learners[0]["online"][key])
        game = game or what.games[0]
        frames, score = episode(run.learner, game, full_actions=what.full_actions, seed=seed, steps=steps)
        file = folder / f"{name}.gif"
        write_gif(file, [picture(frame) for frame in frames])
        made.append((file, score))
        listed.append({"file": file.name, "game": game, "when": name, "score": score})
    write_json(folder / films.FILE_NAME, listed)
    return made


def agent_of(folder: Path) -> AgentRun:
    """The agent whose run lies in a folder."""
    try:
        about: Mapping[str, Any] = json.loads((folder / "config.json").read_bytes())
        config = dict(aliases.config(about["config"], experiment=str(about.get("experiment"))))
        return AgentRun(
            variant=Variant(**config.pop("variant")),
            settings=AgentConfig(**config.pop("settings")),
            games=tuple(config.pop("games")),
            changes=Changes(**config.pop("changes")),
            **config,
        )
    except OSError as error:
        raise ValueError(f"{folder} is no folder of a run: it has no config.json") from error
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder} is no run of an agent that plays games: {error}") from error


def write_gif(file: Path, pictures: list[np.ndarray]) -> None:
    """The pictures one after another, again and again."""
    from PIL import Image

    images = [Image.fromarray(one) for one in pictures]
    length = round(1000 * SECONDS)
    images[0].save(file, save_all=True, append_images=images[1:], duration=length, loop=0, optimize=False)
