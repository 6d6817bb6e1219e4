"""Runs on strings (Appendix C.3): memorising random ones task after task, and copying within one data set.

Everything random is a function of (seed, task, epoch), so a resumed run equals an unbroken one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nap.lab.datasets.streams import batches
from nap.lab.loops.common.cuda_graph import graph_and_compile
from nap.lab.loops.common.optimizer import reset_
from nap.lab.loops.common.work import NetworkRun, Row, seeded
from nap.lab.loops.language.settings import CopyingConfig, MemorizationConfig, MemorizationRunConfig
from nap.lab.loops.language.trainer import Spans, Trainer, build, transformer_factory

UNSEEN = 128  # held-out strings that copying is evaluated on
WORTH_COMPILING = 2000  # updates of a run; a guess, not measured yet
_RANDOM, _COPIED, _HELD_OUT = range(3)  # first number of each generator's key: no random number is used twice


def random_strings(seed: int, task: int, *, count: int, length: int, vocabulary: int) -> Tensor:
    """Tokens (count, length), uniform and independent: the data set of one task.

    >>> random_strings(0, 1, count=2, length=3, vocabulary=256).shape
    torch.Size([2, 3])
    """
    rng = np.random.default_rng((_RANDOM, seed, task))
    return torch.from_numpy(rng.integers(vocabulary, size=(count, length)))


def copied_strings(
    seed: int, *, count: int, prefix: int, suffix: int, vocabulary: int, held_out: bool = False
) -> Tensor:
    """Tokens (count, prefix + suffix): a random prefix, then a piece of it, from a place chosen at random.

    >>> one = copied_strings(0, count=1, prefix=5, suffix=2, vocabulary=9)[0].tolist()
    >>> any(one[i : i + 2] == one[5:] for i in range(4))
    True
    """
    rng = np.random.default_rng((_HELD_OUT if held_out else _COPIED, seed))
    first = rng.integers(vocabulary, size=(count, prefix))
    starts = rng.integers(prefix - suffix + 1, size=(count, 1))
    second = np.take_along_axis(first, starts + np.arange(suffix), axis=1)
    return torch.from_numpy(np.concatenate([first, second], axis=1))


class StringWork(ABC):
    """The `Work` of one network: `step` is a chunk of updates on the strings of a task."""

    unit = "chunks"

    def __init__(
        self,
        run: NetworkRun,
        device: torch.device,
        *,
        tasks: int,
        steps: int,
        chunk: int,
        spans: Spans,
        compile_: bool | None = None,
    ):
        self.run, self.device, self.steps = run, device, steps
        self.chunk = min(chunk, steps)
        self._chunks = -(-steps // self.chunk)
        self.total, self.done = tasks * self._chunks, 0
        self.steps_per_unit = self.chunk
        settings, updates = run.settings, tasks * steps
        example = self.strings(1)[:2, :-1]
        with seeded(run.seed):
            model, projector = build(
                run.arm, transformer_factory(settings, settings.vocabulary, example.shape[1]), example
            )
        model.to(device)
        _, compile_ = graph_and_compile(device, updates, WORTH_COMPILING, graph=None, compile_=compile_)
        self.trainer = Trainer(
            model,
            projector,
            learning_rate=settings.learning_rate,
            spans=spans,
            weight_decay=run.arm.weight_decay,
            clip=settings.clip or None,
            half=device.type == "cuda",
            compile_=compile_,
        )
        self._cached: tuple[int, Tensor] | None = None

    @abstractmethod
    def strings(self, task: int) -> Tensor:
        """The data set of a task, from 1, as tokens (N, L)."""

    @abstractmethod
    def rows(self, task: int, step: int, means: Row) -> list[Row]:
        """The rows after a chunk that ended with this step of the task; `means` are over its updates."""

    def step(self) -> list[Row]:
        finished, at = divmod(self.done, self._chunks)
        task, first = finished + 1, at * self.chunk
        last = min(self.steps, first + self.chunk)
        data, size = self._data(task), self.run.settings.batch_size
        per_epoch, epoch, index = len(data) // size, -1, torch.empty(0)
        for step in range(first, last):
            if step // per_epoch != epoch:
                epoch = step // per_epoch
                index = batches(self.run.seed, task, epoch, count=len(data), batch_size=size).to(self.device)
            self.trainer.update(data[index[step % per_epoch]])
        means = self.trainer.read() | self.trainer.norms_and_rates()
        self.done += 1
        return [self.run.row() | row for row in self.rows(task, last, means)]

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "trainer": self.trainer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]
        self.trainer.load_state_dict(state["trainer"])

    def _data(self, task: int) -> Tensor:
        if self._cached is None or self._cached[0] != task:
            self._cached = (task, self.strings(task).to(self.device))
        return self._cached[1]


class MemorizationWork(StringWork):
    """Random strings, new ones for each task. A row for each task, and ten of kind "trajectory" within it."""

    def __init__(self, run: NetworkRun, device: torch.device, **options: Any):
        settings: MemorizationRunConfig = run.settings
        self._accuracies: list[float] = []
        super().__init__(
            run,
            device,
            tasks=settings.tasks,
            steps=settings.steps,
            chunk=-(-settings.steps // 10),
            spans={"accuracy": slice(None)},
            **options,
        )

    def step(self) -> list[Row]:
        if self.run.settings.optimizer_state == "reset" and self.done % self._chunks == 0:
            reset_(self.trainer.optimizer)
        return super().step()

    def strings(self, task: int) -> Tensor:
        s: MemorizationConfig = self.run.settings
        return random_strings(self.run.seed, task, count=s.strings, length=s.length, vocabulary=s.vocabulary)

    def rows(self, task: int, step: int, means: Row) -> list[Row]:
        self._accuracies.append(means["accuracy"])
        trajectory = {"kind": "trajectory", "task": task, "step": (task - 1) * self.steps + step} | means
        if step < self.steps:
            return [trajectory]
        updates = [min(self.chunk, self.steps - first) for first in range(0, self.steps, self.chunk)]
        total = sum(accuracy * count for accuracy, count in zip(self._accuracies, updates, strict=True))
        accuracy, self._accuracies = total / self.steps, []
        return [
            trajectory,
            {"task": task} | means | {"accuracy": accuracy, "final_accuracy": means["accuracy"]},
        ]

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"so_far": list(self._accuracies)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._accuracies = list(state["so_far"])


class CopyingWork(StringWork):
    """A fixed set of strings, each with a copy at its end. A row every `eval_every` updates.

    "retrieval" is accuracy on the copy but for its first two tokens, which show where it was copied from;
    "memorisation" is accuracy on the prefix, which is random. "unseen" is retrieval in held-out strings,
    which cannot be memorised.
    """

    def __init__(self, run: NetworkRun, device: torch.device, **options: Any):
        s: CopyingConfig = run.settings
        spans = {"retrieval": slice(s.prefix + 1, None), "memorisation": slice(s.prefix - 1)}
        super().__init__(run, device, tasks=1, steps=s.steps, chunk=s.eval_every, spans=spans, **options)

    def strings(self, task: int) -> Tensor:
        return self._copied(self.run.settings.strings)

    def rows(self, task: int, step: int, means: Row) -> list[Row]:
        return [{"step": step} | means | {"unseen": self._unseen()}]

    def _unseen(self) -> float:
        _, accuracies = self.trainer.evaluate([self._copied(UNSEEN, held_out=True).to(self.device)])
        return accuracies["retrieval"]

    def _copied(self, count: int, *, held_out: bool = False) -> Tensor:
        s: CopyingConfig = self.run.settings
        sizes = {"count": count, "prefix": s.prefix, "suffix": s.suffix, "vocabulary": s.vocabulary}
        return copied_strings(self.run.seed, **sizes, held_out=held_out)
