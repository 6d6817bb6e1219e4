"""A transformer that learns strings, data set after data set, stretch by stretch.

Everything random is a function of (seed, task, epoch), so a run that resumes goes on as if nothing had
happened.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from nap.lab.datasets.streams import batches
from nap.lab.datasets.strings import copied_strings, random_strings
from nap.lab.loops.common.work import NetworkRun
from nap.lab.loops.language.build import build, transformer_factory
from nap.lab.loops.language.settings import CopyingConfig, MemorizationConfig, MemorizationRunConfig
from nap.lab.loops.language.trainer import Parts, Trainer

Row = dict[str, Any]
UNSEEN = 128  # strings that copying is tested on
WORTH_COMPILING = 2000  # updates of a run; a guess, not measured yet


class StringWork(ABC):
    """The `Work` of one network: `step` is a stretch of updates on the data set of a task."""

    unit = "stretches"

    def __init__(
        self,
        what: NetworkRun,
        device: torch.device,
        *,
        tasks: int,
        steps: int,
        stretch: int,
        parts: Parts,
        compile_: bool | None = None,
    ):
        self.what, self.device, self.steps = what, device, steps
        self.stretch = min(stretch, steps)
        self._in_task = -(-steps // self.stretch)
        self.total, self.done = tasks * self._in_task, 0
        self.steps_per_unit = self.stretch
        settings, cuda = what.settings, device.type == "cuda"
        example = self.strings(1)[:2, :-1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(what.seed)
            model, projector = build(
                what.arm, transformer_factory(settings, settings.vocabulary, example.shape[1]), example
            )
        model.to(device)
        if compile_ is None:
            compile_ = cuda and tasks * steps >= WORTH_COMPILING
        self.trainer = Trainer(
            model,
            projector,
            learning_rate=settings.learning_rate,
            parts=parts,
            weight_decay=what.arm.weight_decay,
            clip=settings.clip or None,
            half=cuda,
            compile_=compile_,
        )
        self._shown: tuple[int, Tensor] | None = None

    @abstractmethod
    def strings(self, task: int) -> Tensor:
        """The data set of a task, from 1, as tokens (N, L)."""

    @abstractmethod
    def rows(self, task: int, step: int, found: Row) -> list[Row]:
        """What to write after a stretch that ended with this step of the task; `found` are its means."""

    def step(self) -> list[Row]:
        before, at = divmod(self.done, self._in_task)
        task, first = before + 1, at * self.stretch
        last = min(self.steps, first + self.stretch)
        data, size = self._data(task), self.what.settings.batch_size
        a_pass, epoch, index = len(data) // size, -1, torch.empty(0)
        for step in range(first, last):
            if step // a_pass != epoch:
                epoch = step // a_pass
                index = batches(self.what.seed, task, epoch, count=len(data), batch_size=size).to(self.device)
            self.trainer.step(data[index[step % a_pass]])
        found = self.trainer.read() | self.trainer.numbers()
        self.done += 1
        common = {"arm": self.what.arm.name, **self.what.tags, "seed": self.what.seed}
        return [common | row for row in self.rows(task, last, found)]

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "trainer": self.trainer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]
        self.trainer.load_state_dict(state["trainer"])

    def _data(self, task: int) -> Tensor:
        if self._shown is None or self._shown[0] != task:
            self._shown = (task, self.strings(task).to(self.device))
        return self._shown[1]


class MemorizationWork(StringWork):
    """Random strings, new ones for each task. A row for each task, and ten on the way."""

    def __init__(self, what: NetworkRun, device: torch.device, **options: Any):
        settings: MemorizationRunConfig = what.settings
        self._so_far: list[float] = []
        super().__init__(
            what,
            device,
            tasks=settings.tasks,
            steps=settings.steps,
            stretch=-(-settings.steps // 10),
            parts={"accuracy": slice(None)},
            **options,
        )

    def step(self) -> list[Row]:
        if self.what.settings.optimizer_state == "reset" and self.done % self._in_task == 0:
            self.trainer.reset_optimizer_()
        return super().step()

    def strings(self, task: int) -> Tensor:
        s: MemorizationConfig = self.what.settings
        return random_strings(self.what.seed, task, count=s.strings, length=s.length, vocabulary=s.vocabulary)

    def rows(self, task: int, step: int, found: Row) -> list[Row]:
        self._so_far.append(found["accuracy"])
        way = {"kind": "trajectory", "task": task, "step": (task - 1) * self.steps + step} | found
        if step < self.steps:
            return [way]
        updates = [min(self.stretch, self.steps - first) for first in range(0, self.steps, self.stretch)]
        right = sum(share * count for share, count in zip(self._so_far, updates, strict=True))
        accuracy, self._so_far = right / self.steps, []
        return [way, {"task": task} | found | {"accuracy": accuracy, "final_accuracy": found["accuracy"]}]

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"so_far": list(self._so_far)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._so_far = list(state["so_far"])


class CopyingWork(StringWork):
    """A fixed set of strings, each with a copy at its end. A row every so many updates.

    "retrieval" is accuracy on the copy but for its first two tokens, from which its place can be told;
    "memorisation" is accuracy on the prefix, which can only be learnt by heart. "unseen" is retrieval in
    strings that training never shows: there nothing can have been learnt by heart.
    """

    def __init__(self, what: NetworkRun, device: torch.device, **options: Any):
        s: CopyingConfig = what.settings
        parts = {"retrieval": slice(s.prefix + 1, None), "memorisation": slice(s.prefix - 1)}
        super().__init__(what, device, tasks=1, steps=s.steps, stretch=s.every, parts=parts, **options)

    def strings(self, task: int) -> Tensor:
        return self._copied(self.what.settings.strings)

    def rows(self, task: int, step: int, found: Row) -> list[Row]:
        return [{"step": step} | found | {"unseen": self._unseen()}]

    def _unseen(self) -> float:
        _, shares = self.trainer.judge([self._copied(UNSEEN, held_out=True).to(self.device)])
        return shares["retrieval"]

    def _copied(self, count: int, *, held_out: bool = False) -> Tensor:
        s: CopyingConfig = self.what.settings
        return copied_strings(
            self.what.seed,
            count=count,
            prefix=s.prefix,
            suffix=s.suffix,
            vocabulary=s.vocabulary,
            held_out=held_out,
        )
