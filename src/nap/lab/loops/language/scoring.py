"""What a language model answers: how likely it finds each answer, and whether it would have written it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nap.lab.datasets.multiple_choice import Question
from nap.lab.datasets.tokenizer import Tokenizer

Model = Callable[[Tensor], Tensor]  # tokens (B, L) → logits (B, L, vocabulary)


@dataclass(frozen=True)
class Answer:
    """One answer as the model sees it."""

    log_likelihood: float
    tokens: int
    hits: int  # tokens that are the model's first choice, given all before them
    size: int  # bytes of text


@torch.no_grad()
def answers(
    model: Model,
    questions: Sequence[Question],
    coder: Tokenizer,
    *,
    length: int,
    batch_size: int,
    device: torch.device,
) -> list[list[Answer]]:
    """Every answer to every question. A text that is too long for the model loses its beginning."""
    texts = [(question.begins, answer) for question in questions for answer in question.answers]
    starts = coder.encode([begins for begins, _ in texts])
    ends = coder.encode([answer for _, answer in texts])
    require_room(ends, length)
    lines = [
        ([coder.end, *start, *end][-(length + 1) :], len(end))
        for start, end in zip(starts, ends, strict=True)
    ]
    by_size = sorted(range(len(lines)), key=lambda i: len(lines[i][0]))
    found: dict[int, Answer] = {}
    for first in range(0, len(lines), batch_size):
        some = by_size[first : first + batch_size]
        scores = _scored(model, [lines[i] for i in some], device)
        for i, (likelihood, hits) in zip(some, scores, strict=True):
            found[i] = Answer(likelihood, lines[i][1], hits, len(texts[i][1].encode()))
    in_order = iter(found[i] for i in range(len(lines)))
    return [[next(in_order) for _ in question.answers] for question in questions]


def require_room(answers: Sequence[Sequence[int]], length: int) -> None:
    """Raise where an answer in tokens is longer than what the model sees."""
    if (longest := max(map(len, answers))) > length:
        raise ValueError(
            f"an answer has {longest} tokens, and the model sees {length}: it cannot be judged; "
            "leave out this set of questions, or raise --length"
        )


def summary(questions: Sequence[Question], found: Sequence[Sequence[Answer]]) -> dict[str, float]:
    """Accuracy over the tokens of right answers, and over questions; of choices also by likelihood a byte."""
    right = [of[question.right] for question, of in zip(questions, found, strict=True)]
    numbers = {
        "token_accuracy": sum(a.hits for a in right) / max(1, sum(a.tokens for a in right)),
        "token_loss": -sum(a.log_likelihood for a in right) / max(1, sum(a.tokens for a in right)),
        "written": sum(a.hits == a.tokens for a in right) / len(right),
    }
    if max(len(of) for of in found) > 1:
        numbers["choice"] = _share_of_best(questions, found, lambda a: a.log_likelihood)
        numbers["choice_by_byte"] = _share_of_best(questions, found, lambda a: a.log_likelihood / a.size)
    return numbers


def _share_of_best(
    questions: Sequence[Question], found: Sequence[Sequence[Answer]], value: Callable[[Answer], float]
) -> float:
    """How often the answer of the highest value is the right one."""
    best = [max(enumerate(of), key=lambda pair: value(pair[1]))[0] for of in found]
    return sum(b == question.right for b, question in zip(best, questions, strict=True)) / len(best)


def _scored(
    model: Model, lines: Sequence[tuple[list[int], int]], device: torch.device
) -> Iterator[tuple[float, int]]:
    """Log-likelihood and hits of the last tokens of each line; shorter lines are filled up at their end."""
    longest = max(len(tokens) for tokens, _ in lines)
    filled = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens, _ in lines], device=device)
    logits = model(filled[:, :-1])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    targets = filled[:, 1:]
    chosen = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    hit = logits.argmax(-1) == targets
    place = torch.arange(longest - 1, device=device)
    ends = torch.tensor([len(tokens) - 1 for tokens, _ in lines], device=device)
    counts = torch.tensor([count for _, count in lines], device=device)
    counted = (place < ends[:, None]) & (place >= (ends - counts)[:, None])
    likelihoods = (chosen.double() * counted).sum(1).tolist()
    yield from zip(likelihoods, (hit & counted).sum(1).tolist(), strict=True)
