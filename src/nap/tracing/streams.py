"""Which layers write into a residual stream: found where a result is added to what it was computed from.

In x + f(x) the sum holds, as it is, something that f has read. So each value is followed with the set of
parametric operations upstream of it, as the bits of a whole number: a union is one `or`, at any depth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from nap.tracing.values import Carry, Value

SUMS = frozenset(("add", "sub", "rsub"))
_INPUT = 1  # the bit of the model's inputs; operations count from one


class Streams:
    """What each tensor of a recorded forward was computed from."""

    def __init__(self) -> None:
        self._upstream: dict[int, int] = {}  # tensor, by id → bits
        self._read: dict[tuple[str, int, int], int] = {}  # producer → what it was computed from
        self._now = 0  # of the operation that is running

    def input(self, tensor: Tensor) -> None:
        self._upstream[id(tensor)] = _INPUT

    def same(self, old: Tensor, new: Tensor) -> None:
        """`new` is a copy of `old`."""
        self._upstream[id(new)] = self._upstream.get(id(old), 0)

    def begin(self, operands: Iterable[Tensor]) -> None:
        """An operation starts."""
        self._now = 0
        for tensor in operands:
            self._now |= self._upstream.get(id(tensor), 0)

    def made(self, producer: Carry) -> None:
        """The running operation has parameters; this stands for its result."""
        self._read[producer.key] = self._now
        self._now |= _bit(producer)

    def united(self, whole: Carry, parts: Iterable[Carry], result: Tensor) -> None:
        """From now on one producer stands for several, which together made the result."""
        self._read[whole.key] = 0
        for part in parts:
            self._read[whole.key] |= self._read.get(part.key, 0)
        self._upstream[id(result)] = self._upstream.get(id(result), 0) | _bit(whole)

    def end(self, results: Iterable[Tensor]) -> None:
        """The operation has these results."""
        self._upstream.update((id(tensor), self._now) for tensor in results)

    def branches(self, tensors: Sequence[Tensor], values: Sequence[Value]) -> set[str]:
        """The modules whose results are added here to something that they were computed from."""
        found: set[str] = set()
        for tensor, stream in zip(tensors, values, strict=True):
            for other in values:
                if stream.data and other is not stream and other.data:
                    found |= {c.site for c in other.carry - stream.carry if self._is_on(tensor, stream, c)}
        return found

    def _is_on(self, tensor: Tensor, stream: Value, branch: Carry) -> bool:
        """Whether the branch has read what the stream carries; or, of a normalised stream, all of it."""
        read = self._read.get(branch.key, 0)
        if stream.carry:
            return any(read & _bit(c) for c in stream.carry)
        whole = self._upstream.get(id(tensor), 0)
        return bool(whole) and whole & ~read == 0


def _bit(producer: Carry) -> int:
    return 1 << producer.op
