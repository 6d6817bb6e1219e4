"""`nap play RUN`: films of an agent before and after its training, from the folder of its run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nap.lab import aliases, files
from nap.lab.files import write_json
from nap.lab.loops.rainbow.evaluation import greedy_steps
from nap.lab.loops.rainbow.games import Games, make
from nap.lab.loops.rainbow.learner import Learner
from nap.lab.loops.rainbow.run import RainbowWork
from nap.lab.loops.rainbow.settings import AgentConfig, AgentRun, Changes, RainbowArm
from nap.lab.report.page import FILMS
from nap.lab.runner.checkpoint import load_latest

FRAME_SECONDS = 0.06


def play(folder: Path, *, game: str = "", steps: int = 500, seed: int = 0) -> list[tuple[Path, float]]:
    """Write before.gif and after.gif into the run's folder; their paths, each with the score of its episode.

    A list of them is written beside, which the report reads. If a run has several agents, the first plays.

    Args:
        game: the game to play, for an agent of several; by default the first.
        steps: at most, if the episode does not end earlier.
    """
    if steps < 1:
        raise ValueError(f"--steps {steps}: it must be at least 1")
    agent = agent_of(folder)
    if game and game not in agent.games:
        raise ValueError(f"this agent has played {', '.join(dict.fromkeys(agent.games))}, not {game!r}")
    state, notes = load_latest(folder)
    if state is None:
        raise ValueError(f"no checkpoint in {folder}: the run has not got far enough")
    for note in notes:
        print(note)
    learners = [one["learner"] for one in state["work"].get("agents", [state["work"]])]
    run = small(agent)
    films, entries = [], []
    for name in ("before", "after"):
        if name == "after":
            with torch.no_grad():
                for key, parameter in run.learner.online.named_parameters():
                    parameter.copy_(learners[0]["online"][key])
        game = game or agent.games[0]
        frames, score = episode(run.learner, game, full_actions=agent.full_actions, seed=seed, steps=steps)
        file = folder / f"{name}.gif"
        write_gif(file, [picture(frame) for frame in frames])
        films.append((file, score))
        entries.append({"file": file.name, "game": game, "when": name, "score": score})
    write_json(folder / FILMS, entries)
    return films


def agent_of(folder: Path) -> AgentRun:
    """The agent of the run in a folder."""
    try:
        stored: Mapping[str, Any] = files.parse_json(files.content(folder / "config.json"))
        config = dict(aliases.config(stored["config"], experiment=str(stored.get("experiment"))))
        return AgentRun(
            variant=RainbowArm(**config.pop("variant")),
            settings=AgentConfig(**config.pop("settings")),
            games=tuple(config.pop("games")),
            changes=Changes(**config.pop("changes")),
            **config,
        )
    except OSError as error:
        raise ValueError(f"{folder} is not the folder of a run: it has no config.json") from error
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder} is not a run of an agent that plays games: {error}") from error


def write_gif(file: Path, pictures: list[np.ndarray]) -> None:
    """Write the pictures as an endless animation."""
    from PIL import Image

    images = [Image.fromarray(one) for one in pictures]
    length = round(1000 * FRAME_SECONDS)
    images[0].save(file, save_all=True, append_images=images[1:], duration=length, loop=0, optimize=False)


MIN_PIXELS = 168  # of a picture's shorter side
COLOURS = np.array(  # of channels, later ones in front: Okabe and Ito's, and four more
    [
        [86, 180, 233], [230, 159, 0], [0, 158, 115], [240, 228, 66], [0, 114, 178],
        [213, 94, 0], [204, 121, 167], [160, 160, 160], [120, 94, 240], [255, 255, 255],
    ],
    np.uint8,
)  # fmt: skip


def small(agent: AgentRun) -> RainbowWork:
    """The run at its start, with one environment and a minimal replay: for its networks."""
    settings = agent.settings
    min_replay = 2 * (settings.stack + settings.n_steps)
    settings = replace(
        settings, num_envs=1, replay_size=min_replay, min_replay_size=settings.n_steps, eval_frames=0
    )
    return RainbowWork(replace(agent, settings=settings), torch.device("cpu"), graph=False, compile_=False)


def episode(
    learner: Learner, game: str, *, full_actions: bool, seed: int, steps: int
) -> tuple[np.ndarray, float]:
    """Frames (T, *shape) of the first episode with this seed, or of its first steps, and its score."""
    games: Games = make(game, 1, full_actions=full_actions)
    try:
        frames, score = [games.reset(seed)], 0.0
        play = greedy_steps(learner.online, learner.atoms, games, stack=learner.settings.stack, seed=seed)
        for step in islice(play, steps):
            frames.append(step.frames)
            score += float(step.scores[0])
            if step.ended[0]:
                break
    finally:
        games.close()
    return np.concatenate(frames), score


def picture(frame: np.ndarray) -> np.ndarray:
    """A frame in colour, uint8 (H, W, 3), large enough to be seen: grey, or a colour for each channel.

    >>> picture(np.zeros((84, 84), np.uint8)).shape
    (168, 168, 3)
    """
    if frame.ndim == 2:
        image = np.repeat(frame[..., None], 3, 2)
    else:
        image = np.zeros((*frame.shape[1:], 3), np.uint8)
        for channel, colour in zip(frame, COLOURS, strict=False):
            image[channel > 0] = colour
    times = -(-MIN_PIXELS // min(image.shape[:2]))
    return image.repeat(times, 0).repeat(times, 1)
