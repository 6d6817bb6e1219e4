"""Multiple-choice and cloze questions for a language model: LAMBADA, PIQA, Social IQA."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nap.lab.datasets.store import paths
from nap.lab.files import parse_json


@dataclass(frozen=True)
class Question:
    """A context, its possible continuations and the index of the correct one.

    With a single answer it is a cloze question: does the model predict that answer?
    """

    context: str
    answers: tuple[str, ...]
    label: int = 0


def lambada(line: Mapping[str, Any]) -> Question:
    """A passage without its last word, and that word.

    >>> lambada({"text": "I do not care about signs"})
    Question(context='I do not care about', answers=(' signs',), label=0)
    """
    if "query" in line:
        return Question(line["query"], (f" {line['answers_text'][0]}",))
    context, _, last = str(line["text"]).strip().rpartition(" ")
    return Question(context, (f" {last}",))


def piqa(line: Mapping[str, Any]) -> Question:
    """A goal, and two ways to reach it."""
    return Question(
        f"Goal: {line['goal']}\nAnswer:", (f" {line['sol1']}", f" {line['sol2']}"), int(line["label"])
    )


def social_iqa(line: Mapping[str, Any]) -> Question:
    """A situation, a question about it, and three answers."""
    answers = tuple(f" {line[f'answer{letter}']}" for letter in "ABC")
    context = f"{line['context']}\nQuestion: {line['question']}\nAnswer:"
    return Question(context, answers, int(line["label"]) - 1)


KINDS: Mapping[str, Callable[[Mapping[str, Any]], Question]] = {
    "lambada": lambada,
    "piqa": piqa,
    "siqa": social_iqa,
}


def read(kind: str, path: Path | None = None) -> list[Question]:
    """The questions in a file, by default that of the catalogue.

    Each line is a JSON object: a question with its label, or a request of OLMo's evaluation, of which a
    question has several.
    """
    if kind not in KINDS:
        raise ValueError(f"there are no questions {kind!r}; there are {', '.join(KINDS)}")
    path = paths(kind)[0] if path is None else path
    questions, seen = [], set()
    with path.open("rb") as lines:
        for number, text in enumerate(lines, start=1):
            if not text.strip():
                continue
            try:
                line = parse_json(text.decode())
                if "doc" in line:
                    if line["native_id"] in seen:
                        continue
                    seen.add(line["native_id"])
                    line = line["doc"]
                question = KINDS[kind](line)
                if not 0 <= question.label < len(question.answers):
                    raise ValueError(f"label {question.label} names none of its answers")
            except KeyError as error:
                raise ValueError(
                    f"{path}, line {number}, is no question of {kind}: it has no field {error}"
                ) from error
            except (ValueError, TypeError, IndexError) as error:
                raise ValueError(f"{path}, line {number}, is no question of {kind}: {error!r}") from error
            questions.append(question)
    if not questions:
        raise ValueError(f"{path} has no questions")
    return questions
