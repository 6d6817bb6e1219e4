"""Answers of a language model against a slow reference, one token at a time."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nap.lab.datasets.multiple_choice import Question, lambada, piqa, read, social_iqa
from nap.lab.datasets.tokenizer import ByteTokenizer
from nap.lab.loops.language.evaluation import Answer, answers, summary
from nap.lab.models.transformer import Transformer

CPU = torch.device("cpu")
QUESTIONS = [
    Question("one two", (" three", " four", " five and a half"), 2),
    Question("a", (" b", "c"), 0),
    Question("a long beginning", (" end",)),
]


@pytest.mark.parametrize("batch_size", [1, 2, 16])
def test_likelihoods_are_those_of_one_token_after_the_other(batch_size: int) -> None:
    torch.manual_seed(0)
    net = Transformer(257, 40, blocks=1, heads=2, width=16).double()
    found = answers(net, QUESTIONS, ByteTokenizer(), length=40, batch_size=batch_size, device=CPU)
    for question, of in zip(QUESTIONS, found, strict=True):
        for text, answer in zip(question.answers, of, strict=True):
            tokens, total, hits = [256, *question.context.encode()], 0.0, 0
            for token in text.encode():
                logits = net(torch.tensor([tokens]))[0, -1].log_softmax(-1)
                total, hits = total + logits[token].item(), hits + int(logits.argmax() == token)
                tokens.append(token)
            assert answer.log_likelihood == pytest.approx(total, abs=1e-9)
            assert (answer.tokens, answer.num_correct) == (len(text.encode()), hits)


def test_a_text_that_is_too_long_loses_its_beginning() -> None:
    torch.manual_seed(0)
    net = Transformer(257, 8, blocks=1, heads=2, width=16).double()
    [[found]] = answers(
        net, [Question("x" * 50 + "abc", ("de",))], ByteTokenizer(), length=8, batch_size=1, device=CPU
    )
    line = torch.tensor([[*(b"x" * 4 + b"abcde")]])
    logits = net(line[:, :-1]).log_softmax(-1)[0]
    expected = logits[-2, ord("d")] + logits[-1, ord("e")]
    assert found.log_likelihood == pytest.approx(expected.item(), abs=1e-9)


def test_an_answer_that_is_too_long_is_refused() -> None:
    net = Transformer(257, 8, blocks=1, heads=2, width=16)
    with pytest.raises(ValueError, match="an answer has 9 tokens, and the model sees 8"):
        answers(net, [Question("a", ("b" * 9,))], ByteTokenizer(), length=8, batch_size=1, device=CPU)


def test_one_who_knows_gets_everything_right() -> None:
    """A model that always continues with the right answer of the first question."""
    question = QUESTIONS[0]
    line = [256, *question.context.encode(), *question.answers[2].encode()]

    def knows(tokens: Tensor) -> Tensor:
        logits = torch.zeros(*tokens.shape, 257)
        for place in range(min(tokens.shape[1], len(line) - 1)):
            logits[:, place, line[place + 1]] = 9.0
        return logits

    found = answers(knows, [question], ByteTokenizer(), length=64, batch_size=4, device=CPU)
    numbers = summary([question], found)
    assert (numbers["token_accuracy"], numbers["written"], numbers["choice_by_byte"]) == (1.0, 1.0, 1.0)
    assert numbers["token_loss"] < 0.05


def test_a_summary_by_hand() -> None:
    questions = [Question("", ("a", "b"), 0), Question("", ("a", "b"), 1)]
    found = [
        [Answer(-2.0, 2, 1, num_bytes=1), Answer(-3.0, 2, 2, num_bytes=4)],  # likelier: a; by byte: b
        [Answer(-9.0, 3, 0, num_bytes=1), Answer(-1.0, 2, 2, num_bytes=1)],
    ]
    numbers = summary(questions, found)
    assert numbers == {
        "token_accuracy": 3 / 4,
        "token_loss": 3 / 4,
        "written": 1 / 2,
        "choice": 1.0,
        "choice_by_byte": 1 / 2,
    }
    assert math.isclose(summary(questions[:1], found[:1])["token_loss"], 1.0)


def test_questions_in_their_published_forms(tmp_path: Path) -> None:
    goal = {"goal": "open a jar", "sol1": "turn the lid", "sol2": "turn the jar", "label": 1}
    assert piqa(goal) == Question("Goal: open a jar\nAnswer:", (" turn the lid", " turn the jar"), 1)
    situation = {
        "context": "A fell.",
        "question": "Why?",
        "answerA": "x",
        "answerB": "y",
        "answerC": "z",
        "label": "3",
    }
    assert social_iqa(situation).answers[social_iqa(situation).label] == " z"
    assert lambada({"text": "an open door "}).answers == (" door",)
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(goal) + "\n" + json.dumps(goal | {"label": 2}) + "\n", "utf-8")
    with pytest.raises(ValueError, match=r"x\.jsonl, line 2, is no question of piqa"):
        read("piqa", path)
    path.write_text(json.dumps(goal | {"label": -1}) + "\n", "utf-8")  # as in PIQA's test part
    with pytest.raises(ValueError, match="label -1 names none of its answers"):
        read("piqa", path)
    with pytest.raises(ValueError, match="there are lambada, piqa, siqa"):
        read("arc", path)
