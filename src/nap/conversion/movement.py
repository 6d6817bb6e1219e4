"""How far a conversion moved a trained network, and how long training takes to bring it back."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from nap.conversion.following import Outputs, pairs, run, watched
from nap.conversion.placement import Plan, table
from nap.conversion.trial import Example


@dataclass(frozen=True)
class Moved:
    """One norm: how far its output is from what the trained layer made, relative to that."""

    norm: str
    error: float


@dataclass(frozen=True)
class Calibration:
    """How far the function moved on the calibration batches; `print` it to read it.

    Errors are root mean squares of the difference over those of the trained network's values. "plain" is what
    `nap.normalize_` alone would have done. Agreement is the share of outputs whose largest entry is the same.
    """

    plan: Plan
    layers: tuple[Moved, ...]  # in the order of execution
    output_error: float
    plain_output_error: float
    agreement: float | None = None  # None where outputs have no entries to choose among
    plain_agreement: float | None = None

    def __str__(self) -> str:
        rows = [{"norm": one.norm, "relative error": f"{one.error:.3g}"} for one in self.layers]
        listed = table(rows, ("norm", "relative error")) if rows else "no norm was put in"
        same = ""
        if self.agreement is not None and self.plain_agreement is not None:
            same = f"; largest entry the same in {self.agreement:.1%} (plain: {self.plain_agreement:.1%})"
        return (
            f"{listed}\noutputs: relative error {self.output_error:.3g} (plain: "
            f"{self.plain_output_error:.3g}){same}"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values; the plan has a JSON of its own."""
        return {key: value for key, value in asdict(self).items() if key != "plan"}


def compared(
    plan: Plan,
    teacher: nn.Module,
    idle: Mapping[str, Tensor | None],
    twin: nn.Module,
    places: Sequence[str],
    examples: Sequence[Example],
    outputs: Outputs,
    plain: Outputs,
) -> Calibration:
    """The report: the converted network beside the trained one, batch by batch.

    A norm that a BatchNorm undoes is left out: what counts is what the BatchNorm makes of it.
    """
    shown = [name for name in places if getattr(twin.get_submodule(name), "weight", None) is not None]
    differences, sizes = defaultdict[str, float](float), defaultdict[str, float](float)
    seen: dict[str, list[Tensor]] = defaultdict(list)

    def keep(name: str, features: Tensor) -> None:
        seen[name].append(features)

    def compare(name: str, features: Tensor) -> None:
        wanted = seen[name].pop(0).double()
        differences[name] += float((features - wanted).square().sum())
        sizes[name] += float(wanted.square().sum())

    converted: Outputs = []
    for example in examples:
        with watched(teacher, places, keep, idle, behind=True):
            run(teacher, [example])
        with watched(twin, shown, compare, behind=True):
            converted += run(twin, [example])
        seen.clear()
    layers = tuple(Moved(name, _root(differences[name], sizes[name])) for name in shown)
    return Calibration(
        plan,
        layers,
        relative_error(outputs, converted),
        relative_error(outputs, plain),
        _agreement(outputs, converted),
        _agreement(outputs, plain),
    )


def recovery(
    step: Callable[[], float | Tensor], loss: float, *, most: int = 10_000, window: int = 20
) -> int | None:
    """How many updates until the mean loss of the last `window` was at most `loss`; None: not within `most`.

    `step` makes one update and returns its loss, such as that of a converted network; `loss` is what the
    trained network had.

    >>> losses = iter([3.0, 2.0, 1.0, 0.5, 0.5, 0.5])
    >>> recovery(lambda: next(losses), 0.8, window=2)
    4
    """
    if window < 1 or most < 1:
        raise ValueError(f"window={window} and most={most} count updates; each is at least 1")
    recent: deque[float] = deque(maxlen=window)
    for number in range(1, most + 1):
        recent.append(float(step()))
        if len(recent) == window and math.fsum(recent) / window <= loss:
            return number
    return None


def relative_error(outputs: Outputs, others: Outputs) -> float:
    """Root mean square of the difference over that of `outputs`."""
    both = pairs(outputs, others)
    gap = sum(float((a.double() - b.double()).square().sum()) for a, b in both)
    return _root(gap, sum(float(a.double().square().sum()) for a, _ in both))


def _agreement(outputs: Outputs, others: Outputs) -> float | None:
    """Of the first output, where it has at least two entries to choose among."""
    first = [(mine[0], other[0]) for mine, other in zip(outputs, others, strict=True) if mine]
    first = [(a, b) for a, b in first if a.is_floating_point() and a.ndim > 1 and a.shape[-1] > 1]
    if not first:
        return None
    same = sum(int((a.argmax(-1) == b.argmax(-1)).sum()) for a, b in first)
    return same / sum(a[..., 0].numel() for a, _ in first)


def _root(difference: float, size: float) -> float:
    if size == 0:
        return 0.0 if difference == 0 else math.inf
    return math.sqrt(difference / size)
