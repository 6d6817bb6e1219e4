"""Exams at the end of training: texts in windows, questions by likelihood, and sets that are not there."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nap.lab.datasets.multiple_choice import read
from nap.lab.datasets.store import DataMissing
from nap.lab.datasets.tokenizer import ByteTokenizer
from nap.lab.loops.common.work import NetworkRun
from nap.lab.loops.language.eval_sets import HELD_OUT, load_eval_set
from nap.lab.loops.language.language_model_run import LanguageModelWork
from nap.lab.loops.language.settings import NAP, LanguageModelConfig
from nap.lab.runner.work import OtherInputs

TINY: dict[str, Any] = {
    "blocks": 1, "heads": 2, "width": 16, "tokenizer": "bytes", "length": 32, "batch_size": 8,
    "steps": 6, "eval_every": 3, "warmup_steps": 2, "learning_rate": 1e-2, "valid_windows": 8,
    "max_eval_examples": 5,
}  # fmt: skip
PASSAGES = [{"text": f"the cat number {n} sat on the mat"} for n in range(9)]
RIDDLES = [{"goal": f"open {n}", "sol1": "pull", "sol2": "push it hard", "label": n % 2} for n in range(7)]


@pytest.fixture(autouse=True)
def _data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAP_DATA", str(tmp_path / "data"))


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def work(*eval_sets: str, **changes: Any) -> LanguageModelWork:
    settings = LanguageModelConfig(**TINY | changes, eval_sets=eval_sets)
    return LanguageModelWork(NetworkRun(NAP, settings, 0, {"experiment": "x"}), torch.device("cpu"))


def finished(run: LanguageModelWork) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while run.done < run.total:
        rows += run.step()
    return rows


def test_the_last_rows_are_of_the_eval_sets(tmp_path: Path) -> None:
    passages, riddles = written(tmp_path / "a.jsonl", PASSAGES), written(tmp_path / "b.jsonl", RIDDLES)
    text = written(tmp_path / "c.jsonl", PASSAGES)
    rows = finished(work(f"lambada={passages}", f"piqa={riddles}", f"other={text}"))
    eval_sets = [row for row in rows if row.get("kind") == "evaluation"]
    assert [row["eval_set"] for row in eval_sets] == [HELD_OUT, "lambada", "piqa", "other"]
    assert rows[-4:] == eval_sets
    assert [row["step"] for row in rows] == [3, 6, 6, 6, 6, 6]
    held_out, lambada, piqa, other = eval_sets
    assert held_out["tokens"] == 5 * 32
    assert lambada["num_questions"] == piqa["num_questions"] == 5
    assert "answer_accuracy" not in other
    assert "answer_accuracy_by_byte" not in lambada
    assert {"answer_accuracy", "answer_accuracy_by_byte", "accuracy", "loss"} <= piqa.keys()
    assert all(row["experiment"] == "x" and row["arm"] == "NaP" and row["seed"] == 0 for row in eval_sets)


def test_texts_and_answers_are_judged_as_by_hand(tmp_path: Path) -> None:
    riddles, text = written(tmp_path / "b.jsonl", RIDDLES[:5]), written(tmp_path / "c.jsonl", PASSAGES)
    run = work(f"piqa={riddles}", f"other={text}", max_eval_examples=0, batch_size=1)
    rows = {row["eval_set"]: row for row in finished(run) if row.get("kind") == "evaluation"}
    model = copy.deepcopy(run.trainer.model).eval().requires_grad_(False)
    line = np.array([t for p in PASSAGES for t in [*p["text"].encode(), ByteTokenizer.end]])
    pieces = [line[i : i + 33] for i in range(0, len(line) - 32, 32)]
    tokens = torch.from_numpy(np.stack(pieces))
    logits = model(tokens[:, :-1])
    assert rows["other"]["accuracy"] == pytest.approx(
        (logits.argmax(-1) == tokens[:, 1:]).float().mean().item()
    )
    expected = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item()
    assert rows["other"]["loss"] == pytest.approx(expected, rel=1e-5)

    right = 0
    for question in read("piqa", riddles):
        values = []
        for answer in question.answers:
            whole = torch.tensor([[ByteTokenizer.end, *question.context.encode(), *answer.encode()][-33:]])
            chances = model(whole[:, :-1]).log_softmax(-1)[0]
            count = len(answer.encode())
            values.append(sum(chances[-i, whole[0, -i]].item() for i in range(1, count + 1)))
        right += values.index(max(values)) == question.label
    assert rows["piqa"]["answer_accuracy"] == pytest.approx(right / 5)


def test_what_was_learnt_from_is_no_exam(tmp_path: Path) -> None:
    pages = [{"text": f"{k} " + "some words " * 9} for k in range(40)]
    learnt, again = written(tmp_path / "learnt words.jsonl", pages), written(tmp_path / "again.lines", pages)
    shared = [
        pages[3],
        {"text": f" {pages[3]['text']}\n".replace("words some", "words\nsome")},
        *({"text": f"other {k} " * 9} for k in range(4)),
        pages[8],
    ]
    mixed, new = (
        written(tmp_path / "mixed.jsonl", shared),
        written(tmp_path / "new words.jsonl", shared[2:-1]),
    )
    said: list[str] = []

    def made(path: Path) -> Any:
        return load_eval_set(
            "x", str(path), ByteTokenizer(), 16, trained_on=["python", str(learnt)], tell=said.append
        )

    first, second = (torch.cat([one[[k]] for k in range(len(one))]) for one in (made(mixed), made(new)))
    assert said == ["eval set x: 3 of 7 documents are trained on, and left out"]
    assert torch.equal(first, second)
    part = written(tmp_path / "part.jsonl", pages[:5])
    for path, why in ((part, "is in the training text"), (again, "which is trained on")):
        with pytest.raises(ValueError, match=rf"the eval set x (is .*)?{why}.* name another text"):
            load_eval_set("x", str(path), ByteTokenizer(), 16, trained_on=[str(learnt)])
    with pytest.raises(ValueError, match="the eval set python is python, which is trained on"):
        work("python")


@pytest.mark.parametrize("word", ["", "=a.jsonl", "piqa="])
def test_an_eval_set_has_a_name_and_a_file(word: str) -> None:
    with pytest.raises(ValueError, match="lacks a name or a file; write NAME or NAME=FILE"):
        work(word)


def test_questions_that_are_none_are_named_by_what_they_lack(tmp_path: Path) -> None:
    path = tmp_path / "piqa.jsonl"
    path.write_text('\n{"goal": "g", "sol1": "a", "sol2": "b", "label": 1}\n\n')
    assert [question.label for question in read("piqa", path)] == [1]
    path.write_text('{"query": "g"}\n')
    with pytest.raises(ValueError, match=r"line 1, is no question of piqa: it has no field 'goal'"):
        read("piqa", path)
    path.write_bytes(b'{"goal": "\xff"}\n')
    with pytest.raises(ValueError, match=r"piqa.jsonl, line 1, is no question of piqa: UnicodeDecodeError"):
        read("piqa", path)


def test_what_is_missing_is_said_before_training() -> None:
    with pytest.raises(DataMissing, match="nap data fetch lambada"):
        work("lambada")
    with pytest.raises(DataMissing, match="nap data fetch wikitext-103"):
        work("wikitext-103")
    with pytest.raises(ValueError, match="there is no text 'nowhere'"):
        work("nowhere")


def test_a_run_that_resumes_is_examined_like_one_that_did_not_stop(tmp_path: Path) -> None:
    passages = f"lambada={written(tmp_path / 'a.jsonl', PASSAGES)}"
    whole, first, rest = finished(work(passages)), work(passages), work(passages)
    rows = first.step()
    rest.load_state_dict(copy.deepcopy(first.state_dict()))
    assert rows + finished(rest) == whole


def test_the_same_set_twice_is_refused(tmp_path: Path) -> None:
    text = written(tmp_path / "c.jsonl", PASSAGES)
    with pytest.raises(ValueError, match="two eval sets are named other"):
        work(f"other={text}", f"other={text}")
    with pytest.raises(ValueError, match="two eval sets are named held out"):
        work(f"held out={text}")
    assert len(load_eval_set("other", str(text), ByteTokenizer(), 32)) > 1


def test_what_cannot_be_examined_is_said_before_texts_are_put_into_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "nap.lab.loops.language.language_model_run.load", lambda *args, **options: pytest.fail("too late")
    )
    with pytest.raises(DataMissing, match="nap data fetch piqa"):
        work("piqa")
    with pytest.raises(ValueError, match=r"should be in nowhere\.jsonl, which is no file"):
        work("piqa=nowhere.jsonl")
    with pytest.raises(DataMissing, match="nap data fetch wikitext-103"):
        work("wikitext-103")
    with pytest.raises(ValueError, match=r"c4 is streamed, and no eval set: .* as in c4=FILE\.jsonl"):
        work("c4")
    with pytest.raises(ValueError, match="there is no text 'nothing': name files"):
        work("nothing")
    with pytest.raises(ValueError, match="two eval sets are named python"):
        work("python", "python")


def test_an_answer_that_the_model_cannot_see_is_refused_before_training(tmp_path: Path) -> None:
    long = written(tmp_path / "b.jsonl", [{"goal": "x", "sol1": "y" * 40, "sol2": "z", "label": 0}])
    with pytest.raises(ValueError, match=r"an answer has 41 tokens, and the model sees 32: .* --length"):
        work(f"piqa={long}")
    short = written(tmp_path / "c.jsonl", [{"text": "short"}])
    with pytest.raises(ValueError, match="the eval set other is too short"):
        work(f"other={short}")


def test_an_eval_set_must_stay_what_it_was(tmp_path: Path) -> None:
    passages = written(tmp_path / "a.jsonl", PASSAGES)
    first = work(f"lambada={passages}")
    first.step()
    state = copy.deepcopy(first.state_dict())
    passages.touch()  # the same content is the same eval set
    work(f"lambada={passages}").load_state_dict(state)
    written(passages, PASSAGES[:5])
    with pytest.raises(OtherInputs, match="not those that this run began with"):
        work(f"lambada={passages}").load_state_dict(state)
