"""Scores of episodes, and evaluation: play without learning."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Generator, Tensor

from nap.lab.loops.rainbow import c51
from nap.lab.loops.rainbow.games import Games, Step
from nap.lab.loops.rainbow.replay import Outcome, Replay
from nap.lab.models.rainbow_net import RainbowNet, noise_of


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


# Few, so that the longest episode can end within an evaluation: 500,000 frames are 31,250 steps of each.
NUM_EVAL_ENVS = 4


@torch.no_grad()
def greedy(net: RainbowNet, states: Tensor, v: Tensor, atoms: Tensor) -> Tensor:
    """The actions of the highest mean return, (N,); `v` draws the noise, for all states or for each."""
    return c51.mean_return(net(states, noise_of(v)), atoms).argmax(-1)


def evaluate(
    net: RainbowNet, atoms: Tensor, games: Games, frames: int, *, stack: int, seed: int
) -> dict[str, float | int | None]:
    """Mean score and number of the episodes that end within so many frames of all games together.

    Episodes that are under way at the end do not count, so there should be time for the longest to end.
    """
    device, scores = atoms.device, Scoreboard.of(games.count)
    generator = Generator(device).manual_seed(seed)
    memory = Replay(games.count, 2 * (stack + 1), games.shape, stack=stack, steps=1, device=device)
    memory.begin_(torch.from_numpy(games.reset(seed)).to(device))
    for _ in range(max(1, round(frames / (games.count * games.frames_per_step)))):
        actions = greedy(net, memory.newest(), net.uniform_numbers(games.count, generator), atoms)
        games.send(actions.cpu().numpy())
        step = games.recv()
        scores.note(step)
        memory.add_(actions, _frames_only(step, device))
    return scores.read()


def _frames_only(step: Step, device: torch.device) -> Outcome:
    """Nothing is learnt from it, so rewards do not matter."""
    nothing = torch.zeros(len(step.ended), device=device)

    def there(value: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(value)).to(device)

    return Outcome(nothing, nothing, there(step.ended), there(step.first), there(step.frames))
