"""Questions to a language model, each with answers of which one is right: LAMBADA, PIQA, Social IQA."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Question:
    """How a text begins, the ways in which it may go on, and which of them is right.

    With one answer alone the question is whether the model would have written it.
    """

    begins: str
    answers: tuple[str, ...]
    right: int = 0


def lambada(line: Mapping[str, Any]) -> Question:
    """A passage without its last word, and that word.

    >>> lambada({"text": "I do not care about signs"})
    Question(begins='I do not care about', answers=(' signs',), right=0)
    """
    begins, _, last = str(line["text"]).strip().rpartition(" ")
    return Question(begins, (f" {last}",))


def piqa(line: Mapping[str, Any]) -> Question:
    """A goal, and two ways to reach it."""
    return Question(
        f"Goal: {line['goal']}\nAnswer:", (f" {line['sol1']}", f" {line['sol2']}"), int(line["label"])
    )


def social_iqa(line: Mapping[str, Any]) -> Question:
    """A situation, a question about it, and three answers."""
    answers = tuple(f" {line[f'answer{letter}']}" for letter in "ABC")
    begins = f"{line['context']}\nQuestion: {line['question']}\nAnswer:"
    return Question(begins, answers, int(line["label"]) - 1)


KINDS: Mapping[str, Callable[[Mapping[str, Any]], Question]] = {
    "lambada": lambada,
    "piqa": piqa,
    "siqa": social_iqa,
}


def read(kind: str, path: Path) -> list[Question]:
    """The questions in a file of JSON lines, each with its label in the line."""
    if kind not in KINDS:
        raise ValueError(f"there are no questions {kind!r}; there are {', '.join(KINDS)}")
    found = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                question = KINDS[kind](json.loads(line))
                if not 0 <= question.right < len(question.answers):
                    raise ValueError(f"label {question.right} names none of its answers")
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number}, is no question of {kind}: {error!r}") from error
            found.append(question)
    if not found:
        raise ValueError(f"{path} has no questions")
    return found
