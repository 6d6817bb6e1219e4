"""A transformer that learns a language: text in windows, a schedule, validation on other documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from nap.lab.datasets.corpus import load
from nap.lab.datasets.tokens import TokenFile, Windows
from nap.lab.loops.common.spread import spread_over
from nap.lab.loops.language.settings import Network
from nap.lab.loops.language.trainer import Trainer
from nap.lab.loops.population.network_run import NetworkRun
from nap.lab.runner.crew import here
from nap.lab.runner.work import OtherInputs
from nap.lab.seeds import check_seeds
from nap.schedules import warmup_cosine_value
from nap.validation import check_range as check

Row = dict[str, Any]
WORTH_COMPILING = 500  # updates of a run; a guess, not measured yet
STRETCH = 10  # updates between two looks at signals; torchrun grants 30 seconds to the last ones and the save


@dataclass(frozen=True)
class Reading(Network):
    """A text, and how it is learnt."""

    text: tuple[str, ...] = ("python",)
    """texts to learn from: python (the help that comes with it), c4, text8 and others of nap data list, or
    files (plain text, .jsonl with a field "text", WikiText's .tokens, .lines, each perhaps .gz)"""
    tokenizer: str = "bpe-4096"
    """bytes; bpe-N, that is N pieces learnt from the text; gpt-neox-tokenizer; or a tokenizer's JSON file"""
    tokens: int = 0
    """tokens of the text to learn from, at most; 0 for all of them, which C4 has too many of"""
    length: int = 512
    """tokens of a window"""
    batch_size: int = 128
    """windows in an update"""
    parts: int = 1
    """parts in which a batch is computed, to save memory"""
    steps: int = 30_000
    """updates"""
    every: int = 500
    """updates between two rows"""
    learning_rate: float = 2e-4
    """AdamW's peak learning rate"""
    warm_up: int = 1000
    """updates until it is reached; a cosine follows, down to a tenth of it"""
    weight_decay: float = 0.1
    """AdamW's, of matrices and tables"""
    clip: float = 1.0
    """largest norm of the gradient"""
    judged: int = 64
    """windows of other documents that each row is judged on; 0 for all"""
    tied: bool = False
    """the output layer is the table of tokens"""
    recompute: bool = False
    """activations inside blocks are computed again in the backward pass, to save memory"""
    seeds: int = 3
    """networks of each arm"""
    first_seed: int = 0
    """the first of their seeds; 100 and above are for tuning, and no claim reads them"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("length", "batch_size", "parts", "steps", "every", "seeds"):
            check(self, name, getattr(self, name), 1)
        check_seeds(self.first_seed, self.seeds)
        check(self, "learning_rate", self.learning_rate, 1e-12, 1.0)
        check(self, "warm_up", self.warm_up, 0, self.steps - 1)
        check(self, "weight_decay", self.weight_decay, 0)
        check(self, "clip", self.clip, 1e-6)
        check(self, "judged", self.judged, 0)
        check(self, "tokens", self.tokens, 0)
        if not self.text:
            raise ValueError("text is empty; name a text to learn from, as in --text python")
        if self.batch_size % self.parts:
            raise ValueError(
                f"batch_size is {self.batch_size}, which {self.parts} parts cannot share; change --parts"
            )

    def rate(self, update: int) -> float:
        """The learning rate of an update, counted from 0."""
        return warmup_cosine_value(
            update + 1,
            self.learning_rate,
            warmup_steps=self.warm_up,
            total_steps=self.steps,
            init_value=0.0,
            end_value=0.1 * self.learning_rate,
        )


def _windows(part: TokenFile, settings: Reading, which: str) -> Windows:
    try:
        return part.windows(settings.length)
    except ValueError as error:
        names = ", ".join(settings.text)
        raise ValueError(
            f"the {which} of {names} is too short: {error}; lower --length, or learn from more text"
        ) from error


class ReadingWork:
    """The `Work` of one network: `advance` is a few updates, and a row where one is due.

    Where torchrun started several processes, each has such a work and all make the same calls.
    """

    unit = "updates"
    steps_per_unit = 1

    def __init__(self, what: NetworkRun, device: torch.device, *, compile_: bool | None = None):
        self.what, self.device = what, device
        s: Reading = what.settings
        crew = here()
        if s.batch_size // s.parts % crew.size:
            raise ValueError(
                f"batch_size is {s.batch_size} in {s.parts} part{'s' * (s.parts > 1)}, which {crew.size} "
                "processes cannot share; change --batch-size or --parts, or how many torchrun starts"
            )
        with crew.leader_first():
            corpus = load(s.text, s.tokenizer, limit=s.tokens or None)
        self.coder = corpus.coder
        self.train = _windows(corpus.train, s, "training part")
        self.valid = _windows(corpus.valid, s, "part held out")
        self._read = {
            part: dict(file.about) for part, file in (("train", corpus.train), ("valid", corpus.valid))
        }
        if not crew.agree(self._read):
            raise ValueError(f"the processes do not find the same text in {', '.join(s.text)}: give all one")
        self._at_once = max(1, s.batch_size // s.parts // crew.size)  # windows that fit a process in training
        self.total, self.done = s.steps, 0
        cuda, make = (
            device.type == "cuda",
            s.make(corpus.coder.vocabulary, s.length, tied=s.tied, recompute=s.recompute),
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(what.seed)
            model, projector = what.arm.build(make, self.train[[0]][:, :-1])
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
            spread=spread_over(crew),
        )

    def advance(self) -> list[Row]:
        s: Reading = self.what.settings
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
