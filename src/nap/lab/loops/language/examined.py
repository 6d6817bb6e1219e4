"""A language model that is examined when it has learnt: on texts of other kinds, and with questions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from nap.lab.datasets.catalog import of_role
from nap.lab.datasets.corpus import (
    Tell,
    check_text,
    duplicates,
    normalise_whitespace,
    text_fingerprint,
    texts,
)
from nap.lab.datasets.documents import C4
from nap.lab.datasets.fetch import to_stderr
from nap.lab.datasets.multiple_choice import KINDS, Question, read
from nap.lab.datasets.store import paths, sha256
from nap.lab.datasets.tokenizer import Tokenizer
from nap.lab.datasets.tokens import Windows
from nap.lab.files import expanded
from nap.lab.loops.common.work import NetworkRun
from nap.lab.loops.language.language import LanguageModelWork
from nap.lab.loops.language.scoring import answers, require_room, summary
from nap.lab.loops.language.settings import LanguageModelConfig
from nap.lab.runner.distributed import current_group

Row = dict[str, Any]
Exam = Windows | list[Question]
DIGEST = re.compile(r"(?<!\S)(?:[0-9a-f]{16}|[0-9a-f]{64})(?!\S)")  # of a content, in an identity
HELD_OUT = "held out"  # the exam on documents of the text that was learnt from


class ExaminedWork(LanguageModelWork):
    """The `Work` of one network. The last stretch ends with a row for each exam, of kind "exam"."""

    def __init__(self, what: NetworkRun, device: torch.device, **options: Any):
        settings: LanguageModelConfig = what.settings
        sources = named(settings.exams)
        found = {name: identity(name, path) for name, path in sources.items()}  # tokenising takes hours
        super().__init__(what, device, **options)
        if not current_group().all_equal(found):
            raise ValueError("the processes do not find the same exams: give all of them the same files")
        self._read["exams"] = found
        self._exams: dict[str, Exam] = {HELD_OUT: self.valid}
        for name, path in sources.items():
            self._exams[name] = exam(
                name, path, self.tokenizer, settings.length, settings.examined, learnt=settings.text
            )

    def step(self) -> list[Row]:
        rows = super().step()
        if self.done < self.total:
            return rows
        common = {key: rows[-1][key] for key in ("arm", *self.what.tags, "seed", "step")} | {"kind": "exam"}
        for name, asked in self._exams.items():
            found = self._of_text(asked) if isinstance(asked, Windows) else self._of_questions(asked)
            rows.append(common | {"set": name} | found)
        return rows

    def _of_text(self, windows: Windows) -> Row:
        """Every token from those before it in its window."""
        count = min(len(windows), self.what.settings.examined or len(windows))
        loss, accuracy = self.judged_on(windows, count)
        return {"accuracy": accuracy, "loss": loss, "tokens": count * windows.length}

    def _of_questions(self, asked: list[Question]) -> Row:
        """The tokens of the right answers; "answered" is the share of questions that are answered right.

        Of one that offers no choice the answer must be written; else the likeliest one counts.
        """
        settings: LanguageModelConfig = self.what.settings
        size = settings.batch_size // settings.parts
        found = answers(
            self.trainer.logits,
            asked,
            self.tokenizer,
            length=settings.length,
            batch_size=size,
            device=self.device,
        )
        numbers = summary(asked, found)
        row = {"accuracy": numbers["token_accuracy"], "loss": numbers["token_loss"], "questions": len(asked)}
        if "choice" not in numbers:
            return row | {"answered": numbers["written"]}
        return row | {"answered": numbers["choice"], "answered_by_byte": numbers["choice_by_byte"]}


def named(exams: Sequence[str]) -> dict[str, str]:
    """The exams' names, each with its file, or "" for one of the catalogue.

    >>> named(["piqa", "pile=some.jsonl"])
    {'piqa': '', 'pile': 'some.jsonl'}
    """
    found: dict[str, str] = {}
    for name, given, path in (word.partition("=") for word in exams):
        if not name or (given and not path):
            raise ValueError(f"the exam {name}{given}{path} lacks a name or a file; write NAME or NAME=FILE")
        if name in found or name == HELD_OUT:
            raise ValueError(f"two exams are named {name}; write NAME=FILE with another name for one")
        found[name] = path
    return found


def identity(name: str, path: str) -> str:
    """What changes when the set does; `DataMissing` or another ValueError where it is not there."""
    check_exam(name, path)
    if path:
        return text_fingerprint(path)
    there = paths(name) if name in (*KINDS, *of_role("text")) else []
    if name not in KINDS:
        return text_fingerprint(name)
    return " ".join(map(sha256, there))


def check_exam(name: str, path: str) -> None:
    """Refuse an exam that there is not; whether one of the catalogue was fetched is another question."""
    if path and not expanded(path).is_file():
        raise ValueError(f"the exam {name} should be in {path}, which is no file")
    if not path and name == C4:
        raise ValueError(
            "c4 is streamed, and no exam: a network that learns from it is judged on its validation split, "
            f"as {HELD_OUT!r}; to judge another one, name a file of its pages, as in c4=FILE.jsonl"
        )
    if not path and name not in KINDS:
        check_text(name)


def exam(
    name: str,
    path: str,
    coder: Tokenizer,
    length: int,
    most: int = 0,
    *,
    learnt: Sequence[str] = (),
    tell: Tell = to_stderr,
) -> Exam:
    """The set of that name, from a file if one is given, else from the catalogue; `most` of it, or all.

    Documents that are in the texts that were `learnt` from are left out, and `tell` hears of it.
    """
    if name in KINDS:
        asked = read(name, expanded(path) if path else None)[: most or None]
        require_room(coder.encode([answer for question in asked for answer in question.answers]), length)
        return asked
    source = path or name
    _check_apart(name, source, learnt)
    documents = list(texts([source]))
    known = duplicates(documents, learnt)
    if known:
        count = sum(normalise_whitespace(document) in known for document in documents)
        if count == len(documents):
            raise ValueError(f"the exam {name} is in the text that is learnt from; name another text")
        tell(f"exam {name}: {count:,} of {len(documents):,} documents are learnt from, and left out")
    enough, size, parts = most * length + 1 if most else None, 0, []
    for text in documents:
        if normalise_whitespace(text) in known:
            continue
        parts.append(np.array([*coder.encode([text])[0], coder.end], np.int32))
        size += len(parts[-1])
        if enough and size >= enough:
            break
    try:
        return Windows(np.concatenate(parts), length)
    except ValueError as error:
        raise ValueError(f"the exam {name} is too short: {error}") from error


def _check_apart(name: str, source: str, learnt: Sequence[str]) -> None:
    """Refuse a file that is learnt from, under whatever name."""
    own = set(DIGEST.findall(text_fingerprint(source)))
    for text in learnt:
        if own & set(DIGEST.findall(text_fingerprint(text))):
            raise ValueError(f"the exam {name} is {text}, which is learnt from; name another text")
