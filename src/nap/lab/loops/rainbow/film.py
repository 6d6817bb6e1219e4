"""An agent at play as pictures: an episode of a network's greedy play, and what its frames look like."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Generator

from nap.lab.loops.rainbow.evaluation import greedy
from nap.lab.loops.rainbow.games import Games, make
from nap.lab.loops.rainbow.learner import Learner
from nap.lab.loops.rainbow.replay import Outcome, Replay
from nap.lab.loops.rainbow.run import RainbowRun
from nap.lab.loops.rainbow.settings import AgentRun

LEAST = 168  # pixels of a picture's shorter side, at least
COLOURS = np.array(  # of channels, the last that are present in front: Okabe and Ito's, and four more
    [
        [86, 180, 233], [230, 159, 0], [0, 158, 115], [240, 228, 66], [0, 114, 178],
        [213, 94, 0], [204, 121, 167], [160, 160, 160], [120, 94, 240], [255, 255, 255],
    ],
    np.uint8,
)  # fmt: skip


def small(what: AgentRun) -> RainbowRun:
    """A run as it begins, with one game and next to no replay: for its networks."""
    settings = what.settings
    least = 2 * (settings.stack + settings.n_steps)
    settings = replace(
        settings, num_envs=1, replay_size=least, min_replay_size=settings.n_steps, eval_frames=0
    )
    return RainbowRun(replace(what, settings=settings), torch.device("cpu"), graph=False, compile_=False)


@torch.no_grad()
def episode(
    learner: Learner, game: str, *, full_actions: bool, seed: int, steps: int
) -> tuple[np.ndarray, float]:
    """Frames (T, *shape) of the first episode with this seed, or of its first steps; and its score."""
    games: Games = make(game, 1, full_actions=full_actions)
    stack, atoms = learner.settings.stack, learner.atoms
    memory = Replay(1, 2 * (stack + 1), games.shape, stack=stack, steps=1)
    generator = Generator().manual_seed(seed)
    frames = [games.reset(seed)]
    memory.begin_(torch.from_numpy(frames[0]))
    score, nothing, no = 0.0, torch.zeros(1), torch.zeros(1, dtype=torch.bool)
    try:
        for _ in range(steps):
            noise = learner.online.uniform_numbers(1, generator)
            actions = greedy(learner.online, memory.newest(), noise, atoms)
            games.send(actions.numpy())
            step = games.recv()
            frames.append(step.frames)
            score += float(step.scores[0])
            if step.ended[0]:
                break
            memory.add_(actions, Outcome(nothing, nothing, no, no, torch.from_numpy(step.frames)))
    finally:
        games.close()
    return np.concatenate(frames), score


def picture(frame: np.ndarray) -> np.ndarray:
    """A frame in colour, uint8 (H, W, 3), large enough to be seen: grey, or a colour for each channel.

    >>> picture(np.zeros((84, 84), np.uint8)).shape
    (168, 168, 3)
    """
    if frame.ndim == 2:
        shown = np.repeat(frame[..., None], 3, 2)
    else:
        shown = np.zeros((*frame.shape[1:], 3), np.uint8)
        for channel, colour in zip(frame, COLOURS, strict=False):
            shown[channel > 0] = colour
    times = -(-LEAST // min(shown.shape[:2]))
    return shown.repeat(times, 0).repeat(times, 1)
