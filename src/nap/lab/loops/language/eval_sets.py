"""Eval sets of a language model: other texts, multiple-choice and cloze questions."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

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
from nap.lab.loops.language.evaluation import require_room

EvalSet = Windows | list[Question]
DIGEST = re.compile(r"(?<!\S)(?:[0-9a-f]{16}|[0-9a-f]{64})(?!\S)")  # a checksum in a fingerprint
HELD_OUT = "held out"  # the eval set of documents of the training text that are held out


def parse_eval_sets(words: Sequence[str]) -> dict[str, str]:
    """The names of eval sets, each with its file, or "" for one of the catalogue.

    >>> parse_eval_sets(["piqa", "pile=some.jsonl"])
    {'piqa': '', 'pile': 'some.jsonl'}
    """
    sources: dict[str, str] = {}
    for name, sign, path in (word.partition("=") for word in words):
        if not name or (sign and not path):
            raise ValueError(
                f"the eval set {name}{sign}{path} lacks a name or a file; write NAME or NAME=FILE"
            )
        if name in sources or name == HELD_OUT:
            raise ValueError(f"two eval sets are named {name}; write NAME=FILE with another name for one")
        sources[name] = path
    return sources


def fingerprint(name: str, path: str) -> str:
    """Changes when the eval set does; `DataMissing` or another ValueError where it is not there."""
    check_eval_set(name, path)
    if path:
        return text_fingerprint(path)
    files = paths(name) if name in (*KINDS, *of_role("text")) else []
    return " ".join(map(sha256, files)) if name in KINDS else text_fingerprint(name)


def check_eval_set(name: str, path: str) -> None:
    """Refuse an eval set that is neither a file nor in the catalogue; nothing is downloaded."""
    if path and not expanded(path).is_file():
        raise ValueError(f"the eval set {name} should be in {path}, which is no file")
    if not path and name == C4:
        raise ValueError(
            "c4 is streamed, and no eval set: a network that is trained on it is evaluated on its validation "
            f"split, as {HELD_OUT!r}; for another split name a file of its pages, as in c4=FILE.jsonl"
        )
    if not path and name not in KINDS:
        check_text(name)


def load_eval_set(
    name: str,
    path: str,
    tokenizer: Tokenizer,
    length: int,
    at_most: int = 0,
    *,
    trained_on: Sequence[str] = (),
    tell: Tell = to_stderr,
) -> EvalSet:
    """The eval set from its file or the catalogue; `at_most` so many windows or questions, 0 for all.

    Documents that are in the texts `trained_on` are left out, and `tell` is called with their number.
    """
    if name in KINDS:
        questions = read(name, expanded(path) if path else None)[: at_most or None]
        require_room(
            tokenizer.encode([answer for question in questions for answer in question.answers]), length
        )
        return questions
    source = path or name
    _check_disjoint(name, source, trained_on)
    documents = list(texts([source]))
    if known := duplicates(documents, trained_on):
        count = sum(normalise_whitespace(document) in known for document in documents)
        if count == len(documents):
            raise ValueError(f"the eval set {name} is in the training text; name another text")
        tell(f"eval set {name}: {count:,} of {len(documents):,} documents are trained on, and left out")
    needed, size, pieces = at_most * length + 1 if at_most else None, 0, []
    for document in documents:
        if normalise_whitespace(document) in known:
            continue
        pieces.append(np.array([*tokenizer.encode([document])[0], tokenizer.end], np.int32))
        size += len(pieces[-1])
        if needed and size >= needed:
            break
    try:
        return Windows(np.concatenate(pieces), length)
    except ValueError as error:
        raise ValueError(f"the eval set {name} is too short: {error}") from error


def _check_disjoint(name: str, source: str, trained_on: Sequence[str]) -> None:
    """Refuse a file that is trained on, under whatever name."""
    digests = set(DIGEST.findall(text_fingerprint(source)))
    for text in trained_on:
        if digests & set(DIGEST.findall(text_fingerprint(text))):
            raise ValueError(f"the eval set {name} is {text}, which is trained on; name another text")
