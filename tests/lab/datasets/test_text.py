"""Text into documents and tokens: nothing is lost on the way, and nothing is made twice."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from nap.lab.datasets import tokens
from nap.lab.datasets.documents import cut_up, documents, python_topics
from nap.lab.datasets.store import DataMissing
from nap.lab.datasets.tokenizer import ByteTokenizer, FileTokenizer, train_bpe
from nap.lab.datasets.tokens import tokenize

TEXTS = ["Once upon a time", "naïve – ☃", "", "a b a b a b a b"]


@given(whole=st.text(max_size=60), size=st.integers(1, 20))
def test_pieces_are_the_text(whole: str, size: int) -> None:
    found = list(cut_up(whole, size))
    assert "".join(found) == whole
    assert all(0 < len(piece) <= size for piece in found)


def test_documents_by_kind(tmp_path: Path) -> None:
    lines = tmp_path / "x.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), "utf-8")
    assert list(documents(lines)) == TEXTS
    wiki = tmp_path / "wiki.test.tokens"
    wiki.write_text(" \n = A = \n \n text = 3 \n = = B = = \n\n = C = \n more\n", "utf-8")
    assert [text.split("\n")[0] for text in documents(wiki)] == [" ", " = C = "]
    assert "".join(documents(wiki)).count("= B =") == 1
    pages = tmp_path / "pages.lines"
    pages.write_text("one page\n\n a second \u2028 page\n", "utf-8")
    assert list(documents(pages)) == ["one page", " a second \u2028 page"]
    plain = tmp_path / "text8"
    plain.write_text("word " * 50_000, "utf-8")
    found = list(documents(plain))
    assert "".join(found) == "word " * 50_000
    assert len(found) == 3
    assert not any(text.lstrip().startswith("ord") for text in found)  # no word is cut


@pytest.mark.parametrize("name", ["a.json", "a.jsonl.gz", "a.json.gz"])
def test_shards_of_c4_are_read_as_they_come(tmp_path: Path, name: str) -> None:
    lines = "".join(json.dumps({"text": f"page {k}", "url": "x"}) + "\n" for k in range(3))
    path = tmp_path / name
    path.write_bytes(gzip.compress(lines.encode()) if name.endswith(".gz") else lines.encode())
    assert list(documents(path)) == ["page 0", "page 1", "page 2"]


def test_a_text_may_be_packed(tmp_path: Path) -> None:
    (tmp_path / "a.lines.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"one two"))
    assert list(documents(tmp_path / "a.lines.gz")) == ["one", "two"]
    assert list(documents(tmp_path / "b.txt.gz")) == ["one two"]
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"one two")[:-9])
    (tmp_path / "c.txt.gz").write_bytes(b"one two")
    for name in ("b.txt.gz", "c.txt.gz"):
        with pytest.raises(ValueError, match=rf"{name} is no whole file of gzip .* fetch it again"):
            list(documents(tmp_path / name))


@pytest.mark.parametrize(
    ("kind", "way_out"), [(".jsonl.zst", "zstd -d"), (".csv", "as .jsonl"), (".npy", "jsonl")]
)
def test_what_is_no_text_is_not_read_as_one(tmp_path: Path, kind: str, way_out: str) -> None:
    (tmp_path / f"a{kind}").write_text("text\none\n")
    with pytest.raises(ValueError, match=rf"a{kind} is no text that can be read as it is; .*{way_out}"):
        list(documents(tmp_path / f"a{kind}"))


def test_a_line_that_is_no_document_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    for wrong in ('{"body": "b"}', '{"text": null}', '{"text": 3}', "[]", "{"):
        path.write_text(f'{{"text": "a"}}\n{wrong}\n', "utf-8")
        with pytest.raises(ValueError, match=r"x\.jsonl, line 2, is no JSON object with a string"):
            list(documents(path))
    path.write_text('{"text": "a"}\n\n{"text": "b"}\n\n', "utf-8")
    assert list(documents(path)) == ["a", "b"]


@pytest.mark.parametrize("kind", ["txt", "jsonl", "lines", "tokens"])
def test_a_file_in_another_encoding_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"x.{kind}"
    path.write_bytes('{"text": "été"}'.encode("latin-1"))
    with pytest.raises(ValueError, match=rf"x\.{kind} is not in UTF-8 .* convert it first"):
        list(documents(path))


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "x.json"
    path.write_text("no", "utf-8")
    with pytest.raises(ValueError, match=r"x\.json is no tokenizer of the library .* its JSON file"):
        FileTokenizer(path)


def test_python_brings_half_a_million_characters() -> None:
    topics = list(python_topics())
    assert sum(map(len, topics)) > 400_000
    assert topics == list(python_topics())


def test_bytes_can_be_read_back() -> None:
    coder = ByteTokenizer()
    assert [bytes(tokens).decode() for tokens in coder.encode(TEXTS)] == TEXTS
    assert coder.end < coder.vocab_size


def test_learnt_pieces_write_any_text_shorter(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    coder = train_bpe(python_topics(), path, vocab_size=600)
    plain = tokenizers.Tokenizer.from_file(str(path))
    assert [plain.decode(tokens) for tokens in coder.encode(TEXTS)] == TEXTS
    topic = next(python_topics())
    assert len(coder.encode([topic])[0]) < 0.7 * len(topic.encode())
    assert max(max(tokens, default=0) for tokens in coder.encode(TEXTS)) < coder.vocab_size == 600
    assert FileTokenizer(path).fingerprint == coder.fingerprint
    with pytest.raises(ValueError, match="has no token '<end>'"):
        FileTokenizer(path, "<end>")


def test_a_formula_is_no_title_of_an_article(tmp_path: Path) -> None:
    path = tmp_path / "wiki.tokens"
    path.write_text(" \n = Filters = \n \n where k \n = 1 rad = \n and C \n \n = Nero = \n \n x \n", "utf-8")
    assert [text.split(" = ")[1] for text in documents(path)] == ["Filters", "Nero"]


@pytest.mark.parametrize("at_once", [1, 16, 17, 1000])
def test_no_document_is_lost_between_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(tokens, "_AT_ONCE", at_once)
    found = tokenize(iter(TEXTS), ByteTokenizer(), tmp_path / "x", source="a test").tokens.tolist()
    assert found == [token for document in TEXTS for token in (*document.encode(), 256)]


def test_long_work_is_counted_aloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    tokenize(TEXTS, ByteTokenizer(), tmp_path / "x", source="quick", count=told.append)
    assert told == []
    monkeypatch.setattr(tokens, "TELL_EVERY_SECONDS", 0.0)
    found = tokenize(TEXTS, ByteTokenizer(), tmp_path / "x", source="slow", count=told.append)
    assert told == sorted(told)
    assert len(told) == len(TEXTS)
    assert told[-1] == found.count
    tokenize(TEXTS, ByteTokenizer(), tmp_path / "x", source="slow", count=lambda _: pytest.fail("made twice"))


def test_without_the_library_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    for make in (
        lambda: FileTokenizer(tmp_path / "x"),
        lambda: train_bpe([], tmp_path / "x", vocab_size=300),
    ):
        with pytest.raises(DataMissing, match=r"pip install 'normalize-and-project\[language\]'"):
            make()


def test_tokens_are_made_once(tmp_path: Path) -> None:
    calls = []

    def texts() -> Iterator[str]:
        calls.append(1)
        yield from TEXTS

    def make(source: str = "a test", limit: int | None = None) -> list[int]:
        return tokenize(texts(), ByteTokenizer(), tmp_path / "x", source=source, limit=limit).tokens.tolist()

    first = make()
    assert bytes(token for token in first if token < 256).decode() == "".join(TEXTS)
    assert first.count(256) == len(TEXTS)
    assert make() == first
    assert len(calls) == 1
    assert make(limit=5) == first[:5]
    assert make(source="another") == first
    (tmp_path / "x").write_bytes(b"damaged")
    assert make(source="another") == first
    assert len(calls) == 4
