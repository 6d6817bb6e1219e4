"""A transformer that learns a language: text in windows, a schedule, validation on other documents."""

from __future__ import annotations

from typing import Any

import torch

from nap.lab.datasets.corpus import load
from nap.lab.datasets.tokens import TokenFile, Windows
from nap.lab.loops.common.parallel import parallelism
from nap.lab.loops.common.work import NetworkRun
from nap.lab.loops.language.build import build, transformer_factory
from nap.lab.loops.language.settings import LanguageModelConfig
from nap.lab.loops.language.trainer import Trainer
from nap.lab.runner.distributed import current_group
from nap.lab.runner.work import OtherInputs

Row = dict[str, Any]
WORTH_COMPILING = 500  # updates of a run; a guess, not measured yet
STRETCH = 10  # updates between two looks at signals; torchrun grants 30 seconds to the last ones and the save


def _windows(part: TokenFile, settings: LanguageModelConfig, which: str) -> Windows:
    try:
        return part.windows(settings.length)
    except ValueError as error:
        names = ", ".join(settings.text)
        raise ValueError(
            f"the {which} of {names} is too short: {error}; lower --length, or learn from more text"
        ) from error


class LanguageModelWork:
    """The `Work` of one network: `step` is a few updates, and a row where one is due.

    Where torchrun started several processes, each has such a work and all make the same calls.
    """

    unit = "updates"
    steps_per_unit = 1

    def __init__(self, what: NetworkRun, device: torch.device, *, compile_: bool | None = None):
        self.what, self.device = what, device
        s: LanguageModelConfig = what.settings
        group = current_group()
        if s.batch_size // s.parts % group.world_size:
            raise ValueError(
                f"batch_size is {s.batch_size} in {s.parts} part{'s' * (s.parts > 1)}, which "
                f"{group.world_size} processes cannot share; change --batch-size or --parts, or how many "
                "torchrun starts"
            )
        with group.rank0_first():
            corpus = load(s.text, s.tokenizer, limit=s.tokens or None)
        self.tokenizer = corpus.tokenizer
        self.train = _windows(corpus.train, s, "training part")
        self.valid = _windows(corpus.valid, s, "part held out")
        self._read = {
            part: dict(file.about) for part, file in (("train", corpus.train), ("valid", corpus.valid))
        }
        if not group.all_equal(self._read):
            raise ValueError(f"the processes do not find the same text in {', '.join(s.text)}: give all one")
        self._at_once = max(
            1, s.batch_size // s.parts // group.world_size
        )  # windows that fit a process in training
        self.total, self.done = s.steps, 0
        cuda, make = (
            device.type == "cuda",
            transformer_factory(s, corpus.tokenizer.vocab_size, s.length, tied=s.tied, recompute=s.recompute),
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(what.seed)
            model, projector = build(what.arm, make, self.train[[0]][:, :-1])
        model.to(device)
        self.trainer = Trainer(
            model,
            projector,
            learning_rate=s.rate,
            parts={"accuracy": slice(None)},
            weight_decay=what.arm.weight_decay or s.weight_decay,
            clip=s.clip,
            half=cuda,
            compile_=(cuda and s.steps >= WORTH_COMPILING) if compile_ is None else compile_,
            parallel=parallelism(group),
        )

    def step(self) -> list[Row]:
        s: LanguageModelConfig = self.what.settings
        due = min(s.steps, (self.done // s.every + 1) * s.every)
        last = min(due, self.done + STRETCH)
        for step in range(self.done, last):
            batch = self.train.batch(self.what.seed, step, s.batch_size).to(self.device)
            self.trainer.step(*batch.chunk(s.parts))
        self.trainer.watch.check()
        self.done = last
        if last < due:
            return []
        row = {"arm": self.what.arm.name, **self.what.tags, "seed": self.what.seed, "step": last}
        row |= self.trainer.read() | self.trainer.numbers() | self._judged()
        return [row | {"learning_rate": s.rate(last - 1)}]

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "trainer": self.trainer.state_dict(), "read": self._read}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["read"] != self._read:
            raise OtherInputs(
                f"the text or its tokens are not those that this run began with: {state['read']} then, "
                f"{self._read} now; bring them back, or begin anew with --force"
            )
        self.done = state["done"]
        self.trainer.load_state_dict(state["trainer"])

    def _judged(self) -> dict[str, float]:
        """Loss and accuracy on the first windows of the documents that are held out."""
        count = min(self.what.settings.judged or len(self.valid), len(self.valid))
        loss, accuracy = self.judged_on(self.valid, count)
        return {"valid_loss": loss, "valid_accuracy": accuracy}

    def judged_on(self, windows: Windows, count: int) -> tuple[float, float]:
        """Loss and accuracy on the first `count` windows."""
        size = min(self._at_once, count)
        loss, shares = self.trainer.judge(
            windows[range(start, min(start + size, count))].to(self.device) for start in range(0, count, size)
        )
        return loss, shares["accuracy"]
