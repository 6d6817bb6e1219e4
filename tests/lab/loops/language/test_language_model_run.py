"""A transformer that reads: texts become tokens once, validation sees other documents, runs resume."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nap.lab.datasets.corpus import VALID_EVERY, load, texts
from nap.lab.loops.common.work import NetworkRun
from nap.lab.loops.language.language_model_run import LanguageModelWork
from nap.lab.loops.language.settings import BASELINE, NAP, NORM_ONLY, LanguageModelConfig, with_weight_decay

CPU = torch.device("cpu")
SMALL = LanguageModelConfig(
    blocks=1, heads=2, width=16, tokenizer="bytes", length=16, batch_size=8, steps=7, eval_every=3,
    warmup_steps=2, learning_rate=1e-2, valid_windows=20,
)  # fmt: skip


@pytest.fixture(autouse=True)
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NAP_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def book(tmp_path: Path) -> str:
    path = tmp_path / "book.jsonl"
    path.write_text("".join(f'{{"text": "document {n} of the book, "}}\n' for n in range(200)), "utf-8")
    return str(path)


def work(arm: Any = NAP, config: LanguageModelConfig = SMALL, **options: Any) -> LanguageModelWork:
    return LanguageModelWork(NetworkRun(arm, config, 0, {"experiment": "x"}), CPU, **options)


def finished(work: LanguageModelWork) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while work.done < work.total:
        rows += work.step()
    return rows


def learning(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows but for those of the eval sets."""
    return [row for row in rows if "kind" not in row]


def in_words(tokens: Any) -> str:
    return bytes(token for token in tokens if token < 256).decode()


def test_validation_sees_other_documents(book: str) -> None:
    corpus = load([book], "bytes")
    train, valid = in_words(corpus.train.tokens), in_words(corpus.valid.tokens)
    for number, text in enumerate(texts([book])):
        assert (text in valid) == (number % VALID_EVERY == 0)
        assert (text in train) == (number % VALID_EVERY != 0)


def test_tokens_are_made_anew_when_the_text_changes(book: str, data_home: Path) -> None:
    first = load([book], "bytes")
    assert load([book], "bytes").train == first.train
    Path(book).write_text('{"text": "another"}\n' * 50, "utf-8")
    assert in_words(load([book], "bytes").train.tokens).startswith("another")
    assert len(list((data_home / "tokens").glob("*.train"))) == 2


def test_pieces_are_learnt_from_the_training_part_alone(tmp_path: Path) -> None:
    path = tmp_path / "book.jsonl"
    held_out, shown = '{"text": "zyx zyx zyx"}\n', '{"text": "abc abc abc"}\n'
    path.write_text("".join(shown if n % VALID_EVERY else held_out for n in range(200)), "utf-8")
    corpus = load([str(path)], "bpe-300")
    assert [len(tokens) for tokens in corpus.tokenizer.encode(["abc", "zyx"])] == [1, 3]
    assert load([str(path)], "bpe-300").train == corpus.train


def test_what_is_not_there_is_named(book: str) -> None:
    with pytest.raises(ValueError, match="there is no text 'nowhere'"):
        load(["nowhere"], "bytes")
    with pytest.raises(ValueError, match="there is no tokenizer 'bpe'"):
        load([book], "bpe")
    with pytest.raises(ValueError, match="text is empty; name a text to train on"):
        replace(SMALL, text=())


def test_a_text_that_is_too_short_is_named_with_its_part(book: str) -> None:
    with pytest.raises(
        ValueError, match=r"the held-out part of .*book\.jsonl is too short: .* lower --length"
    ):
        work(config=replace(SMALL, text=(book,), tokenizer="bytes", length=1000))
    with pytest.raises(ValueError, match=r"the training part of .*book\.jsonl is too short"):
        work(config=replace(SMALL, text=(book,), tokenizer="bytes", max_tokens=10))


@pytest.mark.parametrize("arm", [BASELINE, NORM_ONLY, NAP], ids=lambda a: a.name)
def test_every_arm_learns_the_book(book: str, arm: Any) -> None:
    settings = replace(SMALL, text=(book,), steps=90, eval_every=30, warmup_steps=10)
    rows = learning(finished(work(arm, settings)))
    assert rows[0]["valid_loss"] > 1.5
    assert rows[-1]["valid_loss"] < 1.1
    assert rows[-1]["valid_accuracy"] > 0.7
    assert [row["step"] for row in rows] == [30, 60, 90]


def test_a_run_goes_on_after_any_chunk_as_if_nothing_had_happened(book: str) -> None:
    config = replace(SMALL, text=(book,))
    whole = finished(work(config=config))
    for stop in (1, 2):
        first, rest = work(config=config), work(config=config)
        rows = [row for _ in range(stop) for row in first.step()]
        rest.load_state_dict(copy.deepcopy(first.state_dict()))
        assert rows + finished(rest) == whole


def test_a_run_does_not_go_on_with_another_text(book: str) -> None:
    config = replace(SMALL, text=(book,))
    first = work(config=config)
    first.step()
    Path(book).write_text('{"text": "another one, and longer than that"}\n' * 99, "utf-8")
    with pytest.raises(ValueError, match="not those that this run began with"):
        work(config=config).load_state_dict(first.state_dict())


def test_an_arm_s_own_weight_decay_counts(book: str) -> None:
    run = work(with_weight_decay(0.7), replace(SMALL, text=(book,)))
    assert run.trainer.optimizer.param_groups[0]["weight_decay"] == 0.7


def test_gradient_accumulation_gives_the_same_run(book: str) -> None:
    whole, parts = (
        learning(finished(work(config=replace(SMALL, text=(book,), grad_accum_steps=steps))))
        for steps in (1, 4)
    )
    for one, other in zip(whole, parts, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
        assert one["valid_loss"] == pytest.approx(other["valid_loss"], rel=1e-3)


def test_the_rate_warms_up_and_falls_to_a_tenth() -> None:
    config = replace(SMALL, steps=100, warmup_steps=10, learning_rate=1.0)
    rates = [config.rate(update) for update in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == 1.0
    assert rates[-1] == pytest.approx(0.1)
    assert rates[9:] == sorted(rates[9:], reverse=True)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="no multiple of 3 gradient accumulation steps"):
        replace(SMALL, grad_accum_steps=3)
    with pytest.raises(ValueError, match="warmup_steps must be between 0 and 6"):
        replace(SMALL, warmup_steps=7)


def test_every_window_counts_in_a_judgement_also_where_they_fill_no_batch() -> None:
    run = work()
    run.step()
    loss, accuracy = run.evaluate(run.valid, 11)  # a batch of 8, and 3 more
    windows = run.valid[range(11)]
    with torch.no_grad():
        logits = run.trainer.model(windows[:, :-1])
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert accuracy == pytest.approx((logits.argmax(-1) == windows[:, 1:]).float().mean().item())


def test_a_limit_of_tokens_is_kept(book: str) -> None:
    config = replace(SMALL, text=(book,), max_tokens=500)
    assert work(config=config).train.tokens.shape == (500,)
    with pytest.raises(ValueError, match="tokens"):
        replace(SMALL, max_tokens=-1)
    with pytest.raises(ValueError, match="c4 is too large"):
        work(config=replace(SMALL, text=("c4",)))
