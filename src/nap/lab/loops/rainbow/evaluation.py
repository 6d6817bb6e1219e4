"""Scores of episodes, and evaluation: play without learning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch
from torch import Generator, Tensor

from nap.lab.loops.rainbow import c51
from nap.lab.loops.rainbow.games import Games, Step
from nap.lab.loops.rainbow.replay import Outcome, Replay
from nap.lab.models.rainbow_net import RainbowNet


@dataclass
class Scoreboard:
    """Scores of the episodes under way, and of those finished since they were last read."""

    running: np.ndarray  # float64 (N,)
    finished: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, num_envs: int) -> Scoreboard:
        return cls(np.zeros(num_envs))

    def note(self, step: Step) -> None:
        self.running = np.where(step.first, 0.0, self.running + step.scores)
        self.finished += self.running[step.ended].tolist()
        self.running = np.where(step.ended, 0.0, self.running)

    def read(self) -> dict[str, float | int | None]:
        """Mean score and number of the episodes finished since the last call."""
        scores, self.finished = self.finished, []
        return {"score": float(np.mean(scores)) if scores else None, "episodes": len(scores)}


NUM_EVAL_ENVS = 4  # few, so that the longest episode can end: of 500,000 frames each plays 31,250 steps


def evaluate(
    net: RainbowNet, atoms: Tensor, games: Games, frames: int, *, stack: int, seed: int
) -> dict[str, float | int | None]:
    """Mean score and number of the episodes that end within so many frames of all games together.

    Episodes that are under way at the end do not count, so there should be time for the longest to end.
    """
    scores = Scoreboard.of(games.count)
    steps = max(1, round(frames / (games.count * games.frames_per_step)))
    for step in islice(greedy_steps(net, atoms, games, stack=stack, seed=seed), steps):
        scores.note(step)
    return scores.read()


def greedy_steps(net: RainbowNet, atoms: Tensor, games: Games, *, stack: int, seed: int) -> Iterator[Step]:
    """Steps of a greedy evaluation from freshly reset games; nothing is learnt."""
    device = atoms.device
    generator = Generator(device).manual_seed(seed)
    replay = Replay(games.count, 2 * (stack + 1), games.shape, stack=stack, steps=1, device=device)
    unused = torch.zeros(games.count, device=device)  # rewards and discounts
    replay.begin_(torch.from_numpy(games.reset(seed)).to(device))
    while True:
        with torch.no_grad():
            logits = net(replay.newest(), net.noise(games.count, generator))
            actions = c51.mean_return(logits, atoms).argmax(-1)
        games.send(actions.cpu().numpy())
        step = games.recv()
        yield step
        arrays = (step.ended, step.first, step.frames)
        tensors = (torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in arrays)
        replay.add_(actions, Outcome(unused, unused, *tensors))
