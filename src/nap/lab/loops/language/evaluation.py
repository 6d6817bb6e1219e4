"""A language model's answers to multiple-choice and cloze questions: their likelihoods and accuracies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nap.lab.datasets.multiple_choice import Question
from nap.lab.datasets.tokenizer import Tokenizer

Model = Callable[[Tensor], Tensor]  # tokens (B, L) → logits (B, L, vocabulary)


@dataclass(frozen=True)
class Answer:
    """One answer under the model."""

    log_likelihood: float
    tokens: int
    num_correct: int  # tokens that are the model's first choice, given all before them
    num_bytes: int  # of text


def evaluate_questions(
    model: Model,
    questions: Sequence[Question],
    tokenizer: Tokenizer,
    *,
    length: int,
    batch_size: int,
    device: torch.device,
) -> dict[str, Any]:
    """The columns of an eval set's row: accuracy and loss per token of labelled answers, and per question.

    With a choice, the likeliest answer must be the labelled one; without (cloze), the model must write it.
    """
    scores = answers(model, questions, tokenizer, length=length, batch_size=batch_size, device=device)
    numbers = summary(questions, scores)
    row = {
        "accuracy": numbers["token_accuracy"],
        "loss": numbers["token_loss"],
        "num_questions": len(questions),
    }
    if "choice" not in numbers:
        return row | {"answer_accuracy": numbers["written"]}
    return row | {"answer_accuracy": numbers["choice"], "answer_accuracy_by_byte": numbers["choice_by_byte"]}


@torch.no_grad()
def answers(
    model: Model,
    questions: Sequence[Question],
    tokenizer: Tokenizer,
    *,
    length: int,
    batch_size: int,
    device: torch.device,
) -> list[list[Answer]]:
    """Every answer to every question. A context that is too long for the model is cut at its beginning."""
    texts = [(question.context, answer) for question in questions for answer in question.answers]
    starts = tokenizer.encode([context for context, _ in texts])
    ends = tokenizer.encode([answer for _, answer in texts])
    require_room(ends, length)
    lines = [
        ([tokenizer.end, *start, *end][-(length + 1) :], len(end))
        for start, end in zip(starts, ends, strict=True)
    ]
    by_size = sorted(range(len(lines)), key=lambda i: len(lines[i][0]))
    scored: dict[int, Answer] = {}
    for first in range(0, len(lines), batch_size):
        batch = by_size[first : first + batch_size]
        scores = _log_likelihoods(model, [lines[i] for i in batch], device)
        for i, (likelihood, num_correct) in zip(batch, scores, strict=True):
            scored[i] = Answer(likelihood, lines[i][1], num_correct, len(texts[i][1].encode()))
    in_order = iter(scored[i] for i in range(len(lines)))
    return [[next(in_order) for _ in question.answers] for question in questions]


def require_room(answers: Sequence[Sequence[int]], length: int) -> None:
    """Raise where an answer has more tokens than the model's context."""
    if (longest := max(map(len, answers))) > length:
        raise ValueError(
            f"an answer has {longest} tokens, and the model sees {length}: it cannot be evaluated; "
            "leave out this set of questions, or raise --length"
        )


def summary(questions: Sequence[Question], scores: Sequence[Sequence[Answer]]) -> dict[str, float]:
    """Accuracy per token of the labelled answers and per question; of choices also by likelihood per byte."""
    labelled = [of[question.label] for question, of in zip(questions, scores, strict=True)]
    numbers = {
        "token_accuracy": sum(a.num_correct for a in labelled) / max(1, sum(a.tokens for a in labelled)),
        "token_loss": -sum(a.log_likelihood for a in labelled) / max(1, sum(a.tokens for a in labelled)),
        "written": sum(a.num_correct == a.tokens for a in labelled) / len(labelled),
    }
    if max(len(of) for of in scores) > 1:
        numbers["choice"] = _accuracy(questions, scores, lambda a: a.log_likelihood)
        numbers["choice_by_byte"] = _accuracy(questions, scores, lambda a: a.log_likelihood / a.num_bytes)
    return numbers


def _accuracy(
    questions: Sequence[Question], scores: Sequence[Sequence[Answer]], value: Callable[[Answer], float]
) -> float:
    """The share of questions whose labelled answer has the highest value."""
    best = [max(enumerate(of), key=lambda pair: value(pair[1]))[0] for of in scores]
    return sum(b == question.label for b, question in zip(best, questions, strict=True)) / len(best)


def _log_likelihoods(
    model: Model, lines: Sequence[tuple[list[int], int]], device: torch.device
) -> Iterator[tuple[float, int]]:
    """Log-likelihood and number correct of the last tokens of each line; shorter lines are padded."""
    longest = max(len(tokens) for tokens, _ in lines)
    padded = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens, _ in lines], device=device)
    logits = model(padded[:, :-1])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    targets = padded[:, 1:]
    chosen = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    correct = logits.argmax(-1) == targets
    place = torch.arange(longest - 1, device=device)
    ends = torch.tensor([len(tokens) - 1 for tokens, _ in lines], device=device)
    counts = torch.tensor([count for _, count in lines], device=device)
    counted = (place < ends[:, None]) & (place >= (ends - counts)[:, None])
    likelihoods = (chosen.double() * counted).sum(1).tolist()
    yield from zip(likelihoods, (correct & counted).sum(1).tolist(), strict=True)
