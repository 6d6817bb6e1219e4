"""What games give, brought to the device: clipped rewards, discounts, and the scores of finished episodes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from nap.lab.loops.rainbow.games import Step
from nap.lab.loops.rainbow.replay import Outcome


def discounts_of(step: Step, discount: float) -> np.ndarray:
    """0 where the game is over or a life was lost; an episode that is cut off keeps its future."""
    return discount * (~(step.terminal | step.life_lost)).astype(np.float32)


def deliver_(step: Step, discount: float, outcome: Outcome) -> None:
    """Copy a step into `outcome`, wherever that lies, without waiting for it."""
    for value, target in (
        (np.clip(step.scores, -1, 1), outcome.rewards),
        (discounts_of(step, discount), outcome.discounts),
        (step.ended, outcome.ended),
        (step.first, outcome.first),
        (step.frames, outcome.frames),
    ):
        target.copy_(_host(value, target), non_blocking=True)


def _host(value: np.ndarray, target: Tensor) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(value))
    return tensor.pin_memory() if target.is_cuda else tensor


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
