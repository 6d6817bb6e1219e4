"""Noticing from the loss that the task has changed, so that the effective rate can be raised again.

On the sphere the rate is the schedule's alone: one that has come down for a task has to be restarted for
the next. Where nobody says when tasks change, a jump of the loss does. (Re-warming on a detected change is
the idea of Lyle et al., 2025, arXiv 2507.20057; the test used here is Page's, 1954.)
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor


@dataclass
class ChangeDetector:
    """Page's one-sided test (CUSUM) for a rise of the training loss.

    A running mean and deviation say what is usual; excess over the mean, less an allowance, adds up, and a
    sum above the threshold is a change. Both are in standard deviations of the recent loss. After a change
    it learns anew what is usual. A loss that falls never triggers it. One with rare large values, as in
    reinforcement learning, does: hand over its logarithm.

    Args:
        memory: updates that the running mean and deviation look back over.
        allowance: excess, in deviations, that counts as usual.
        threshold: how much excess makes a change. Higher means later and fewer false alarms.
        settle: updates after the start, or a change, before the next can be seen; `memory` if None.

    >>> detector = ChangeDetector(memory=20)
    >>> losses = [1.0 + 0.1 * (-1) ** step for step in range(100)] + [3.0] * 5
    >>> [step for step, loss in enumerate(losses) if detector.update(loss)]
    [100]
    """

    memory: int = 100
    allowance: float = 1.0
    threshold: float = 10.0
    settle: int | None = None
    changes: int = field(default=0, init=False)
    """how many changes it has seen"""
    _seen: int = field(default=0, init=False)
    _mean: float = field(default=0.0, init=False)
    _variance: float = field(default=0.0, init=False)
    _excess: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if not (isinstance(self.memory, int) and self.memory >= 2):
            raise ValueError(f"memory is {self.memory!r}; it counts updates, so it is at least 2")
        for name in ("allowance", "threshold"):
            value = getattr(self, name)
            if not (isinstance(value, float | int) and 0 <= value < math.inf):
                raise ValueError(f"{name} is {value!r}; it is a number of deviations, finite and at least 0")
        if self.settle is not None and not (isinstance(self.settle, int) and self.settle >= 0):
            raise ValueError(f"settle is {self.settle!r}; it counts updates, so it is at least 0")

    def update(self, loss: float | Tensor) -> bool:
        """Add the loss of one more update; return whether a change was detected.

        A tensor is read, which waits for the device: on a GPU hand over a mean every few updates.
        """
        value = float(loss)
        if not math.isfinite(value):
            raise ValueError(f"the loss is {value}; look for its cause before training goes on")
        settled = self._seen >= (self.memory if self.settle is None else self.settle)
        if settled and self._seen > 1:
            deviation = math.sqrt(self._variance) or abs(self._mean) * 1e-6 or 1e-12
            self._excess = max(0.0, self._excess + (value - self._mean) / deviation - self.allowance)
            if self._excess > self.threshold:
                self.changes += 1
                self._seen, self._excess = 0, 0.0
                self._note(value)
                return True
        self._note(value)
        return False

    def _note(self, value: float) -> None:
        """Welford's running mean and variance, over `memory` updates once there were so many."""
        self._seen += 1
        share = 1 / min(self._seen, self.memory)
        distance = value - self._mean if self._seen > 1 else 0.0
        self._mean = value if self._seen == 1 else self._mean + share * distance
        kept = 0.0 if self._seen == 1 else self._variance
        self._variance = (1 - share) * (kept + share * distance**2)

    def state_dict(self) -> dict[str, Any]:
        """State and settings, as plain numbers."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken; other settings are refused."""
        own = asdict(self)
        if missing := sorted(set(own) ^ set(state)):
            raise ValueError(f"this is no state of a ChangeDetector: {missing[0]!r} is missing or not known")
        for name in ("memory", "allowance", "threshold", "settle"):
            if own[name] != state[name]:
                raise ValueError(
                    f"the state has {name}={state[name]}, this detector {own[name]}; make it with the same"
                )
        self.__dict__.update(state)
