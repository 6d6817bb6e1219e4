"""Our scores of questions against those that lm-eval asks for, through its own tokens and metrics."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("lm_eval", reason="pip install lm-eval, which is too large for CI")

from nap.lab.datasets.multiple_choice import Question
from nap.lab.datasets.tokenizer import ByteTokenizer
from nap.lab.loops.language.evaluation import answers, summary
from nap.lab.loops.language.lm_eval_adapter import LMEvalAdapter
from nap.lab.models.transformer import Transformer

CPU = torch.device("cpu")
LENGTH = 48
QUESTIONS = [
    Question("one two", (" three", " four", " five and a half"), 2),
    Question("a", (" b", "c"), 0),
    Question("a beginning that is longer than what the model sees at a time", (" end", " e"), 1),
    Question("the last", (" word", " words"), 1),
]


def network() -> Transformer:
    torch.manual_seed(0)
    return Transformer(257, LENGTH, blocks=1, heads=2, width=16).double()


def asked(adapter: LMEvalAdapter) -> list[list[tuple[float, bool]]]:
    """Through lm-eval's own way from texts to tokens."""
    return [
        adapter.loglikelihood(
            [SimpleNamespace(args=(question.context, answer)) for answer in question.answers],
            disable_tqdm=True,
        )
        for question in QUESTIONS
    ]


def test_scores_are_ours() -> None:
    net = network()
    ours = answers(net, QUESTIONS, ByteTokenizer(), length=LENGTH, batch_size=4, device=CPU)
    theirs = asked(LMEvalAdapter(net, ByteTokenizer(), length=LENGTH))
    for mine, of in zip(ours, theirs, strict=True):
        for answer, (likelihood, greedy) in zip(mine, of, strict=True):
            assert likelihood == pytest.approx(answer.log_likelihood, abs=1e-9)
            assert greedy == (answer.num_correct == answer.tokens)


def test_without_a_start_of_document_scores_differ() -> None:
    net = network()
    with_start = asked(LMEvalAdapter(net, ByteTokenizer(), length=LENGTH))
    without = asked(LMEvalAdapter(net, ByteTokenizer(), length=LENGTH, document_start=False))
    assert abs(with_start[1][0][0] - without[1][0][0]) > 1e-6


def test_a_rolling_likelihood_is_that_of_the_whole_text() -> None:
    net, text = network(), "twenty bytes of text"
    [found] = LMEvalAdapter(net, ByteTokenizer(), length=LENGTH).loglikelihood_rolling(
        [SimpleNamespace(args=(text,))]
    )
    tokens = torch.tensor([[256, *text.encode()]])
    scores = net(tokens[:, :-1]).log_softmax(-1).gather(-1, tokens[:, 1:, None])
    assert found == pytest.approx(scores.sum().item(), abs=1e-9)


def test_it_writes_nothing() -> None:
    with pytest.raises(ValueError, match="writes none"):
        LMEvalAdapter(network(), ByteTokenizer(), length=LENGTH).generate_until([])


def test_a_task_of_lm_eval_ends_at_our_accuracy(tmp_path: Path) -> None:
    """lm-eval runs a task of its own kind from a file; accuracy by likelihood is what `summary` has."""
    lm_eval = pytest.importorskip("lm_eval.evaluator", reason="the requirements of lm-eval")
    task = pytest.importorskip("lm_eval.api.task", reason="the requirements of lm-eval")
    file = tmp_path / "questions.jsonl"
    lines = [{"q": q.context, "choices": [a.strip() for a in q.answers], "label": q.label} for q in QUESTIONS]
    for line in lines:
        line["choices"] = (line["choices"] + ["x" * 30] * 3)[:3]  # type: ignore[operator]
    file.write_text("\n".join(map(json.dumps, lines)))
    config: dict[str, Any] = {
        "task": "ours",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"validation": str(file)}},
        "validation_split": "validation",
        "output_type": "multiple_choice",
        "doc_to_text": "{{q}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "label",
        "target_delimiter": " ",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    adapter = LMEvalAdapter(network(), ByteTokenizer(), length=LENGTH)
    made = task.ConfigurableTask(config=config)
    found = lm_eval.evaluate(adapter, {"ours": made}, bootstrap_iters=0)["results"]["ours"]
    questions = [
        Question(str(line["q"]), tuple(f" {c}" for c in line["choices"]), int(line["label"]))  # type: ignore
        for line in lines
    ]
    scores = answers(network(), questions, ByteTokenizer(), length=LENGTH, batch_size=4, device=CPU)
    assert found["acc,none"] == pytest.approx(summary(questions, scores)["choice"])
