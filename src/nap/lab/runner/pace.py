"""How often to save: by the clock, and never so often that saving takes over."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Pace:
    """When the next checkpoint is due: never so often that saving takes more than its share of the time.

    >>> pace = Pace(every_seconds=0.0, share=0.05)
    >>> pace.is_due()
    True
    >>> with pace.measured():
    ...     time.sleep(0.01)
    >>> pace.is_due()  # in 0.2 seconds at the earliest
    False
    """

    every_seconds: float
    share: float
    ended: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0  # that the last one took

    def is_due(self) -> bool:
        """Whether to save now."""
        return time.perf_counter() - self.ended >= max(self.every_seconds, self.seconds / self.share)

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Time a save."""
        began = time.perf_counter()
        yield
        self.ended = time.perf_counter()
        self.seconds = self.ended - began
