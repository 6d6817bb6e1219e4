"""A transformer that learns a language: training on windows of text, validation, evaluation at the end."""

from __future__ import annotations

from typing import Any

import torch

from nap.lab.datasets.corpus import load
from nap.lab.datasets.tokens import TokenFile, Windows
from nap.lab.loops.common.cuda_graph import graph_and_compile
from nap.lab.loops.common.parallel import parallelism
from nap.lab.loops.common.work import NetworkRun, Row, next_chunk, seeded
from nap.lab.loops.language.eval_sets import (
    HELD_OUT,
    EvalSet,
    fingerprint,
    load_eval_set,
    parse_eval_sets,
)
from nap.lab.loops.language.evaluation import evaluate_questions
from nap.lab.loops.language.settings import LanguageModelConfig
from nap.lab.loops.language.trainer import Trainer, build, transformer_factory
from nap.lab.runner.distributed import current_group
from nap.lab.runner.work import OtherInputs

WORTH_COMPILING = 500  # updates of a run; a guess, not measured yet


class LanguageModelWork:
    """The `Work` of one network: `step` is a chunk of updates, with a row where one is due.

    The last chunk ends with a row for each eval set, of kind "evaluation". Under torchrun each process has
    such a work, and all make the same calls.
    """

    unit = "updates"
    steps_per_unit = 1

    def __init__(self, run: NetworkRun, device: torch.device, *, compile_: bool | None = None):
        self.run, self.device = run, device
        s: LanguageModelConfig = run.settings
        group = current_group()
        if s.batch_size // s.grad_accum_steps % group.world_size:
            raise ValueError(
                f"batch_size is {s.batch_size} in {s.grad_accum_steps} gradient accumulation steps, which "
                f"{group.world_size} processes cannot share; change --batch-size, --grad-accum-steps or how "
                "many torchrun starts"
            )
        sources = parse_eval_sets(s.eval_sets)
        # before the text is tokenized, which takes hours
        eval_sets = {name: fingerprint(name, path) for name, path in sources.items()}
        with group.rank0_first():
            corpus = load(s.text, s.tokenizer, limit=s.max_tokens or None)
        self.tokenizer = corpus.tokenizer
        self.train = _windows(corpus.train, s, "training part")
        self.valid = _windows(corpus.valid, s, "held-out part")
        self._inputs = {  # stored in checkpoints under these names
            "train": dict(corpus.train.about),
            "valid": dict(corpus.valid.about),
            "exams": eval_sets,
        }
        if not group.all_equal(self._inputs):
            raise ValueError(
                f"the processes do not find the same text in {', '.join(s.text)}, or not the same eval sets: "
                "give all of them the same files"
            )
        self._eval_sets: dict[str, EvalSet] = {HELD_OUT: self.valid}
        for name, path in sources.items():
            self._eval_sets[name] = load_eval_set(
                name, path, self.tokenizer, s.length, s.max_eval_examples, trained_on=s.text
            )
        self._micro_batch = s.batch_size // s.grad_accum_steps
        self._eval_batch = max(1, self._micro_batch // group.world_size)
        self.total, self.done = s.steps, 0
        _, compile_ = graph_and_compile(device, s.steps, WORTH_COMPILING, graph=None, compile_=compile_)
        options = {"tied": s.tie_embeddings, "recompute": s.activation_checkpointing}
        make = transformer_factory(s, self.tokenizer.vocab_size, s.length, **options)
        with seeded(run.seed):
            model, projector = build(run.arm, make, self.train[[0]][:, :-1])
        model.to(device)
        self.trainer = Trainer(
            model,
            projector,
            learning_rate=s.rate,
            spans={"accuracy": slice(None)},
            weight_decay=run.arm.weight_decay or s.weight_decay,
            clip=s.clip,
            half=device.type == "cuda",
            compile_=compile_,
            parallel=parallelism(group),
        )

    def step(self) -> list[Row]:
        s: LanguageModelConfig = self.run.settings
        last, due = next_chunk(self.done, s.steps, eval_every=s.eval_every)
        for step in range(self.done, last):
            batch = self.train.batch(self.run.seed, step, s.batch_size).to(self.device)
            self.trainer.update(*batch.chunk(s.grad_accum_steps))
        self.trainer.monitor.check()
        self.done = last
        if last < due:
            return []
        common = self.run.row() | {"step": last}
        row = common | self.trainer.read() | self.trainer.norms_and_rates() | self._validation()
        rows = [row | {"learning_rate": s.rate(last - 1)}]
        return rows if last < self.total else rows + self._evaluation(common)

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "trainer": self.trainer.state_dict(), "read": self._inputs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["read"] != self._inputs:
            raise OtherInputs(
                f"the text or its tokens are not those that this run began with: {state['read']} then, "
                f"{self._inputs} now; bring them back, or begin anew with --force"
            )
        self.done = state["done"]
        self.trainer.load_state_dict(state["trainer"])

    def _validation(self) -> Row:
        """Loss and accuracy on the first windows of the held-out documents."""
        loss, accuracy = self.evaluate(self.valid, self.run.settings.valid_windows)
        return {"valid_loss": loss, "valid_accuracy": accuracy}

    def evaluate(self, windows: Windows, at_most: int = 0) -> tuple[float, float]:
        """Mean loss and accuracy per token on the first windows, or on all of them."""
        count, size = _count(windows, at_most), self._eval_batch
        loss, shares = self.trainer.evaluate(
            windows[range(start, min(start + size, count))].to(self.device) for start in range(0, count, size)
        )
        return loss, shares["accuracy"]

    def _evaluation(self, common: Row) -> list[Row]:
        s: LanguageModelConfig = self.run.settings
        rows = []
        for name, eval_set in self._eval_sets.items():
            if isinstance(eval_set, Windows):
                loss, accuracy = self.evaluate(eval_set, s.max_eval_examples)
                tokens = _count(eval_set, s.max_eval_examples) * s.length
                results: Row = {"accuracy": accuracy, "loss": loss, "tokens": tokens}
            else:
                results = evaluate_questions(
                    self.trainer.logits,
                    eval_set,
                    self.tokenizer,
                    length=s.length,
                    batch_size=self._micro_batch,
                    device=self.device,
                )
            rows.append(common | {"kind": "evaluation", "eval_set": name} | results)
        return rows


def _count(windows: Windows, at_most: int) -> int:
    return min(len(windows), at_most or len(windows))


def _windows(tokens: TokenFile, settings: LanguageModelConfig, part: str) -> Windows:
    try:
        return tokens.windows(settings.length)
    except ValueError as error:
        names = ", ".join(settings.text)
        raise ValueError(
            f"the {part} of {names} is too short: {error}; lower --length, or train on more text"
        ) from error
