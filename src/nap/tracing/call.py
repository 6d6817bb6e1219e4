"""One call of a torch function, as the effects of operations see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from nap.tracing.values import Value

if TYPE_CHECKING:
    from nap.tracing.recorder import Recorder


@dataclass(frozen=True)
class Call:
    """What a function was given, what is known of it, and the recorder to report to."""

    rec: Recorder
    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    tensors: list[Tensor]  # all tensors among the arguments, in order
    operands: list[Value]  # what is known of each

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """An argument by place or by name."""
        return self.kwargs.get(name, self.args[place] if len(self.args) > place else default)


Outcome = Value | Callable[[int, Tensor], Value]  # for all results, or for the i-th one
Follow = Callable[[Call], Outcome]
